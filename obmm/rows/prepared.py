# SPDX-License-Identifier: Apache-2.0
"""A gather whose addresses are resolved once."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from obmm import guard
from obmm._native import lib
from obmm.rows.engine import GatherEngine
from obmm.rows.errors import refused
from obmm.rows.memory import RowMemory
from obmm.rows.requests import Requests
from obmm.rows.ticket import Ticket, submit

_gather = lib.obmm_engine_gather


class PreparedGather:
    """Made by `RowStore.prepare`.  Not for two threads at once: they would share one outcome."""

    __slots__ = ("_check", "_engine", "_outcome", "_request", "_requests")

    def __init__(self, engine: GatherEngine, memory: RowMemory, requests: Requests) -> None:
        self._engine = engine
        self._check = memory.check
        self._requests = requests
        self._request = requests.array
        self._outcome = requests.outcomes

    def __call__(self, threads: int = 0) -> int:
        """Gather now -> rows read.  Errors as `RowStore.gather_into`."""
        self._check()
        rows: int = _gather(self._engine.pointer, self._request, threads, self._outcome)
        if rows >= 0:
            return rows
        if rows == -errno.EUNATCH:
            guard.verify()
            return self(threads)
        return self._requests.finish()


class PreparedStep:
    """Several gathers of a step that recur with the same buffers.  Made by `RowStore.prepare_many`.

    At most one submission at a time: its tickets must be done before the next.
    """

    __slots__ = ("_engine", "_memory", "_requests", "_resized", "_sizes")

    def __init__(self, engine: GatherEngine, memory: RowMemory, requests: Requests) -> None:
        self._engine = engine
        self._memory = memory
        self._requests = requests
        self._sizes = [request.count for request in requests.array]
        self._resized = False  # whether the last submission had other counts

    def submit(self, counts: Sequence[int] | None = None, threads: int = 0) -> list[Ticket]:
        """Start all of them in one native call -> a ticket for each.  The ids are read anew.

        `counts`: how many ids from the front each gather has this time; default: all that were prepared.
        """
        self._memory.check()
        if counts is not None or self._resized:
            self._set_counts(self._sizes if counts is None else counts)
            self._resized = counts is not None
        return submit(self._engine, self._requests, threads)

    def _set_counts(self, counts: Sequence[int]) -> None:
        for request, count, size in zip(self._requests.array, counts, self._sizes, strict=True):
            if not 0 <= count <= size:
                raise refused(f"{count} of {size} prepared ids", "prepare for the largest step")
            request.count = count
