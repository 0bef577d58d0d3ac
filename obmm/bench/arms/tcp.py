# SPDX-License-Identifier: Apache-2.0
"""Plain TCP: one request with all ids, one answer with all rows, nothing else on the wire."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from obmm.bench.arms.arm import Arm, Kind, Memory, Progress, Tables, Unavailable
from obmm.bench.far import Far, connection
from obmm.bench.row_protocol import REQUEST, new_secret, read_exactly
from obmm.children import python_module
from obmm.exchange.net import is_loopback


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
        request, target = np.empty(len(header) + ids.nbytes, np.uint8), out.data.cast("B")
        request[: len(header)] = np.frombuffer(header, np.uint8)
        numbers = ids.reshape(-1).view(np.uint8)

        def run() -> None:
            request[len(header) :] = numbers
            self._ask(request.data, target)

        return run

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        self._ask(REQUEST.pack(b"read", 0, 0, offset, len(out)), out.data)

    def _ask(self, request: bytes | memoryview, answer: memoryview) -> None:
        try:
            self._connection.sendall(request)
            read_exactly(self._connection, answer)
        except BaseException:  # what is still to come of the answer would be taken for the next one
            self._connection.close()
            raise


class TcpArm(Arm):
    """A process that holds the table: of this host, or the row server of the far node ``obmm bench serve``."""

    name, title = "tcp", "plain TCP"
    kind: Kind = "loopback"

    def __init__(self, far: Far | None = None) -> None:
        self._far = far

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        with ExitStack() as stack:
            try:
                if self._far:
                    host, port = self._far.rows
                    backend, nbytes = f"TCP to {host}:{port}", self._far.nbytes
                    one = stack.enter_context(self._far.connection())
                else:
                    address, secret = _row_server(stack, nbytes, progress)
                    backend = "TCP over loopback, another process of this host"
                    one = stack.enter_context(connection(address, secret))
            except OSError as error:
                raise Unavailable(f"the row server does not answer: {error}") from error
            here = self._far is None or self._far.same_host or is_loopback(one.getpeername()[0])
            self.kind = "loopback" if here else "network"
            yield TcpMemory(one, nbytes, backend)


def _row_server(stack: ExitStack, nbytes: int, progress: Progress) -> tuple[tuple[str, int], bytes]:
    """(address, secret) of a process that holds `nbytes`; `stack` ends it."""
    command = python_module("obmm.bench.arms.row_server", nbytes)
    pipe = subprocess.PIPE
    process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
    stack.callback(process.kill)
    assert process.stdin is not None
    assert process.stdout is not None
    secret = new_secret()
    process.stdin.write(secret.hex() + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("port "):
            return ("127.0.0.1", int(line.split()[1])), secret
        progress(float(line))
    raise Unavailable(f"the row server ended with status {process.wait()}")
