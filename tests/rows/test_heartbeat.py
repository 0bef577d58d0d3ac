# SPDX-License-Identifier: Apache-2.0
"""The owner's heartbeat and the reader that misses it (Engram specification 5.3 and 11.3, rule 6)."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import obmm
from obmm import ObmmArgumentError, emulator
from obmm.prefetch import EngramPrefetcher, PeerFailedError, PrefetchLayer, RowsStatus
from obmm.region.header import RegionHeader
from obmm.rows import GatherEngine, LocalMemory, Manifest, RowStore, TableSpec, pulse
from obmm.rows.pulse import Pulse

SPEC = TableSpec("t", n_rows=100, row_bytes=64)


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came"
        time.sleep(0.001)


@pytest.fixture
def memory() -> Iterator[LocalMemory]:
    buffer = mmap.mmap(-1, 1 << 16)
    LocalMemory.format(buffer, 7)
    made = LocalMemory(buffer, header=True)
    yield made
    made.close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Watch:
    """A pulse with a clock of its own; `look` is a whole read."""

    def __init__(self, memory: LocalMemory) -> None:
        self.clock = Clock()
        self.engine = GatherEngine(1)
        self.pulse = Pulse(self.engine, memory, self.clock)

    def look(self, after: float) -> bool:
        self.clock.now += after
        self.pulse.lost()
        until(lambda: self.pulse.lost() or not self.pulse._ticket)
        return self.pulse.lost()


@pytest.fixture
def watch(memory: LocalMemory) -> Iterator[Watch]:
    made = Watch(memory)
    yield made
    made.pulse.settle()
    made.engine.close()


def test_rule_6_an_owner_that_stops_beating_is_lost_after_3_seconds(memory: LocalMemory, watch: Watch) -> None:
    memory.beat()
    assert not watch.look(0)
    assert not watch.look(1)
    assert not watch.look(1)
    assert watch.look(1.5)
    assert watch.pulse.age == 3.5


def test_an_owner_that_beats_again_is_back(memory: LocalMemory, watch: Watch) -> None:
    memory.beat()
    watch.look(0)
    assert watch.look(4)
    memory.beat()
    assert not watch.look(1)
    assert watch.pulse.age == 0


def test_an_owner_that_never_beat_is_not_missed(watch: Watch) -> None:
    assert not watch.look(0)
    assert not watch.look(10)
    assert not watch.look(10)
    assert watch.pulse.age is None


def test_a_reader_that_did_not_look_for_long_declares_no_owner_dead(memory: LocalMemory, watch: Watch) -> None:
    """Its own silence is not the owner's."""
    memory.beat()
    watch.look(0)
    memory.beat()
    assert not watch.look(60)


def test_the_counter_is_read_once_a_second_however_often_it_is_asked(memory: LocalMemory, watch: Watch) -> None:
    memory.beat()
    watch.look(0)
    before = watch.pulse._sent
    for _ in range(50):
        watch.clock.now += 0.01
        watch.pulse.lost()
    assert watch.pulse._sent == before
    watch.look(1)
    assert watch.pulse._sent > before


def test_the_counter_wraps(memory: LocalMemory) -> None:
    memory.store(RegionHeader.HEARTBEAT_OFFSET, 8, (1 << 64) - 1)
    memory.beat()
    assert memory.load(RegionHeader.HEARTBEAT_OFFSET, 8) == 0


def test_heartbeat_counts_until_closed(memory: LocalMemory) -> None:
    with RowStore.attach(memory, Manifest((SPEC,)), verify="none") as owner:
        with owner.heartbeat(interval=0.001) as beat:
            until(lambda: memory.load(RegionHeader.HEARTBEAT_OFFSET, 8) >= 5)
            assert beat.beating
        assert not beat.beating
        beat.close()
        count = memory.load(RegionHeader.HEARTBEAT_OFFSET, 8)
    memory_after = memory  # closed with the store: nothing may write there any more
    assert not memory_after.alive
    assert count >= 5


def test_heartbeat_ends_with_its_memory(memory: LocalMemory, caplog: pytest.LogCaptureFixture) -> None:
    owner = RowStore.attach(memory, Manifest((SPEC,)), verify="none")
    with owner.heartbeat(interval=0.001) as beat:
        owner.close()
        until(lambda: not beat.beating)
    assert "the heartbeat ends" in caplog.text


def test_heartbeat_of_a_child_belongs_to_the_parent(memory: LocalMemory) -> None:
    with RowStore.attach(memory, Manifest((SPEC,)), verify="none") as owner, owner.heartbeat() as beat:
        pid = os.fork()
        if not pid:
            beat.close()
            os._exit(beat.beating)
        assert os.waitpid(pid, 0)[1] == 0
        assert beat.beating


@pytest.mark.parametrize("interval", [0, -1, 1.5, float("nan")])
def test_heartbeat_is_not_slower_than_readers_expect(memory: LocalMemory, interval: float) -> None:
    with (
        RowStore.attach(memory, Manifest((SPEC,)), verify="none") as owner,
        pytest.raises(ObmmArgumentError, match=r"interval=.*5\.3"),
    ):
        owner.heartbeat(interval)


def test_cacheable_memory_has_no_heartbeat() -> None:
    with emulator.start(nodes=1) as fabric, obmm.open(fabric.device("a")) as device:
        with device.export_region(SPEC.end) as region, region.map("rw", cache="cc") as mapping:
            with RowStore.attach(mapping, Manifest((SPEC,)), verify="none") as owner:
                with pytest.raises(ObmmArgumentError, match=r"heartbeat in cacheable memory.*5\.3.*leases"):
                    owner.heartbeat()


def test_the_breaker_opens_when_the_owner_of_an_nc_region_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "PATIENCE", 0.2)
    monkeypatch.setattr(pulse, "_EVERY", 0.02)
    with ExitStack() as undo:
        fabric = undo.enter_context(emulator.start(nodes=2))
        a, b = (undo.enter_context(obmm.open(fabric.device(name))) for name in "ab")
        region = undo.enter_context(a.export_region(SPEC.end))
        mapping = undo.enter_context(region.map("rw", cache="nc"))
        owner = undo.enter_context(RowStore.attach(mapping, Manifest((SPEC,)), verify="none"))
        owner.populate("t", np.zeros((100, 64), np.uint8))
        manifest = owner.publish()
        imported = undo.enter_context(b.import_region(region.handle(cache="nc")))
        store = undo.enter_context(RowStore.attach([imported], manifest, plan=False))
        prefetcher = undo.enter_context(EngramPrefetcher(store, [PrefetchLayer(1, "t", 1)], 4))
        ids = np.zeros((4, 1, 1), np.int64)

        def step() -> bool:
            try:
                prefetcher.begin(ids, 4)
            except PeerFailedError as error:
                assert "heartbeat" in str(error)
                return False
            prefetcher.start()
            assert prefetcher.consume(1).status is RowsStatus.OK
            prefetcher.drain()
            return True

        with owner.heartbeat(interval=0.01):
            until(lambda: step() and store.heartbeat_age is not None)
        until(lambda: not step())
        assert prefetcher.metrics.heartbeat_age.values[(store.region,)] >= 0.2
        with owner.heartbeat(interval=0.01):
            until(store.healthy)
