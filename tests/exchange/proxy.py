# SPDX-License-Identifier: Apache-2.0
"""A proxy between client and server that does what networks do, and what attackers do."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

# Takes a chunk and says what is forwarded instead, in order; None cuts the connection.
Mangle = Callable[[bytes], "list[bytes] | None"]


def faithful(chunk: bytes) -> list[bytes] | None:
    return [chunk]


class Chaos:
    """Cuts, delays, duplicates and reorders chunks at random; the seed makes it repeatable."""

    def __init__(self, seed: int, trouble: float = 0.1) -> None:
        self._random = random.Random(seed)
        self._trouble = trouble
        self._kept: bytes | None = None

    def __call__(self, chunk: bytes) -> list[bytes] | None:
        kept, self._kept = self._kept, None
        chunks = [chunk] if kept is None else [chunk, kept]
        if self._random.random() >= self._trouble:
            return chunks
        match self._random.choice(("cut", "truncate", "delay", "duplicate", "reorder", "flip", "split")):
            case "cut":
                return None
            case "truncate":
                return [chunk[: len(chunk) // 2]]
            case "delay":
                time.sleep(self._random.random() * 0.05)
            case "duplicate":
                chunks.append(chunk)
            case "reorder":
                self._kept = chunks.pop()
            case "flip":
                changed = bytearray(chunk)
                changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
                chunks[0] = bytes(changed)
            case "split":
                chunks = [bytes([byte]) for byte in chunk]
        return chunks


class Proxy:
    """Forwards 127.0.0.1:`port` to a server.  One thread for all connections."""

    def __init__(self, target: int, to_server: Mangle = faithful, to_client: Mangle = faithful) -> None:
        self.target = target
        self.to_server = to_server
        self.to_client = to_client
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._other: dict[socket.socket, tuple[socket.socket, str]] = {}
        self._running = True
        self._refusing = False
        self._silent = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self, *, refuse: bool = False) -> None:
        """Cut every connection; with ``refuse`` no new ones come through until `mend`."""
        self._refusing = refuse
        for sock in list(self._other):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Swallow everything from now on, and keep the connections: a black hole."""
        self._silent = True

    def mend(self) -> None:
        self._refusing = self._silent = False

    def flip_next_towards_client(self) -> None:
        def flip(chunk: bytes) -> list[bytes] | None:
            self.to_client = faithful
            return [chunk[:-1] + bytes([chunk[-1] ^ 1])]

        self.to_client = flip

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        self._thread.join()
        for sock in [*self._other, self._listener]:
            sock.close()
        self._selector.close()

    def _run(self) -> None:
        while self._running:
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._other:
                    self._forward(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self._refusing:
                raise OSError
            server = socket.create_connection(("127.0.0.1", self.target), 2)
        except OSError:
            client.close()
            return
        self.connections += 1
        for sock, other, way in ((client, server, "to_server"), (server, client, "to_client")):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(2)
            self._other[sock] = (other, way)
            self._selector.register(sock, selectors.EVENT_READ)

    def _forward(self, sock: socket.socket) -> None:
        other, way = self._other[sock]
        try:
            chunk = sock.recv(65536)
            if self._silent and chunk:
                return
            out = getattr(self, way)(chunk) if chunk else None
            if out is not None:
                for piece in out:
                    other.sendall(piece)
                return
        except OSError:
            pass
        for each in (sock, other):
            self._selector.unregister(each)
            del self._other[each]
            each.close()
