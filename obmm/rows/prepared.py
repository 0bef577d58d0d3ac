# SPDX-License-Identifier: Apache-2.0
"""A gather whose addresses are resolved once."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

from obmm._native import ffi, lib
from obmm.arguments import whole
from obmm.closing import Owner
from obmm.rows.engine import GatherEngine
from obmm.rows.errors import late, refuse_threads, refused
from obmm.rows.memory import RowMemory
from obmm.rows.requests import Requests
from obmm.rows.ticket import Ticket, submit

_gather = lib.obmm_engine_gather
_gather_all = lib.obmm_engine_gather_all
_call = lib.obmm_engine_call
_NEVER = float(1 << 63)  # nanoseconds


class PreparedGather(Protocol):
    """Made by `RowStore.prepare`.  Not for two threads at once: they would share one outcome."""

    def __call__(self, threads: int = 0) -> int:
        """Gather now -> rows read.  Errors as `RowStore.gather_into`."""
        ...


def prepared_gather(engine: GatherEngine, memory: RowMemory, requests: Requests) -> PreparedGather:
    """A function, not an object with ``__call__``: Python enters it in half the time."""
    check = None if memory.gated else memory.check
    ready = ffi.new("struct obmm_call *", (engine.pointer, requests.array, requests.outcomes))

    def gather(threads: int = 0) -> int:
        if check is not None:
            check()
        if threads:
            refuse_threads(threads)
            rows: int = _gather(engine.pointer, requests.array, threads, requests.outcomes)
        else:
            rows = _call(ready)
        if rows >= 0:
            return rows
        return requests.finish()

    return gather


class PreparedStep(Owner):
    """Several gathers of a step that recur with the same buffers.  Made by `RowStore.prepare_many`.

    At most one submission at a time: its tickets must be done before the next.
    """

    __slots__ = ("_bad", "_engine", "_memory", "_requests", "_resized", "_sizes")

    def __init__(self, engine: GatherEngine, memory: RowMemory, requests: Requests) -> None:
        self._engine = engine
        self._memory = memory
        self._requests = requests
        self._sizes = [request.count for request in requests.array]
        self._resized = False  # whether the last submission had other counts
        self._bad = ffi.new("unsigned int *")

    def submit(self, counts: Sequence[int] | None = None, threads: int = 0) -> list[Ticket]:
        """Start all of them in one native call -> a ticket for each.  The ids are read anew.

        `counts`: how many ids from the front each gather has this time; default: all that were prepared.

        `threads`: 0 leaves it to the plan.  ObmmArgumentError for counts or ids that cannot be; nothing was started then.
        """
        self._memory.check()
        if threads:
            refuse_threads(threads)
        self._resize(counts)
        return submit(self._engine, self._requests, threads)

    def gather(self, counts: Sequence[int] | None = None, *, within: float, until: float) -> int:
        """All of them now, on the calling thread, one after the other -> how many rows are zeros because of their id.

        For who would wait at once: no hand-over, and one native call.  `counts`: as for `submit`.  `until`, of
        `time.monotonic`: GatherDeadlineError, naming `within` seconds, when it is over before the last piece was begun.  A
        load that hangs is not cut short, as that of `submit`'s tickets is: keep to those for a peer that has been slow.
        Other errors as `RowStore.gather_into`; the rows are of one publication.  Not with ``faulty="zero"``.
        """
        self._memory.check()
        self._resize(counts)
        requests = self._requests
        nanoseconds = int(min(max(until * 1e9, 0.0), _NEVER))
        status = _gather_all(
            self._engine.pointer, requests.array, requests.count, nanoseconds, requests.outcomes, self._bad
        )
        if status:
            index = self._bad[0]
            raise late(requests.spec(index).table_id, within) if status == -errno.ETIMEDOUT else requests.failure(index)
        return sum(outcome.rows_zero for outcome in requests.each)

    def _resize(self, counts: Sequence[int] | None) -> None:
        if counts is not None or self._resized:
            self._set_counts(self._sizes if counts is None else counts)
            self._resized = counts is not None

    def _set_counts(self, counts: Sequence[int]) -> None:
        """All of them, or none."""
        if len(counts) != len(self._sizes):
            raise refused(f"{len(counts)} counts for {len(self._sizes)} gathers", "one for each")
        wanted = [whole("GATHER", "count", count) for count in counts]
        for count, size in zip(wanted, self._sizes, strict=True):
            if not 0 <= count <= size:
                raise refused(f"a count of {count} of {size} prepared ids", "prepare for the largest step")
        for request, count in zip(self._requests.array, wanted, strict=True):
            request.count = count
