# SPDX-License-Identifier: Apache-2.0
"""Where fabrics live on disk, and which of them are alive.

``$XDG_RUNTIME_DIR/obmm``, or ``/tmp/obmm-<uid>`` when that is unset: a folder of this user alone. A fabric
named N has the socket ``N.sock`` in it and the folder ``N/`` with its lock, its log and its nodes' trees.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from obmm.backend import default_socket, runtime_directory

from .directory import FabricDirectory

DEFAULT = default_socket().stem
"""The fabric of ``obmm emulate up`` and ``obmm.open("emulator")``."""


def ensure_runtime_directory() -> Path:
    """The runtime folder, made if needed; PermissionError when others could reach into it."""
    path = runtime_directory()
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise FileNotFoundError(
            errno.ENOENT, f"XDG_RUNTIME_DIR is {os.environ.get('XDG_RUNTIME_DIR')!r}, which does not exist"
        ) from None
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(
            errno.EPERM,
            f"{path} must be a folder of uid {os.geteuid()} with mode 0700, but it is "
            f"{stat.filemode(info.st_mode)} of uid {info.st_uid}; remove it or set XDG_RUNTIME_DIR",
        )
    return path


def fabric_directory(name: str) -> FabricDirectory:
    """The place of the fabric `name` of this user."""
    return FabricDirectory(runtime_directory(), name)


def fabrics() -> Iterator[FabricDirectory]:
    """All fabrics of this user, alive or left behind."""
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(runtime_directory().iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                yield fabric_directory(entry.name)


def remove_stale() -> list[str]:
    """Delete what killed servers left; returns their names."""
    return [directory.name for directory in fabrics() if directory.remove_if_dead()]
