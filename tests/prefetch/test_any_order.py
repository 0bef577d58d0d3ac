# SPDX-License-Identifier: Apache-2.0
"""Calls in any order, gathers that come when and how they like: no wrong byte, no slot that two gathers write.

(Engram specification 7, 10-19, 11.)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from memory_source import MemoryTable, failed_rows, fault
from numpy.typing import NDArray
from played_device import PlayedDevice

from obmm.errors import MappingBusyError, ObmmError
from obmm.prefetch import (
    CircuitBreaker,
    Deadlines,
    EngramPrefetcher,
    GatherDeadlineError,
    PrefetchLayer,
    RowsStatus,
)

TABLE = MemoryTable(50, 8, neutral_zero=True)
LAYERS = [PrefetchLayer(1, "t", 2), PrefetchLayer(14, "t", 3)]
MAX_TOKENS = 3
POLICIES: list[Any] = ["raise", "zero", "retry", "local", ("retry", "zero"), ("retry", "local", "zero")]


@dataclass(eq=False)
class Gather:
    """A ticket whose gather runs when the test says so.  Waiting for it always times out."""

    ids: NDArray[np.int64]
    out: NDArray[np.uint8]
    generation: int
    result_: int | ObmmError | None = None
    abandoned: bool = False
    seconds: float = 0.001

    def run(self, how: str) -> None:
        self.out[:] = 0xEE  # what a gather that ends early, or is not waited for, may leave
        if how == "fault":
            self.result_ = fault()
        elif how == "some rows":
            lost = np.zeros(self.ids.size, np.bool_)
            lost[::2] = True
            self.out[:] = TABLE.rows(self.ids, self.generation)
            self.out.reshape(self.ids.size, -1)[lost] = 0
            self.result_ = failed_rows(fault(), lost)
        elif not self.abandoned:
            self.out[:] = TABLE.rows(self.ids, self.generation)
            self.result_ = self.ids.size
        else:
            self.result_ = fault()

    def done(self) -> bool:
        return self.result_ is not None

    def ready(self, version: int) -> bool:
        return isinstance(self.result_, int) and self.generation == version

    def wait(self, timeout: float | None = None) -> bool:
        return self.done()

    def result(self) -> int:
        assert self.result_ is not None
        if isinstance(self.result_, ObmmError):
            raise self.result_
        return self.result_

    def abandon(self) -> None:
        self.abandoned = True


@dataclass
class Fabric:
    """A source without threads.  `at_once`: how gathers end that are submitted now."""

    tables: dict[Any, MemoryTable] = field(default_factory=lambda: {"t": TABLE})
    path: str = "cacheable"
    region: str = "played"
    attach_seconds: float = 0.1
    heartbeat_age: float | None = None
    hot: dict[Any, Any] = field(default_factory=dict)
    content: int = 2
    at_once: str | None = None
    under_way: list[Gather] = field(default_factory=list)

    def prepare_many(self, gathers: Sequence[Any], **_: Any) -> Any:
        @dataclass
        class Prepared:
            source: Fabric

            def submit(self) -> list[Gather]:
                return self.source.start([Gather(ids, out, self.source.content) for _, ids, out in gathers])

        return Prepared(self)

    def start(self, gathers: list[Gather]) -> list[Gather]:
        if self.at_once == "refused":
            raise ObmmError(11, "no free tickets")
        for gather in gathers:
            for other in self.under_way:
                assert not np.shares_memory(gather.out, other.out), "two gathers write the same slot"
        self.under_way += gathers
        if self.at_once is not None:
            while self.under_way and self.under_way[-1] in gathers:
                self.under_way.pop().run(self.at_once)
        return gathers

    def generation(self) -> int:
        return self.content

    def healthy(self) -> bool:
        return True

    def submit_probe(self) -> Gather:
        return Gather(np.zeros(0, np.int64), np.zeros(0, np.uint8), self.content, 0)


@dataclass
class Step:
    ids: list[NDArray[np.int64]]
    n_tokens: int
    padded: int
    generation: int
    started: bool = False
    consumed: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """By layer: the rows, and a copy of their bytes then."""


# how gathers end that are submitted in a call: later, at once, or by not being taken
HOW = (None, None, "well", "well", "fault", "some rows", "refused")


class Walk:
    """A prefetcher, what it was asked for, and a random next call."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.steps: list[Step] = []
        self.source = Fabric()
        self.device = PlayedDevice() if self.random.random() < 0.5 else None
        self.depth = int(self.random.integers(1, 4))
        self.prefetcher = EngramPrefetcher(
            self.source,
            LAYERS,
            MAX_TOKENS,
            self.depth,
            self.device,
            POLICIES[self.random.integers(len(POLICIES))],
            replica=Fabric(at_once="well"),
            deadlines=Deadlines(decode=60),
            breaker=CircuitBreaker(threshold=10**9),
            max_abandoned=10**9,
        )
        self.calls = (
            *(self.begin,) * 3,
            self.start,
            *(self.a_gather_comes,) * 3,
            *(self.consume,) * 4,
            self.poll,
            self.poll,
            self.device_catches_up,
            self.cancel,
            self.drain,
        )

    def go(self) -> None:
        self.source.at_once = HOW[self.random.integers(len(HOW))]
        self.calls[self.random.integers(len(self.calls))]()
        # What was handed out stays until drain or cancel; a device has one address, which the next consume may reuse.
        if self.steps and self.device is None:
            for rows, copy in self.steps[0].consumed.values():
                assert np.array_equal(rows.buffer, copy)

    def begin(self) -> None:
        n_tokens = int(self.random.integers(0, MAX_TOKENS + 1))
        padded = int(self.random.integers(n_tokens, MAX_TOKENS + 1))
        ids = [self.random.integers(0, TABLE.n_rows, (n_tokens, layer.columns)) for layer in LAYERS]
        try:
            self.prefetcher.begin(ids, n_tokens, padded)
        except MappingBusyError:
            assert len(self.steps) == self.depth
            return
        self.steps.append(Step([layer_ids.copy() for layer_ids in ids], n_tokens, padded, self.source.content))
        for layer_ids in ids:
            layer_ids[:] = 0  # they were copied
        if self.random.random() < 0.7:
            self.start()

    def start(self) -> None:
        if self.steps and not self.steps[-1].started:
            self.prefetcher.start()
            self.steps[-1].started = True

    def a_gather_comes(self) -> None:
        if self.source.under_way:
            how = ("well", "well", "fault", "some rows")[self.random.integers(4)]
            self.source.under_way.pop(self.random.integers(len(self.source.under_way))).run(how)

    def device_catches_up(self) -> None:
        if self.device is not None:
            self.device.run()

    def poll(self) -> None:
        self.prefetcher.poll(LAYERS[self.random.integers(2)].layer_id)

    def consume(self) -> None:
        if not self.steps:
            return
        place = int(self.random.integers(2))
        step, layer = self.steps[0], LAYERS[place]
        rows = self.prefetcher.consume(layer.layer_id)
        self.device_catches_up()
        if place in step.consumed:
            assert rows is step.consumed[place][0]
            return
        assert rows.n_tokens == step.n_tokens
        assert rows.buffer.shape == (step.padded, layer.columns, TABLE.row_bytes)
        right = np.zeros(rows.buffer.shape, np.uint8)
        if rows.status in (RowsStatus.OK, RowsStatus.REPLICA):
            right[: step.n_tokens] = TABLE.rows(step.ids[place], step.generation)
        elif rows.status is RowsStatus.ZEROED:
            assert rows.failed_tokens is not None
            good = ~rows.failed_tokens
            right[: step.n_tokens][good] = TABLE.rows(step.ids[place][good], step.generation)
        assert np.array_equal(rows.buffer, right), rows.status
        step.consumed[place] = rows, rows.buffer.copy()

    def cancel(self) -> None:
        self.prefetcher.cancel()
        if self.steps:
            self.steps.pop()

    def drain(self) -> None:
        step = self.steps.pop(0) if self.steps else None
        failed = step is not None and any(rows.status is RowsStatus.FAILED for rows, _ in step.consumed.values())
        try:
            report = self.prefetcher.drain()
        except ObmmError:
            assert step is not None
        else:
            assert not failed
            assert (report is None) == (step is None)

    def end(self) -> None:
        while self.source.under_way:
            self.source.under_way.pop().run("well")
        self.prefetcher.close()
        self.device_catches_up()
        for buffers in self.prefetcher._buffers.values():
            buffers.reclaim()
            assert (buffers.in_use, buffers.abandoned) == (0, 0)
            assert all(slot.free for slot in buffers._slots)


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 400, 50)], ids=str)
def test_calls_in_any_order_give_no_wrong_byte(seeds: range, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "obmm.prefetch")
    for seed in seeds:
        walk = Walk(seed)
        for place in range(80):
            try:
                walk.go()
            except Exception as error:
                error.add_note(f"seed {seed}, call {place}")
                raise
        walk.end()


def test_polling_brings_a_layer_that_found_no_slot() -> None:
    """Late gathers hold every slot but the spare one: polling starts the gather there, and ends when nothing is left."""
    source = Fabric()
    ids = np.arange(6).reshape(3, 1, 2)
    with EngramPrefetcher(
        source, LAYERS[:1], MAX_TOKENS, 1, breaker=CircuitBreaker(threshold=10**9), max_abandoned=10**9
    ) as prefetcher:
        prefetcher.begin(ids, 3)
        prefetcher.start()
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(GatherDeadlineError):
            prefetcher.drain()
        prefetcher.begin(ids, 3)
        assert not prefetcher.poll(1)
        assert len(source.under_way) == 1  # nothing before start
        prefetcher.start()
        assert not prefetcher.poll(1)
        assert not prefetcher.poll(1)
        source.under_way.pop().run("well")
        assert len(source.under_way) == 1
        assert prefetcher.poll(1)
        rows = prefetcher.consume(1)
        assert rows.status is RowsStatus.OK
        assert np.array_equal(rows.buffer, TABLE.rows(ids[:, 0], 2))
        prefetcher.drain()
        assert prefetcher.metrics.sync_fallback.values == {("no slot",): 1}
        for polled in (False, True):  # the spare one is lost, then there is none
            prefetcher.begin(ids, 3)
            prefetcher.start()
            assert prefetcher.poll(1) is polled
            assert prefetcher.consume(1).status is RowsStatus.FAILED
            with pytest.raises(ObmmError):
                prefetcher.drain()
        while source.under_way:
            source.under_way.pop().run("well")
