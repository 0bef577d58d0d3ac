# SPDX-License-Identifier: Apache-2.0
"""Where fabrics live on disk, and which of them are alive.

``$XDG_RUNTIME_DIR/obmm``, or ``/tmp/obmm-<uid>`` when that is unset: a folder of this user alone. A fabric
named N has the socket ``N.sock`` in it and the folder ``N/`` with its lock, its log and its nodes' trees.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from obmm.backend import default_socket, runtime_directory

DEFAULT = default_socket().stem
"""The fabric of ``obmm emulate up`` and ``obmm.open("emulator")``."""

_SOCKET_PATH_MAX = 107


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


class FabricDirectory:
    """The place of one fabric."""

    def __init__(self, name: str) -> None:
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is no name for a fabric")
        runtime = runtime_directory()
        self.name = name
        self.path = runtime / name
        self.socket = runtime / f"{name}.sock"
        self.log = self.path / "log"
        self._lock = -1

    def node(self, name: str) -> Path:
        """The root of a node's tree: below it are sys, proc and dev."""
        return self.path / "nodes" / name

    def is_alive(self) -> bool:
        """Whether a server holds this fabric."""
        try:
            lock = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _take(lock)
        finally:
            os.close(lock)

    def claim(self) -> None:
        """Become the fabric's server, or raise FileExistsError when one lives. What a dead one left goes."""
        if len(os.fsencode(self.socket)) > _SOCKET_PATH_MAX:
            raise OSError(
                errno.ENAMETOOLONG,
                f"{self.socket} is longer than the {_SOCKET_PATH_MAX} bytes of a socket's address; "
                "set XDG_RUNTIME_DIR to a shorter path",
            )
        ensure_runtime_directory()
        self.path.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _take(lock):
            os.close(lock)
            raise FileExistsError(errno.EEXIST, f"the fabric {self.name!r} already runs on {self.socket}")
        self._lock = lock
        self.socket.unlink(missing_ok=True)
        shutil.rmtree(self.path / "nodes", ignore_errors=True)

    def remove(self) -> None:
        """Delete everything of a fabric that was claimed."""
        with contextlib.suppress(OSError):
            self.socket.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def fabrics() -> Iterator[FabricDirectory]:
    """All fabrics of this user, alive or left behind."""
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(runtime_directory().iterdir()):
            if entry.is_dir():
                yield FabricDirectory(entry.name)


def remove_stale() -> list[str]:
    """Delete what killed servers left; returns their names."""
    removed = []
    for directory in fabrics():
        if not directory.is_alive():
            with contextlib.suppress(FileExistsError):
                directory.claim()
                directory.remove()
                removed.append(directory.name)
    return removed


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
