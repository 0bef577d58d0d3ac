# SPDX-License-Identifier: Apache-2.0
"""The node that holds the tables, as the measuring node sees it: always another process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import obmm
from obmm.bench.row_protocol import introduce


@dataclass(frozen=True, slots=True)
class Far:
    """`peer` lends the regions of `obmm.bench.twonodes`, `nbytes` of table; `rows` is the row server's host and port."""

    peer: obmm.Peer
    nbytes: int
    rows: tuple[str, int]
    secret: bytes = field(repr=False)
    same_host: bool = False
    """Whether it is this very machine, whatever address leads there: then nothing between the two is a network."""

    @contextmanager
    def connection(self) -> Iterator[socket.socket]:
        """A connection to the row server, admitted.  OSError when there is none."""
        with connection(self.rows, self.secret) as one:
            yield one


@contextmanager
def connection(address: tuple[str, int], secret: bytes) -> Iterator[socket.socket]:
    """A connection to a row server that admits holders of `secret`.  OSError when it does not answer or refuses."""
    with socket.create_connection(address, 10) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        introduce(one, secret)
        one.settimeout(60)
        yield one
