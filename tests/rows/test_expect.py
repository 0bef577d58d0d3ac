# SPDX-License-Identifier: Apache-2.0
"""A team that is told to be ready changes when workers wake, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from row_shelf import Shelf, expected, publish

from obmm import ObmmArgumentError
from obmm.prefetch import EngramPrefetcher, PrefetchLayer
from obmm.rows import GatherEngine, RowStore, TableSpec

SPEC = TableSpec("t", 4000, 264)
RNG = np.random.default_rng(8)


@pytest.fixture
def store(shelf: Shelf, engine: GatherEngine) -> RowStore:
    owner = shelf.owner(SPEC, engine=engine)
    publish(owner)
    return owner


@pytest.mark.parametrize("count", [0, 1, 7, 384, 1536, 4000])
@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_rows_are_the_same_whether_a_gather_was_expected_or_not(store: RowStore, count: int, threads: int) -> None:
    ids, out = RNG.integers(0, SPEC.n_rows, count), np.zeros((count, 264), np.uint8)
    for told in (False, True, True):
        out[:] = 0
        if told:
            store.expect()
        assert store.gather_into("t", ids, out, threads=threads) == count
        assert np.array_equal(out, expected(ids, 264))


def test_spinning_ends_with_the_expectation() -> None:
    engine = GatherEngine(3)
    try:
        for _ in range(10):
            assert 0 <= engine.expect(60.0) <= 3  # half a millisecond is the most
            time.sleep(0.002)
        settled = _until_it_rests(engine)
        time.sleep(0.05)
        assert engine.spun == settled
        assert settled[1] <= settled[0]
    finally:
        engine.close()


def _until_it_rests(engine: GatherEngine) -> tuple[float, float]:
    """A worker may have to wait for a CPU before it notices that time is up."""
    seen, since = engine.spun, time.monotonic()
    while time.monotonic() < since + 0.2:
        if engine.spun != seen:
            seen, since = engine.spun, time.monotonic()
        time.sleep(0.01)
    return seen


@pytest.mark.parametrize("within", [float("nan"), "soon", None])
def test_a_time_that_is_none_is_refused(store: RowStore, within: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="within"):
        store.expect(within)


@pytest.mark.parametrize("within", [-1.0, 0.0, 1e300])
def test_any_number_of_seconds_is_bounded(store: RowStore, within: float) -> None:
    store.expect(within)
    assert np.array_equal(store.gather("t", [5]), expected([5], 264))


def test_a_closed_engine_expects_nothing() -> None:
    engine = GatherEngine(1)
    engine.close()
    assert engine.expect() == 0


def test_in_a_forked_child_nothing_is_expected(store: RowStore) -> None:
    pid = os.fork()
    if not pid:
        try:
            store.expect()
            right = np.array_equal(store.gather("t", [1, 2]), expected([1, 2], 264))
            os._exit(0 if right and store.engine.expect() == 0 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_store_that_is_told_by_many_threads_gathers_for_all(store: RowStore) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            ids = rng.integers(0, SPEC.n_rows, int(rng.integers(1, 2000)))
            store.expect(float(rng.uniform(0, 3e-4)))
            if not np.array_equal(store.gather("t", ids), expected(ids, 264)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_begin_of_a_step_tells_the_store(store: RowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(GatherEngine, "expect", lambda self, within=0.0: told.append("told"))
    with EngramPrefetcher(store, [PrefetchLayer(0, "t", 2)], 8) as prefetcher:
        ids = RNG.integers(0, SPEC.n_rows, (8, 1, 2))
        prefetcher.begin(ids, 8)
        assert told == ["told"]
        prefetcher.start()
        rows = np.asarray(prefetcher.consume(0).buffer).reshape(8, 2, 264)
        assert np.array_equal(rows, expected(ids[:, 0], 264))
        prefetcher.drain()


def test_threads_are_planned_for_every_size_and_learned_on(shelf: Shelf) -> None:
    """A pace of its own for each table, which subsets share; gathers stay right while numbers of threads are tried."""
    engine = GatherEngine(3)
    try:
        publish(shelf.owner(SPEC, engine=engine))
        store = RowStore.attach(shelf.memory(), shelf.owner(SPEC, engine=engine).publish(), engine=engine)
        assert [rows for rows, _ in store.plans["t"].team] == [384, 1536, 6144]
        part = store.id_range(0, SPEC.n_rows)
        ids, out = RNG.integers(0, SPEC.n_rows, 1536), np.zeros((1536, 264), np.uint8)
        call, other = store.prepare("t", ids, out), part.prepare("t", ids, out)
        for number in range(200):
            out[:] = 0
            assert (call if number % 2 else other)() == 1536
            assert np.array_equal(out, expected(ids, 264))
    finally:
        engine.close()
