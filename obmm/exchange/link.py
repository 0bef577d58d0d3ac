# SPDX-License-Identifier: Apache-2.0
"""A socket, what protects it, and a session, as one thing that never blocks."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from obmm.exchange.messages import Message
from obmm.exchange.secrets import Opaque
from obmm.exchange.session import Session
from obmm.exchange.tls import Transport

READ_SIZE = 64 * 1024


class Disconnected(Exception):
    """The other side closed the connection, or the network did."""


class Link:
    """Both sides use it, from one thread each."""

    def __init__(self, sock: socket.socket, transport: Transport, session: Session) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # not a TCP socket in some tests
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.transport = transport
        self.session = session
        self._out = Opaque()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def pending(self) -> int:
        """Bytes that wait for the socket."""
        return len(self._out) + self.session.queued

    def receive(self) -> Iterator[tuple[Message, int]]:
        """Read once and yield what became complete; Disconnected at the end of the stream."""
        try:
            raw = self.sock.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise Disconnected(error.strerror or "connection error") from None
        if not raw:
            self.session.end()
            raise Disconnected("the peer closed the connection")
        yield from self.session.receive(self.transport.receive(raw))

    def discard(self) -> bool:
        """Take what a refused peer still says, so that closing does not reset the connection under our answer.

        False when nothing more will come.
        """
        try:
            return bool(self.sock.recv(READ_SIZE))
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False

    def resume(self) -> Iterator[tuple[Message, int]]:
        """Yield what an earlier `receive` or `resume` was not asked for any more."""
        yield from self.session.receive(b"")

    def send(self, message: Message, request: int = 0) -> None:
        self.session.send(message, request)

    def flush(self) -> bool:
        """Write what the socket takes; True when something went out. Disconnected if nothing ever will."""
        plain = self.session.take()
        if plain:
            self.transport.send(plain)
        self._out += self.transport.take()
        wrote = False
        while self._out:
            try:
                count = self.sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise Disconnected(error.strerror or "connection error") from None
            del self._out[:count]
            wrote = True
        return wrote

    def close(self) -> None:
        self.sock.close()
