# SPDX-License-Identifier: Apache-2.0
"""Where a C or C++ compiler finds this installation's headers and static library.

    from obmm.host import c_library
    c_library.include_dir(), c_library.library_dir()

The command prints the same: ``obmm --include-dir``, ``obmm --library-dir``.
"""

from __future__ import annotations

import errno
from pathlib import Path

from obmm.errors import ObmmError

_LAID_OUT = Path(__file__).resolve().parents[1] / "c"


def include_dir() -> Path:
    """The folder for ``-I``: programs say ``#include <obmm/obmm.h>``.

    Errors: `ObmmError` (ENOENT) in a checkout that was not built yet.
    """
    return _existing("include", "obmm/obmm.h")


def library_dir() -> Path:
    """The folder for ``-L``, with ``libobmm.a``, and ``pkgconfig/obmm.pc`` below it.

    Errors: `ObmmError` (ENOENT) in a checkout that was not built yet.
    """
    return _existing("lib", "libobmm.a")


def _existing(folder: str, file: str) -> Path:
    path = _LAID_OUT / folder
    if not (path / file).is_file():
        raise ObmmError(errno.ENOENT, f"C library: {path / file} does not exist; fix: make setup, or install the wheel")
    return path
