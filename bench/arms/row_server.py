# SPDX-License-Identifier: Apache-2.0
"""The far side of the TCP arm: a table of known content, rows on request over a plain socket.

``python -m obmm.bench.arms.row_server BYTES [HOST PORT]`` prints its port, answers until standard input ends.  Loopback or trusted
networks only: it authenticates nobody (and serves nothing but a known pattern).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading

import numpy as np
from numpy.typing import NDArray

from obmm.bench import content

REQUEST = struct.Struct("<4sIIQQ")
"""Operation, row bytes, tables, ids per table (or offset), bytes of the first so many of a table (or length)."""
MOST = 1 << 30


def read_exactly(connection: socket.socket, buffer: memoryview) -> None:
    """Fill `buffer`; ConnectionError at the end of the stream."""
    while buffer:
        got = connection.recv_into(buffer)
        if not got:
            raise ConnectionError("the other side closed the connection")
        buffer = buffer[got:]


def answer(connection: socket.socket, array: NDArray[np.uint8]) -> None:
    """One client, until it goes."""
    header = bytearray(REQUEST.size)
    out = np.empty(1 << 20, np.uint8)
    while True:
        read_exactly(connection, memoryview(header))
        kind, row_bytes, tables, count, extent = REQUEST.unpack(header)
        if kind == b"read":
            if count + extent > len(array):
                return
            connection.sendall(array[count : count + extent])
            continue
        size = tables * count * row_bytes
        if kind != b"rows" or not row_bytes or not tables or size > MOST or extent * tables > len(array):
            return
        ids = np.empty((tables, count), np.int64)
        read_exactly(connection, memoryview(ids).cast("B"))
        if len(out) < size:
            out = np.empty(size, np.uint8)
        rows = out[:size].reshape(tables, count, row_bytes)
        for number in range(tables):
            part = array[number * extent : (number + 1) * extent]
            packed = part[: extent // row_bytes * row_bytes].reshape(-1, row_bytes)
            np.take(packed, ids[number], axis=0, out=rows[number], mode="clip")
        connection.sendall(rows.reshape(-1))


class RowServer:
    """Listens and answers each client on a thread of its own, over an array of known content."""

    def __init__(self, array: NDArray[np.uint8], host: str = "127.0.0.1", port: int = 0) -> None:
        self._array = array
        self._listener = socket.create_server((host, port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="obmm-bench-rows", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer(connection, self._array)

    def close(self) -> None:
        self._listener.close()


def main() -> None:
    nbytes = int(sys.argv[1])
    host, port = (sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 3 else ("127.0.0.1", 0)
    array = np.empty(nbytes, np.uint8)
    content.fill(
        nbytes,
        lambda at, words: np.copyto(array[at : at + words.nbytes].view(np.uint64), words),
        lambda share: print(f"{share:.3f}", flush=True),
    )
    server = RowServer(array, host, port)
    print(f"port {server.port}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
