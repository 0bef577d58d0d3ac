# SPDX-License-Identifier: Apache-2.0
"""Open files of clients: what stands for them in their processes, and how the last close is noticed."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .model.files import O_PATH

if TYPE_CHECKING:
    from .model.files import OpenFile
    from .model.host import Host

END = (1 << 63) - 1
"""Position at which the kernel refuses every read and write with EINVAL: one byte more would overflow."""
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
NO_TRANSFER = os.O_ACCMODE
"""Access mode 3: open for ioctl alone, neither read nor written (EBADF)."""
_KEPT = os.O_SYNC | os.O_DSYNC | os.O_NONBLOCK | os.O_APPEND
_IN_CLOSE = 0x18
_IN_ONESHOT = 1 << 31
_EVENT = struct.Struct("iIII")
_LIMIT = Path("/proc/sys/fs/inotify/max_queued_events")
_DEFAULT_LIMIT = 16384
_EVENTS_EACH = 2
"""Events per file: the close, and that nothing more is watched."""

_libc = ctypes.CDLL(None, use_errno=True)


class OpenFiles:
    """All open files of a fabric, named by the inode of what stands for them.

    A client holds an empty file of memory, sealed against everything and opened with its own flags, whose
    position is at the end of all numbers: by no call does a byte move, poll finds it ready, epoll refuses it, and
    its name says which device it is. The kernel tells of the last close of all its copies (dup, fork, SCM_RIGHTS).
    """

    def __init__(self, tag: int) -> None:
        self._tag = tag
        self._notices = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._notices < 0:
            raise OSError(ctypes.get_errno(), "inotify: " + os.strerror(ctypes.get_errno()))
        self._most = _queue_limit() // _EVENTS_EACH - 1
        self._by_inode: dict[tuple[str, int], OpenFile] = {}
        self._by_watch: dict[int, tuple[str, int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_inode)

    def fileno(self) -> int:
        """Readable when some file was closed for the last time."""
        return int(self._notices)

    def serve(self, host: Host, opened: OpenFile, deliver: Callable[[int], None]) -> None:
        """Make a descriptor for `opened` and have `deliver` send it to the client.

        From then on only the client's references count. Whatever goes wrong before, `opened` is released.
        """
        try:
            theirs = self._stand_in(host, opened)
        except OSError:
            opened.release()
            raise
        try:
            inode = os.fstat(theirs).st_ino
            # a client that closes at once must not be seen as open by a process that hears of the close
            with self._lock:
                try:
                    watch = self._watch(theirs)
                except OSError:
                    opened.release()
                    raise
                self._by_inode[host.name, inode] = opened
                self._by_watch[watch] = host.name, inode
                try:
                    deliver(theirs)
                finally:
                    os.close(theirs)
                    theirs = -1
        finally:
            if theirs >= 0:
                os.close(theirs)

    def _stand_in(self, host: Host, opened: OpenFile) -> int:
        """A descriptor from which no byte can move."""
        memory = os.memfd_create(f"obmm:{self._tag}:{host.name}:{opened.path}", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)
            access = NO_TRANSFER if opened.flags & O_PATH else opened.flags & os.O_ACCMODE
            theirs = os.open(f"/proc/self/fd/{memory}", access | opened.flags & _KEPT | os.O_CLOEXEC)
        finally:
            os.close(memory)
        os.lseek(theirs, END, os.SEEK_SET)
        return theirs

    def _watch(self, descriptor: int) -> int:
        if len(self._by_watch) >= self._most:
            raise OSError(errno.ENFILE, f"{_LIMIT} allows {self._most} open files of one fabric")
        path = os.fsencode(f"/proc/self/fd/{descriptor}")
        watch: int = _libc.inotify_add_watch(self._notices, path, ctypes.c_uint32(_IN_CLOSE | _IN_ONESHOT))
        if watch < 0:
            error = ctypes.get_errno()
            raise OSError(errno.ENFILE if error == errno.ENOSPC else error, "inotify: " + os.strerror(error))
        return watch

    def get(self, host: Host, inode: int) -> OpenFile | None:
        """The open file behind the client's descriptor, or None when it is none of `host`'s."""
        return self._by_inode.get((host.name, inode))

    def settle(self) -> None:
        """Release every file whose last reference is gone by now.

        Called before each request: a close that came before it in any process has happened.
        """
        if not self._by_watch:
            return
        with self._lock:
            while notices := self._read():
                for watch, mask, _, _ in _EVENT.iter_unpack(notices):
                    if mask & _IN_CLOSE and watch in self._by_watch:
                        # released before it is forgotten: who finds nothing to settle must find it released
                        self._by_inode.pop(self._by_watch[watch]).release()
                        del self._by_watch[watch]

    def _read(self) -> bytes:
        try:
            return os.read(self._notices, 64 * _EVENT.size)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Drop all of them."""
        with self._lock:
            self._by_watch.clear()
            self._by_inode.clear()
            os.close(self._notices)


def _queue_limit() -> int:
    try:
        return int(_LIMIT.read_text())
    except (OSError, ValueError):
        return _DEFAULT_LIMIT
