# SPDX-License-Identifier: Apache-2.0
"""A process in a small file system of its own: ``python -m tests.sdk.full_disk FOLDER``."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path

from obmm import emulator, sdk
from obmm.sdk.errors import SdkError
from obmm.sdk.standin import StandIn

SIZE = 4 << 20


def main() -> None:
    folder = Path(sys.argv[1])
    tempfile.tempdir = str(folder)
    with emulator.start(nodes=1) as fabric, StandIn(fabric, mode="in-process") as standin:
        os.environ.update(standin.environment("a"))
        with sdk.connect() as session:
            first = sdk.SharedObject.create(session, "x", SIZE, provider="a")
            print(0)
            filler = folder / "filler"
            with open(filler, "wb", buffering=0) as file:
                try:
                    while file.write(bytes(4096)):
                        pass
                except OSError as error:
                    assert error.errno == errno.ENOSPC
            try:
                sdk.SharedObject.create(session, "y", SIZE, provider="a")
            except SdkError as error:
                print(error.code)
            first.delete()
            print(0)
            try:
                StandIn(fabric, mode="in-process")
            except OSError as error:
                print(errno.errorcode[error.errno or 0])


if __name__ == "__main__":
    main()
