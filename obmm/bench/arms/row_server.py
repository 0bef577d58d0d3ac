# SPDX-License-Identifier: Apache-2.0
"""The far side of the TCP arm: a table of known content, rows on request over a plain socket.

``python -m obmm.bench.arms.row_server BYTES`` reads a secret (hexadecimal) from standard input, prints how far the table
is filled and then its port on loopback, and answers until standard input ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import numpy as np
from numpy.typing import NDArray

from obmm.bench import content
from obmm.bench.row_protocol import REQUEST, admit, read_exactly

MOST = 1 << 30
MOST_CLIENTS = 64
_PASSING = (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
Table = Callable[[], AbstractContextManager[NDArray[np.uint8]]]
Partner = Callable[[socket.socket, int], None]
"""The far side of so many rounds of a ping-pong; sends `READY` when the first may begin, and `READY` after the last."""


class _Answers:
    """What one client is told from an array."""

    def __init__(self, connection: socket.socket, array: NDArray[np.uint8]) -> None:
        self._connection, self._array = connection, array
        self._out = np.empty(1 << 20, np.uint8)

    def bytes_at(self, offset: int, nbytes: int) -> bool:
        """Whether there are such bytes; then they are sent."""
        if offset + nbytes > len(self._array):
            return False
        self._connection.sendall(self._array[offset : offset + nbytes].data)
        return True

    def rows(self, row_bytes: int, tables: int, count: int, extent: int) -> bool:
        """Reads the ids and sends their rows; False for a request that does not fit the array."""
        size = tables * count * row_bytes
        if not size or max(size, 8 * tables * count) > MOST or extent < row_bytes or extent * tables > len(self._array):
            return False
        ids = np.empty((tables, count), np.int64)
        read_exactly(self._connection, ids.data.cast("B"))
        if len(self._out) < size:
            self._out = np.empty(size, np.uint8)
        rows = self._out[:size].reshape(tables, count, row_bytes)
        for number in range(tables):
            part = self._array[number * extent : (number + 1) * extent]
            packed = part[: extent // row_bytes * row_bytes].reshape(-1, row_bytes)
            np.take(packed, ids[number], axis=0, out=rows[number], mode="clip")
        self._connection.sendall(rows.reshape(-1).data)
        return True


class RowServer:
    """Listens on `host` and answers each client that knows one of `secrets` on a thread of its own.

    `table` lends the array while a client is there; `partners` are the far sides of ping-pongs by the name of their
    request.
    """

    def __init__(
        self,
        table: Table,
        secrets: tuple[bytes, ...],
        host: str = "127.0.0.1",
        partners: Mapping[bytes, Partner] | None = None,
    ) -> None:
        self._table, self._secrets, self._partners = table, secrets, partners or {}
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address: str = self._listener.getsockname()[0]
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="obmm-bench-rows", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection = self._next()
                if connection is None:
                    continue
                if not self._places.acquire(blocking=False):
                    connection.close()
                    continue
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _next(self) -> socket.socket | None:
        """The next client, or None for one that is gone already, or for which there is no descriptor now."""
        try:
            return self._listener.accept()[0]
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            if error.errno != errno.ECONNABORTED:
                time.sleep(0.05)  # it is still in the queue: do not spin until a descriptor is free
            return None

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(ConnectionError, TimeoutError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if admit(connection, self._secrets):
                    self._answer_all(connection)
        finally:
            self._places.release()

    def _answer_all(self, connection: socket.socket) -> None:
        """Until the client goes, or asks for what there is not."""
        header = bytearray(REQUEST.size)
        with contextlib.ExitStack() as stack:
            answers = None
            fits = True
            while fits:
                read_exactly(connection, memoryview(header))
                kind, row_bytes, tables, count, extent = REQUEST.unpack(header)
                if kind in self._partners:
                    self._partners[kind](connection, count)
                    continue
                answers = answers or _Answers(connection, stack.enter_context(self._table()))
                if kind == b"rows":
                    fits = answers.rows(row_bytes, tables, count, extent)
                else:
                    fits = kind == b"read" and answers.bytes_at(count, extent)

    def close(self) -> None:
        self._listener.close()


def main() -> None:
    """The helper process: fill a table of the given size and serve its rows."""
    nbytes = int(sys.argv[1])
    secret = bytes.fromhex(sys.stdin.readline())
    array = np.empty(nbytes, np.uint8)
    content.fill_array(array, lambda share: print(f"{share:.3f}", flush=True))

    @contextmanager
    def table() -> Iterator[NDArray[np.uint8]]:
        yield array

    server = RowServer(table, (secret,))
    print(f"port {server.port}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the reader is gone
        main()
    os._exit(1)
