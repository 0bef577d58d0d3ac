# SPDX-License-Identifier: Apache-2.0
"""The buffers of one caller: made once, filled step by step, never written while somebody may read them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from obmm.errors import ObmmError
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus
from obmm.rows import GatherDeadlineError, PreparedStep, RowStore

PREFILL_ROWS = 4096
"""From that many rows of a step on, the longer deadline counts."""


_PAUSE = 1.0  # seconds without gathers on the caller's thread, after one that failed or took too long


class Fetched(NamedTuple):
    """Rows uint8 ``[n, row_bytes]`` at an address that stays, valid until the lane's next step; zeros unless `ok`."""

    rows: NDArray[np.uint8]
    ok: bool


class Source(Protocol):
    """Where the store of now comes from."""

    @property
    def version(self) -> int: ...
    @property
    def store(self) -> RowStore: ...
    @property
    def away(self) -> float: ...
    def report(self, store: RowStore, error: ObmmError) -> None: ...
    def wait_for(self, version: int, timeout: float) -> bool: ...


class Stepping(Protocol):
    """What a client asks of a lane; see `Lane`."""

    lock: threading.Lock
    capacity: int
    turn: int
    """Counts steps, for who begins them: another number, another step's rows."""

    def start(self, ids: Sequence[NDArray[Any]]) -> int | None: ...
    def fetch(self, ids: Sequence[NDArray[Any]]) -> int | None: ...
    def take(self, table: str) -> Fetched: ...
    def close(self) -> None: ...


class FixedStore:
    """A store that somebody else attached, and closes."""

    version = 1
    away = 0.0

    def __init__(self, store: RowStore) -> None:
        self.store = store

    def report(self, store: RowStore, error: ObmmError) -> None:
        """No caller gets another one."""

    def wait_for(self, version: int, timeout: float) -> bool:
        return False


def patience(deadlines: Deadlines, rows: int) -> float:
    """Seconds that a step of so many rows of each table is waited for."""
    return deadlines.prefill if rows >= PREFILL_ROWS else deadlines.decode


class Lane:
    """Gathers of the same tables, one step at a time: `start` or `fetch`, then `take` once for each table, in any order.

    The holder of `lock` owns the step and its rows.  Nothing here raises for what the peer did; `failed` is told.

    A step whose rows are waited for at once, or of so few that handing it over would cost more than gathering it, is
    gathered on the caller's thread.  It cannot be called off when a load hangs: after one that failed or came late,
    steps are handed over again for a while, and waited for until their deadline.
    """

    def __init__(
        self,
        source: Source,
        tables: Sequence[str],
        capacity: int,
        deadlines: Deadlines,
        allocate: Callable[[int], Any] | None,
        failed: Callable[[ObmmError], None],
    ) -> None:
        self.lock = threading.Lock()
        self.turn = 0
        self.capacity = capacity
        self.tables = tuple(tables)
        self._place = {table: place for place, table in enumerate(self.tables)}
        self._source = source
        self._deadlines = deadlines
        self._failed = failed
        self._version = source.version
        self._ids: list[NDArray[Any]] = []
        self._may_retry = False
        self._why: ObmmError | None = None
        store = source.store
        self._prefetcher = EngramPrefetcher(
            store,
            [PrefetchLayer(place, table, 1) for place, table in enumerate(self.tables)],
            capacity,
            depth=1,
            staging=allocate or "pinned",
            invalid="zero",
            deadlines=deadlines,
            recheck=False,  # owners withdraw before they publish; the link looks behind the caches, once a second
        )
        # On the caller's thread: from numbers of our own to where the prefetcher hands rows out.
        self._numbers = [np.empty(capacity, np.int64) for _ in self.tables]
        self._home = [self._prefetcher.rows_u8(place)[:, 0] for place in range(len(self.tables))]
        self._prepare(store)
        self._here: bool | None = (
            None  # whether the step was gathered on this thread, and its rows came; None: it was not
        )
        self._running: set[int] = set()  # tables whose background gather may still write where rows are handed out
        self._handed_over_until = 0.0

    def start(self, ids: Sequence[NDArray[Any]]) -> int | None:
        """Queue the gathers of row numbers ``[n]``, the same n for every table; -1 gives zeros.  Returns at once.

        Few rows are there already then: how many are zeros because of their number; None when that is not known.
        """
        self._end()
        self._new_step(ids)
        zeros = self._gather_here() if len(self._ids[0]) <= self._few else None
        if self._here is None:
            self._begin()
        return zeros

    def fetch(self, ids: Sequence[NDArray[Any]]) -> int | None:
        """The same, for who takes the rows at once: gathered on this thread, however many there are."""
        self._end()
        self._new_step(ids)
        zeros = self._gather_here()
        if self._here is None:
            self._begin()
        return zeros

    def take(self, table: str) -> Fetched:
        """The rows of one table; waits for them until the deadline.

        A table that was taken away under the step is waited for as long, once, unless rows of the step were handed out:
        those of one step are of one publication.
        """
        place = self._place[table]
        n = len(self._ids[place])
        if self._here is not None:
            rows, ok = self._home[place][:n], self._here or not n
        else:
            rows, ok = self._consume(place, n)
        self._may_retry = False
        if not ok and self._why is not None:
            self._failed(self._why)
            self._why = None  # once a step
        return Fetched(rows, ok)

    @property
    def gathered(self) -> bool:
        """Whether the step was gathered on the caller's thread: `take` waits for nothing."""
        return self._here is not None

    def close(self) -> None:
        """Late gathers keep the memory that they write."""
        self._prefetcher.close(force=True, timeout=0)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _new_step(self, ids: Sequence[NDArray[Any]]) -> None:
        self._ids = [numbers.reshape(-1, 1) for numbers in ids]
        self._may_retry = True
        self._why = None
        self._here = None

    def _prepare(self, store: RowStore) -> None:
        gathers = list(zip(self.tables, self._numbers, self._home, strict=True))
        self._prepared: PreparedStep = store.prepare_many(gathers, invalid="zero")
        self._few = min(store.plans[table].asynchronous_rows for table in self.tables) // len(self.tables)
        self._counts = [self.capacity] * len(self.tables)

    def _gather_here(self) -> int | None:
        """The step on this thread, if nothing speaks against it -> rows that are zeros because of their number."""
        began = time.monotonic()
        if self._running or began < self._handed_over_until:
            return None
        n = len(self._ids[0])
        within = self._patience
        try:
            store = self._source.store
            if not store.healthy():
                return None
            if self._source.version != self._version:
                self._attach(store)
            for kept, numbers in zip(self._numbers, self._ids, strict=True):
                kept[:n] = numbers[:, 0]
            if self._counts[0] != n:
                self._counts = [n] * len(self.tables)
            zeros = self._prepared.gather(self._counts, within=within, until=began + within)
        except GatherDeadlineError as error:
            self._handed_over_until = time.monotonic() + _PAUSE
            self._lost(error)
            for rows in self._home:
                rows[:n] = 0
            self._here = False
            return 0
        except ObmmError:  # the background finds out what it is, and what follows
            self._handed_over_until = time.monotonic() + _PAUSE
            return None
        if time.monotonic() - began > within:
            self._handed_over_until = time.monotonic() + _PAUSE
        self._here = True
        return zeros

    def _attach(self, store: RowStore) -> None:
        version = self._source.version
        self._prefetcher.attach(store)
        self._prepare(store)
        self._version = version

    def _consume(self, place: int, n: int) -> tuple[NDArray[np.uint8], bool]:
        """What the background gathered."""
        rows = self._prefetcher.consume(place)
        if rows.status is not RowsStatus.OK and n:
            self._end()
            if self._may_retry and self._comes_back():
                self._begin()
                rows = self._prefetcher.consume(place)
                if rows.status is not RowsStatus.OK:
                    self._end()
        ok = rows.status is RowsStatus.OK
        if ok and rows.buffer.ctypes.data == self._home[place].ctypes.data:
            self._running.discard(place)
        return rows.buffer[:n, 0], ok or not n

    @property
    def _patience(self) -> float:
        return patience(self._deadlines, len(self._ids[0]))

    def _begin(self) -> None:
        n = len(self._ids[0])
        try:
            store = self._source.store
            if self._source.version != self._version:
                self._attach(store)
            self._running.update(range(len(self.tables)))
            self._prefetcher.begin(self._ids, n, phase="prefill" if n >= PREFILL_ROWS else "decode")
            self._prefetcher.start()
        except ObmmError as error:
            self._lost(error)

    def _end(self) -> None:
        """The step is over, for the prefetcher; keep its error for who takes rows."""
        try:
            self._prefetcher.drain()
        except ObmmError as error:
            self._lost(error)

    def _lost(self, error: ObmmError) -> None:
        self._why = self._why or error
        try:
            store = self._source.store
        except ObmmError:
            return
        if self._source.version == self._version:
            self._source.report(store, error)

    def _comes_back(self) -> bool:
        """Whether the table was taken away, and another one is attached in time."""
        patience = self._patience
        if self._source.version == self._version and not 0 < self._source.away < patience:
            return False
        return self._source.wait_for(self._version, patience)
