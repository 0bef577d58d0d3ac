# SPDX-License-Identifier: Apache-2.0
"""A `RowSource` over local arrays that does wrong what a fabric can do wrong, when it is told to."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.errors import RemoteMemoryError, StaleHandleError


@dataclass(frozen=True)
class MemoryTable:
    n_rows: int
    row_bytes: int
    neutral_zero: bool = False
    salt: int = 0

    def rows(self, ids: NDArray[np.int64], generation: int) -> NDArray[np.uint8]:
        """Every byte is a function of row number, place in the row, table and generation."""
        place = np.arange(self.row_bytes, dtype=np.uint64)
        number = np.asarray(ids, dtype=np.uint64)[..., None]
        mixed = (number * np.uint64(0x9E3779B97F4A7C15)) ^ (place * np.uint64(0xBF58476D1CE4E5B9))
        mixed ^= np.uint64(self.salt * 0x1000193 + generation * 0x94D049BB)
        return (mixed >> np.uint64(29)).astype(np.uint8)


def failed_rows(error: RemoteMemoryError, mask: NDArray[np.bool_]) -> RemoteMemoryError:
    error.failed_rows = mask
    return error


def fault() -> RemoteMemoryError:
    return RemoteMemoryError(errno.EFAULT, "the peer is gone", operation="GATHER", kind="SIGBUS")


class MemoryTicket:
    def __init__(self, work: Callable[[], tuple[int, int]], content: Callable[[], int] = lambda: 0) -> None:
        self._work = work
        self._content = content
        self._event = threading.Event()
        self._result: int | BaseException = 0
        self.generation = 0
        self.abandoned = False
        self.seconds = 0.0
        self._began = time.monotonic()

    def run(self) -> None:
        try:
            self._result, self.generation = self._work()
        except Exception as error:
            self._result = error
            if getattr(error, "failed_rows", None) is not None:  # the other rows came, and are of a publication
                self.generation = self._content()
        self.seconds = time.monotonic() - self._began
        self._event.set()

    def done(self) -> bool:
        return self._event.is_set()

    def ready(self, version: int) -> bool:
        return self._event.is_set() and not isinstance(self._result, BaseException) and self.generation == version

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(timeout)

    def result(self) -> int:
        assert self._event.is_set()
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    def abandon(self) -> None:
        self.abandoned = True


@dataclass
class MemoryStep:
    source: MemorySource
    requests: Sequence[Any]
    invalid: str

    def submit(self) -> list[MemoryTicket]:
        return self.source.submit_many(self.requests, self.invalid)


@dataclass
class MemorySource:
    """`before` runs in the worker before each gather and may raise, sleep or wait; `flip` bumps the generation in it."""

    tables: dict[Any, MemoryTable]
    path: str = "cacheable"
    attach_seconds: float = 0.25
    region: str = "memory"
    heartbeat_age: float | None = None
    hot: dict[Any, Any] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    flip: bool = False
    alive: bool = True
    canary_ok: bool = True
    content: int = 2
    rows_read: int = 0
    gathers: int = 0
    probes: int = 0
    asked_for: set[str] = field(default_factory=set)
    """Every `faulty` that a gather was prepared with."""
    workers: int = 1
    _queue: queue.SimpleQueue[MemoryTicket | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self.workers)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(5)

    def _work(self) -> None:
        while (ticket := self._queue.get()) is not None:
            ticket.run()

    def prepare_many(
        self, requests: Sequence[Any], *, invalid: str = "error", faulty: str = "error", recheck: bool = False
    ) -> MemoryStep:
        self.asked_for.add(faulty)
        return MemoryStep(self, requests, invalid)

    def submit_many(self, requests: Sequence[Any], invalid: str) -> list[MemoryTicket]:
        tickets = [MemoryTicket(lambda r=request: self._gather(*r, invalid), self.generation) for request in requests]
        for ticket in tickets:
            self._queue.put(ticket)
        return tickets

    def _gather(self, table_id: Any, ids: Any, out: Any, invalid: str) -> tuple[int, int]:
        self.gathers += 1
        if self.before is not None:
            self.before()
        generation = self.content
        if self.flip:
            self.content += 2
        table = self.tables[table_id]
        inside = (ids >= 0) & (ids < table.n_rows)
        assert invalid == "zero" or inside.all()
        out[:] = table.rows(np.where(inside, ids, 0), generation)
        out[~inside] = 0
        self.rows_read += int(inside.sum())
        if generation != self.content:
            raise StaleHandleError(errno.ESTALE, "published meanwhile", operation="GATHER", reason="generation")
        return int(inside.sum()), generation

    def generation(self) -> int:
        return self.content

    def healthy(self) -> bool:
        return self.alive

    def submit_probe(self) -> MemoryTicket:
        self.probes += 1

        def probe() -> tuple[int, int]:
            if self.before is not None:
                self.before()
            if not self.canary_ok:
                raise fault()
            return 16, self.content

        ticket = MemoryTicket(probe)
        self._queue.put(ticket)
        return ticket


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition that another thread brings about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.0005)
