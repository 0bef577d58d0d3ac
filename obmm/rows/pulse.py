# SPDX-License-Identifier: Apache-2.0
"""A reader's eye on the owner's heartbeat (Engram specification 5.3 and 11.3, rule 6)."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.mapping.native_rows import NativeTable, aim
from obmm.rows.engine import GatherEngine
from obmm.rows.memory import RowMemory

PATIENCE = 3.0
"""Seconds without a beat after which the owner counts as lost."""
_EVERY = 1.0
_MOMENT_NS = 100_000_000


class Pulse(Owner):
    """Reads the counter once a second, in the engine's threads, on request; no caller waits for the memory.

    An owner that has never beaten is not missed: a region may be served without a heartbeat.
    """

    def __init__(self, engine: GatherEngine, memory: RowMemory, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._engine = engine
        self._memory = memory
        self._lock = threading.Lock()
        self._ticket = 0
        self._sent = -math.inf
        self._count = 0
        self._changed = 0.0
        self._lost = False
        # the counter is a table of one row, whose number is 0
        self._table = NativeTable(memory.heartbeat_address, 1, 8, 8, memory.gates[:1], nc=memory.nc, huge=False)
        self._ids = ffi.new("int64_t *")
        self._word = ffi.new("uint64_t *")
        self._request = self._table.request()
        aim(self._request, self._ids, 8, 1, ffi.cast("uint8_t *", self._word))
        self._outcome = ffi.new("struct obmm_outcome *")

    def lost(self) -> bool:
        """Whether the owner has beaten and has not for `PATIENCE` seconds, as far as was looked.  Never blocks."""
        now = self._clock()
        if self._ticket or now - self._sent >= _EVERY:
            # an interrupt between a lock that is only tried and its release would leave it held for ever
            with self._lock:
                self._look(now)
        return self._lost

    def settle(self) -> None:
        """Wait for a read that is under way, a moment at most: the memory is about to be closed."""
        with self._lock:
            if self._ticket and not lib.obmm_ticket_collect(self._engine.pointer, self._ticket, _MOMENT_NS):
                self._engine.over(self._running, self._ticket)
                self._ticket = 0

    @property
    def age(self) -> float | None:
        """Seconds since the counter was last seen to change; None before the first beat."""
        return self._clock() - self._changed if self._count else None

    def _look(self, now: float) -> None:
        if self._ticket:
            result = lib.obmm_ticket_collect(self._engine.pointer, self._ticket, 0)
            if result == -errno.ETIMEDOUT:
                self._lost = bool(self._count) and now - self._sent >= PATIENCE
                return
            self._engine.over(self._running, self._ticket)
            self._ticket = 0
            if not result and not self._outcome.status:
                self._judge(int(self._word[0]), now)
        if now - self._sent >= _EVERY:
            self._ask(now)

    def _judge(self, count: int, now: float) -> None:
        """A count that is the same as in an earlier read says something only of the time between the two."""
        if count != self._count:
            self._count, self._changed, self._lost = count, now, False
        else:
            self._lost = bool(count) and self._sent - self._changed >= PATIENCE

    def _ask(self, now: float) -> None:
        ticket, bad = ffi.new("uint64_t[1]"), ffi.new("unsigned int *")
        read = (self._memory, self._table, self._request, self._ids, self._word, self._outcome)
        running = self._engine.hold(read, ticket, self)
        if lib.obmm_engine_submit(self._engine.pointer, self._request, 1, 1, self._outcome, ticket, bad):
            self._engine.refused(running)
        else:
            self._running = running
            self._ticket, self._sent = ticket[0], now
