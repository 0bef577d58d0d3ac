# SPDX-License-Identifier: Apache-2.0
"""The files of one fabric: socket, lock, log, nodes' trees.

Nothing but the standard library here and in what the server imports: its start is the start of every test.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path

_SOCKET_PATH_MAX = 107


class FabricDirectory:
    """The place of the fabric `name` in the folder `runtime`."""

    def __init__(self, runtime: Path, name: str) -> None:
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is no name for a fabric")
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


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
