# SPDX-License-Identifier: Apache-2.0
"""Files that somebody names: regular ones only, and bounded before they are read.

Opening a pipe waits for who never comes, and /dev/zero has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO


def never_waiting(path: str, flags: int) -> int:
    """An opener for `open`: a pipe without a writer is opened, and refused by its kind, instead of waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """A regular file, for reading bytes; OSError for another, with its name.

    >>> open_regular("/dev/zero")
    Traceback (most recent call last):
    OSError: [Errno 22] not a regular file: '/dev/zero'
    """
    if b"\0" in os.fsencode(path):
        raise OSError(errno.EINVAL, "a NUL ends no name", os.fspath(path))
    file = open(Path(path), "rb", opener=never_waiting)  # noqa: SIM115 - it is what the caller gets
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """All of a regular file of at most ``most`` bytes; OSError for another.

    >>> len(read_regular("/etc/passwd", 1 << 20)) > 0
    True
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", os.fspath(path))
    return data
