# SPDX-License-Identifier: Apache-2.0
"""The stand-in's daemon: a server process on a unix socket that ends with its parent.

``python -m obmm.sdk.standin_daemon FOLDER [--engine]``; it says ``ready`` on its standard output, and stops when there
is a word on its standard input.  When that ends without one, its starter was killed: it removes the stand-in then.  All of it is the stand-in library's own code: this process only lends it a place to run.
"""

from __future__ import annotations

import os
import select
import shutil
import sys

from obmm.sdk import standin_library


def main() -> None:
    """The process."""
    folder, *options = sys.argv[1:]
    functions = standin_library.load()
    result = functions.ubsmem_standin_serve(folder.encode(), "--engine" in options, 0, 1)
    ended = select.select([0], [], [], 0)[0] and not os.read(0, 1)
    if not ended:
        standin_library.checked("serve", result)
    else:  # also when it could not even say that it is ready
        functions.ubsmem_standin_destroy(folder.encode())
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
