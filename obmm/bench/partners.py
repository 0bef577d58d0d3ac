# SPDX-License-Identifier: Apache-2.0
"""The far sides of ping-pongs, run by the node that holds the tables; `obmm.bench.workloads.pingpong` is the near side."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import obmm
from obmm.bench.compiled import ffi, library
from obmm.bench.row_protocol import LATE, READY
from obmm.region.region import Region

PATIENCE_NS = 10_000_000_000
MOST_ROUNDS = 1_000_000
FLAG_BYTES = 128
PING, PONG = 0, 64
"""Where the flags are: the near side stores to the first, the far side to the second."""


@contextmanager
def flags(region: Region) -> Iterator[tuple[Any, Any]]:
    """(ping, pong) of a region, non-cacheable."""
    with region.map("rw", cache="nc") as mapping:
        ping, pong = (ffi.cast("uint64_t *", mapping.address + at) for at in (PING, PONG))
        yield ping, pong


class FlagEcho:
    """Answers each flag with the other."""

    def __init__(self, flag_region: Region) -> None:
        self._flags = flag_region

    def __call__(self, connection: socket.socket, rounds: int) -> None:
        with flags(self._flags) as (ping, pong):
            ping[0] = pong[0] = 0
            connection.sendall(READY)
            late = rounds > MOST_ROUNDS or library().bench_echo(ping, pong, rounds, PATIENCE_NS)
        connection.sendall(LATE if late else READY)


class HandOver:
    """Takes the right to read when the flag comes, reads, takes the right to write, answers, and gives it back."""

    def __init__(self, flag_region: Region, owned: Region) -> None:
        self._flags, self._owned = flag_region, owned

    def __call__(self, connection: socket.socket, rounds: int) -> None:
        with flags(self._flags) as (ping, pong), self._owned.map("none", cache="cc") as mapping:
            ping[0] = pong[0] = 0
            connection.sendall(READY)
            right = rounds <= MOST_ROUNDS
            for number in range(1, rounds + 1):
                if not right or library().bench_await(ping, number, PATIENCE_NS):
                    right = False
                    break
                right = take(mapping) == number
                give(mapping, ~number & 0xFFFFFFFF)
                library().bench_tell(pong, number)
        connection.sendall(READY if right else LATE)


def give(mapping: obmm.Mapping, value: int) -> None:
    """Store `value` under the right to write, and give the right back: it is written back to memory."""
    unit = mapping.granularity
    mapping.acquire("w", 0, unit)
    mapping.store("<u8", 0, value)
    mapping.release(0, unit)


def take(mapping: obmm.Mapping) -> int:
    """What a load under the right to read sees."""
    unit = mapping.granularity
    mapping.acquire("r", 0, unit)
    value = int(mapping.load("<u8", 0))
    mapping.release(0, unit)
    return value
