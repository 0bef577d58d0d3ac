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
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_SOCKET_PATH_MAX = 107
_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED = 1 << 30


class FabricDirectory:
    """The place of the fabric `name` in the folder `runtime`.

    A server holds a lock on it for its whole life: that is how the others know it lives. Who claims, removes or
    looks holds the runtime folder's lock meanwhile.
    """

    def __init__(self, runtime: Path, name: str) -> None:
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is not a name for a fabric")
        self.name = name
        self.path = runtime / name
        self.socket = runtime / f"{name}.sock"
        self.log = self.path / "log"
        self._runtime = runtime
        self._nodes = self.path / "nodes"
        self._lock: IO[bytes] | None = None  # a file closes itself: none is lost to an interrupt

    def node(self, name: str) -> Path:
        """The root of a node's tree: below it are sys, proc and dev."""
        return self._nodes / name

    def claim(self) -> None:
        """Become the fabric's server, or raise FileExistsError when one lives. What a dead one left goes."""
        if len(os.fsencode(self.socket)) > _SOCKET_PATH_MAX:
            raise OSError(
                errno.ENAMETOOLONG,
                f"{self.socket} is longer than the {_SOCKET_PATH_MAX} bytes of a socket's address; "
                "set XDG_RUNTIME_DIR to a shorter path",
            )
        with self._exclusive():
            if not self._take():
                raise FileExistsError(
                    errno.EEXIST,
                    f"the fabric {self.name!r} already runs on {self.socket}; `obmm emulate down --name {self.name}` ends it",
                )
            self._delete_contents()
            trees = _memory_folder(self.path)
            if trees is None:
                self._nodes.mkdir(mode=0o700)
            else:
                self._nodes.symlink_to(trees)

    def remove(self) -> None:
        """Delete everything of a fabric that was claimed."""
        with self._exclusive():
            self._delete()

    def remove_if_dead(self) -> bool:
        """Delete what a killed server left; whether there was such."""
        with self._exclusive():
            if not self.path.is_dir() or not self._take():
                return False
            self._delete()
            return True

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        with _lock_file(self._runtime / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _take(self) -> bool:
        """Hold the fabric's lock from now on, unless somebody does."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        lock = _lock_file(self.path / "lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        return True

    def _delete_contents(self) -> None:
        self.socket.unlink(missing_ok=True)
        if self._nodes.is_symlink():
            shutil.rmtree(self._nodes.readlink(), ignore_errors=True)
            self._nodes.unlink()
        shutil.rmtree(self._nodes, ignore_errors=True)

    def _delete(self) -> None:
        self._delete_contents()
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _lock_file(path: Path) -> IO[bytes]:
    return open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o600))


def _memory_folder(near: Path) -> Path | None:
    """A folder in memory for thousands of small files, or None: `near` is in memory, or there is no room.

    On a disk each EXPORT would take ten times as long. The folder is new and this user's alone.
    """
    try:
        room = os.statvfs(_MEMORY)
        if near.stat().st_dev == _MEMORY.stat().st_dev or room.f_bavail * room.f_frsize < _MEMORY_NEEDED:
            return None
        if _file_system(near) in ("tmpfs", "ramfs"):
            return None
        folder = _MEMORY / f"obmm-{os.geteuid()}-{near.name}-{os.getpid()}"
        folder.mkdir(mode=0o700)
    except OSError:
        return None
    return folder


def _file_system(path: Path) -> str:
    """The type of the file system that `path` is on."""
    numbers = f"{os.major(path.stat().st_dev)}:{os.minor(path.stat().st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, system = line.partition(" - ")
        if mount.split()[2:3] == [numbers] and system:
            return system.split()[0]
    return ""
