# SPDX-License-Identifier: Apache-2.0
"""Plain TCP: one request with all ids, one answer with all rows, nothing else on the wire."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from obmm.bench.arms.arm import Arm, Kind, Memory, Progress, Tables, Unavailable
from obmm.bench.arms.row_server import REQUEST, read_exactly


class TcpMemory(Memory):
    """A table behind a socket."""

    pages = "4K"

    def __init__(self, connection: socket.socket, nbytes: int, backend: str) -> None:
        self._connection = connection
        self.nbytes, self.backend = nbytes, backend

    def tables(self, count: int, row_bytes: int, nbytes: int | None = None) -> Tables:
        return Tables.divide(nbytes or self.nbytes, count, row_bytes, row_bytes)

    def gather(
        self, tables: Tables, ids: NDArray[np.int64], out: NDArray[np.uint8], threads: int
    ) -> Callable[[], object]:
        extent = int(tables.bases[1]) if tables.count > 1 else tables.rows * tables.stride
        header = REQUEST.pack(b"rows", tables.row_bytes, tables.count, ids.shape[1], extent)
        request, target = np.empty(len(header) + ids.nbytes, np.uint8), memoryview(out).cast("B")
        request[: len(header)] = np.frombuffer(header, np.uint8)
        numbers = ids.reshape(-1).view(np.uint8)

        def run() -> None:
            request[len(header) :] = numbers
            self._connection.sendall(request)
            read_exactly(self._connection, target)

        return run

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        self._connection.sendall(REQUEST.pack(b"read", 0, 0, offset, len(out)))
        read_exactly(self._connection, memoryview(out))


class TcpArm(Arm):
    """A process that holds the table: of this host, or `address` (host, port, bytes) of ``obmm bench serve``."""

    name, title = "tcp", "plain TCP"
    kind: Kind = "network"

    def __init__(self, address: tuple[str, int, int] | None = None, why_not: str = "") -> None:
        self._address, self._why_not = address, why_not

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        if self._why_not:
            raise Unavailable(self._why_not)
        if self._address:
            host, port, nbytes = self._address
            with self._connected(host, port) as connection:
                yield TcpMemory(connection, nbytes, f"TCP to {host}:{port}")
            return
        command = [sys.executable, "-m", "obmm.bench.arms.row_server", str(nbytes)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
            try:
                port = 0
                for line in server.stdout or ():
                    if line.startswith("port "):
                        port = int(line.split()[1])
                        break
                    progress(float(line))
                if not port:
                    raise Unavailable(f"the row server ended with status {server.wait()}")
                with self._connected("127.0.0.1", port) as connection:
                    yield TcpMemory(connection, nbytes, "TCP over loopback, another process of this host")
            finally:
                server.kill()

    @contextmanager
    def _connected(self, host: str, port: int) -> Iterator[socket.socket]:
        try:
            connection = socket.create_connection((host, port), 10)
        except OSError as error:
            raise Unavailable(f"{host}:{port} does not answer: {error}") from error
        with connection:
            connection.settimeout(60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection
