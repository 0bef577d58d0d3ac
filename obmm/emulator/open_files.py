# SPDX-License-Identifier: Apache-2.0
"""Open files of clients: one end of a socket pair each, whose end of file is the last close."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model.files import OpenFile
    from .model.host import Host


class OpenFiles:
    """All open files of a fabric, named by the inode of the client's end.

    The server's ends are watched for hang-up only: what a client writes into its end stays there.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._by_inode: dict[tuple[str, int], OpenFile] = {}
        self._by_descriptor: dict[int, tuple[socket.socket, str, int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_inode)

    def fileno(self) -> int:
        """Readable when some file was closed for the last time."""
        return self._epoll.fileno()

    def serve(self, host: Host, opened: OpenFile, deliver: Callable[[int], None]) -> None:
        """Make a descriptor for `opened` and have `deliver` send it to the client.

        From then on only the client's references count. Whatever goes wrong before, `opened` is released.
        """
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            opened.release()
            raise
        with theirs:
            # a byte that nobody reads: poll() finds the file ready in both directions, as the driver's
            ours.send(b"\0")
            inode = os.fstat(theirs.fileno()).st_ino
            # a client that closes at once must not be seen as open by whoever hears of the close
            with self._lock:
                self._by_inode[host.name, inode] = opened
                self._by_descriptor[ours.fileno()] = (ours, host.name, inode)
                self._epoll.register(ours.fileno(), 0)
                try:
                    deliver(theirs.fileno())
                finally:
                    theirs.close()

    def get(self, host: Host, inode: int) -> OpenFile | None:
        """The open file behind the client's descriptor, or None when it is none of `host`'s."""
        return self._by_inode.get((host.name, inode))

    def settle(self) -> None:
        """Release every file whose last reference is gone by now.

        Called before each request: a close that came before it in any process has happened.
        """
        if not self._by_descriptor:
            return
        with self._lock:
            closed = self._epoll.poll(0, 64)
            for descriptor, _ in closed:
                ours, host, inode = self._by_descriptor[descriptor]
                self._epoll.unregister(descriptor)
                self._by_inode.pop((host, inode)).release()
                # gone from here only now: who finds nothing to settle must find it released
                del self._by_descriptor[descriptor]
                ours.close()
        if len(closed) == 64:
            self.settle()

    def close(self) -> None:
        """Drop all of them."""
        with self._lock:
            for ours, _, _ in self._by_descriptor.values():
                ours.close()
            self._by_descriptor.clear()
            self._by_inode.clear()
            self._epoll.close()
