# SPDX-License-Identifier: Apache-2.0
"""The stand-in's daemon: a server process on a unix socket that ends with whoever started it.

``python -m obmm.sdk.standin_daemon FOLDER [--engine]``; it says ``ready`` on its standard output, and stops at the end
of its standard input.  All of it is the stand-in library's own code: this process only lends it a place to run.
"""

from __future__ import annotations

import sys

from obmm.sdk import standin_library


def main() -> None:
    """The process."""
    folder, *options = sys.argv[1:]
    result = standin_library.load().ubsmem_standin_serve(folder.encode(), "--engine" in options, 0, 1)
    standin_library.checked("serve", result)


if __name__ == "__main__":
    main()
