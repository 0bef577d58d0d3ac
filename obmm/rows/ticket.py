# SPDX-License-Identifier: Apache-2.0
"""A gather that runs in the background."""

from __future__ import annotations

import errno
import platform
import time
import weakref

from obmm._native import ffi, lib
from obmm.arguments import seconds
from obmm.closing import Owner
from obmm.errors import ClosedError, ObmmError
from obmm.rows.engine import TICKETS, GatherEngine, Running
from obmm.rows.errors import late, refused
from obmm.rows.requests import Requests

_collect = lib.obmm_ticket_collect
# whether a CPU makes loads in the order of the program, so that who saw the end sees the rows
_LOADS_IN_ORDER = platform.machine() in ("x86_64", "AMD64")
_SLICE = 0.1  # seconds between two looks at Python's signal handlers


class Ticket(Owner):
    """One submitted gather.  It keeps ids, output and tables alive until the gather has come back, abandoned or not.

    Made by `RowStore.submit`.  ClosedError once it was given up.
    """

    __slots__ = ("__weakref__", "_engine", "_index", "_number", "_open", "_ready_at", "_requests", "_running", "_words")

    def __init__(self, engine: GatherEngine, running: Running, number: int, requests: Requests, index: int) -> None:
        self._engine = engine
        self._running = running
        self._number = number
        self._requests = requests
        self._index = index
        self._open = True
        self._words = requests.words
        self._ready_at = requests.ready_at(index)

    def done(self) -> bool:
        """Whether the gather has ended; never blocks."""
        return not self._open or self._collect(0)

    def ready(self, version: int) -> bool:
        """Whether it has ended well, with rows of this content `version` (or of memory that carries none).

        One load: no call, no lock, and no other Python thread is let in.
        """
        found = self._words[self._ready_at]
        if found != version + 1 and found != 1:
            return False
        if not _LOADS_IN_ORDER:
            lib.obmm_fence_load()
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds (None: for ever); False when the gather is still running.

        Python's signal handlers run meanwhile.
        """
        deadline = None if timeout is None else time.monotonic() + seconds("GATHER", "timeout", timeout)
        while self._open:
            left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
            if self._collect(max(int(left * 1e9), 0)):
                break
            if deadline is not None and time.monotonic() >= deadline:
                return self._collect(0)
        return True

    def result(self, timeout: float | None = None) -> int:
        """Wait at most `timeout` seconds, then the rows that were read.

        RemoteMemoryError: a load faulted.  StaleHandleError: published meanwhile.  GatherDeadlineError: `timeout` passed, the
        gather still runs.  ClosedError: the memory was closed, or the gather abandoned.
        """
        if self._open and not self.wait(timeout):
            raise late(self._requests.spec(self._index).table_id, timeout or 0.0)
        return self._requests.finish(self._index)

    @property
    def generation(self) -> int:
        """The content version that the rows are of, once done; 0 for tables without a region header."""
        return int(self._requests.each[self._index].version)

    @property
    def seconds(self) -> float:
        """From submission to the end, once done."""
        return float(self._requests.each[self._index].nanoseconds) * 1e-9

    def abandon(self) -> None:
        """Abandon the result.  The gather ends at its next chunk; `out` may be written until `done`."""
        if self._open:
            lib.obmm_ticket_abandon(self._engine.pointer, self._number)

    def _collect(self, nanoseconds: int) -> bool:
        result = _collect(self._engine.pointer, self._number, nanoseconds)
        if result:
            if result == -errno.ETIMEDOUT:
                return False
            if result == -errno.EOWNERDEAD:
                raise ClosedError.of(self, "belongs to the parent process")
        self._open = False
        self._engine.over(self._running, self._number)
        return True

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._engine.drop(self._running, self._number)

    def __repr__(self) -> str:
        table = self._requests.spec(self._index).table_id
        return f"<Ticket table {table!r} {'done' if not self._open else 'running'}>"


class _Claim:
    """Whoever submits, until the tickets are made."""

    __slots__ = ("__weakref__",)


def submit(engine: GatherEngine, requests: Requests, threads: int) -> list[Ticket]:
    """Queue all of `requests` in one native call."""
    engine.reap()
    n = requests.count
    tickets, bad = ffi.new("uint64_t[]", n), ffi.new("unsigned int *")
    claim = _Claim()
    running = engine.hold(requests, tickets, claim)
    result = lib.obmm_engine_submit(engine.pointer, requests.array, n, threads, requests.outcomes, tickets, bad)
    if not result:
        made = [Ticket(engine, running, tickets[i], requests, i) for i in range(n)]
        running.owners = [weakref.ref(ticket) for ticket in made]
        return made
    engine.refused(running)
    if result in (-errno.ERANGE, -errno.EFAULT, -errno.EINVAL):
        raise requests.failure(bad[0])
    if result == -errno.ESHUTDOWN:
        raise ClosedError.of(engine)
    if result == -errno.EOWNERDEAD:
        raise refused("submit() in a forked child", "make an engine and a store of its own", "11.3-11")
    if n > TICKETS:
        raise refused(f"{n} gathers in one call", f"at most {TICKETS}")
    raise ObmmError(
        -result,
        f"GATHER: no {n} free tickets: {engine.in_use} gathers are not waited for [Engram specification 11.3-4]; "
        "fix: wait for tickets, or drop them",
        operation="GATHER",
    )
