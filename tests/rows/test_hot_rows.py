# SPDX-License-Identifier: Apache-2.0
"""The hot-row cache of a store (Engram specification 13.2): the same bytes, of the same publication, or not from it."""

from __future__ import annotations

import gc
import mmap
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_shelf import Shelf, expected, publish

import obmm
from obmm import ClosedError, ObmmArgumentError, RemoteMemoryError, StaleHandleError, emulator
from obmm._native import lib
from obmm.rows import HOT_ROWS, GatherEngine, GatherStats, LocalMemory, Manifest, RowStore, TableSpec

FLAT = TableSpec("flat", 3000, 264, head_offsets=(0, 1000, 2000))
SLOTS = TableSpec(
    "slots", 900, 520, base_offset=FLAT.end + 8 - FLAT.end % 8, rows_per_segment=100, segment_bytes=53_000
)
TABLES = (FLAT, SLOTS)


def attached(shelf: Shelf, engine: GatherEngine, hot_rows: Any, tables: tuple[TableSpec, ...] = TABLES) -> RowStore:
    """A reader of tables that its owner has just published."""
    manifest = publish(shelf.owner(*tables, engine=engine))
    return RowStore.attach(shelf.memory(), manifest, plan=False, engine=engine, hot_rows=hot_rows)


def test_rows_come_from_local_memory_when_they_are_asked_for_again(shelf: Shelf, engine: GatherEngine) -> None:
    store = attached(shelf, engine, HOT_ROWS)
    ids = np.random.default_rng(1).permutation(900)
    for table, spec in store.tables.items():
        assert np.array_equal(store.gather(table, ids), expected(ids, spec.row_bytes))
        stats = GatherStats()
        assert np.array_equal(store.gather(table, ids, stats=stats), expected(ids, spec.row_bytes))
        assert stats.rows + stats.hot_rows == stats.ids == len(ids)
        assert stats.hot_rows > 0.9 * len(ids)
        hot = store.hot[table]
        assert (hot.hits, hot.hits + hot.misses) == (stats.hot_rows, 2 * len(ids))
        assert hot.nbytes > hot.rows * spec.row_bytes
    assert store.stats().hot_rows == sum(hot.hits for hot in store.hot.values())


def test_it_is_off_unless_it_is_asked_for(shelf: Shelf, engine: GatherEngine) -> None:
    store = attached(shelf, engine, 0)
    store.gather("flat", [1, 1])
    store.gather("flat", [1, 1])
    assert not store.hot
    assert store.stats().hot_rows == 0
    assert store.explain().count("hot-row cache: none") == 2
    only = attached(shelf, engine, {"slots": 64})
    assert list(only.hot) == ["slots"]
    assert "hot-row cache: asked for, 64 rows" in only.explain()


def test_rows_of_another_publication_are_never_found(shelf: Shelf, engine: GatherEngine) -> None:
    owner = shelf.owner(*TABLES, engine=engine)
    reader = RowStore.attach(shelf.memory(), publish(owner), plan=False, engine=engine, hot_rows=HOT_ROWS)
    ids = np.arange(0, 900, 7)
    for salt in range(1, 5):
        reader.gather("flat", ids)
        owner.populate("flat", expected(np.arange(3000), 264, salt))
        with pytest.raises(StaleHandleError):
            reader.gather("flat", ids)
        reader.refresh(owner.publish())
        before = reader.hot["flat"].hits
        assert np.array_equal(reader.gather("flat", ids), expected(ids, 264, salt))
        assert reader.hot["flat"].hits == before
        assert np.array_equal(reader.gather("flat", ids), expected(ids, 264, salt))
        assert reader.hot["flat"].hits > before


@settings(max_examples=60)
@given(data=st.data())
def test_any_sequence_of_gathers_equals_the_oracle(engine: GatherEngine, data: st.DataObject) -> None:
    """Publications, both id types, ids without a row, columns, ranges, slot mode, caches of any size."""
    memory = bytearray(FLAT.end + SLOTS.end + 2 * mmap.PAGESIZE)
    LocalMemory.format(memory, generation=7)
    owner = RowStore.attach(LocalMemory(memory, header=True), Manifest(TABLES), verify="none", engine=engine)
    size = data.draw(st.sampled_from([1, 8, 40, 3000]))
    store = RowStore.attach(
        LocalMemory(memory, header=True), publish(owner), plan=False, engine=engine, hot_rows=size, verify="header"
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    salt = 0
    for _ in range(data.draw(st.integers(2, 8))):
        if data.draw(st.booleans()):
            salt += 1
            store.refresh(publish(owner, salt), verify="none")
        table = data.draw(st.sampled_from(["flat", "slots"]))
        tokens = data.draw(st.integers(0, 30))
        ids = rng.zipf(1.3, (tokens, 3)) % 900
        ids[rng.random(ids.shape) < 0.1] = -1
        wanted = ids.copy()
        used = store
        if data.draw(st.booleans()):
            used = used.column_slice([0, 2], 3)
            wanted[:, 1] = -1
        if data.draw(st.booleans()):
            used = used.id_range(3, 700)
            wanted[(wanted < 3) | (wanted >= 700)] = -1
        out = np.full((tokens, 3, store.tables[table].row_bytes), 0xAA, np.uint8)
        numbers = ids.astype(data.draw(st.sampled_from([np.int32, np.int64])))
        used.gather_into(table, numbers, out, invalid="zero", threads=data.draw(st.sampled_from([1, 3])))
        assert np.array_equal(out, expected(wanted, out.shape[-1], salt))


def test_several_threads_and_an_owner_that_publishes_get_whole_rows_of_one_publication(
    shelf: Shelf, engine: GatherEngine
) -> None:
    owner = shelf.owner(FLAT, engine=engine)
    store = RowStore.attach(shelf.memory(), publish(owner), plan=False, engine=engine, hot_rows=512)
    salts = {owner.generation(): 0}
    ended = threading.Event()
    wrong: list[str] = []
    right = [0, 0, 0]

    def read(which: int) -> None:
        rng = np.random.default_rng(which)
        out = np.zeros((96, 264), np.uint8)
        while not ended.is_set():
            ids = rng.zipf(1.2, 96) % 3000
            ticket = store.submit("flat", ids, out, threads=2)
            try:
                ticket.result()
            except StaleHandleError:
                continue
            if not np.array_equal(out, expected(ids, 264, salts[ticket.generation])):
                wrong.append(f"{ticket.generation}")
            right[which] += 1

    threads = [threading.Thread(target=read, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for salt in range(1, 30):
        salts[owner.generation() + 2] = salt
        before = list(right)
        publish(owner, salt)
        while not all(now > then for now, then in zip(right, before, strict=True)) and not wrong:
            ended.wait(0.001)
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.hot["flat"].hits


def test_a_dead_owner_is_noticed_although_every_row_is_kept(shelf: Shelf, engine: GatherEngine) -> None:
    store = attached(shelf, engine, 64)
    store.gather("flat", [5, 5])
    shelf.cut()
    with pytest.raises(RemoteMemoryError):
        store.gather("flat", [5])


def test_health_probes_read_the_memory(shelf: Shelf, engine: GatherEngine) -> None:
    store = attached(shelf, engine, HOT_ROWS)
    canary = [row for row, _ in store.manifest.canary["flat"]]
    store.gather("flat", canary)
    shelf.cut(mmap.PAGESIZE)  # the header stays
    assert np.array_equal(store.gather("flat", canary), expected(canary, 264))
    with pytest.raises(RemoteMemoryError):
        store.submit_probe().result()


def test_a_row_that_faulted_is_read_again(shelf: Shelf, engine: GatherEngine) -> None:
    store = attached(shelf, engine, HOT_ROWS)
    store.gather("flat", [0, 1])
    shelf.cut(2 * mmap.PAGESIZE)  # the header and the first fifteen rows
    with pytest.raises(RemoteMemoryError) as caught:
        store.gather("flat", [0, 2, 2900], faulty="zero")
    assert caught.value.failed_rows.tolist() == [False, False, True]
    with pytest.raises(RemoteMemoryError) as caught:
        store.gather("flat", [2900, 1], faulty="zero")
    assert caught.value.failed_rows.tolist() == [True, False]


def test_more_ids_than_it_holds_go_by(shelf: Shelf, engine: GatherEngine) -> None:
    store = attached(shelf, engine, 512)
    warm = np.arange(64)
    store.gather("flat", warm)
    before = store.hot["flat"].misses
    store.gather("flat", np.arange(3000))
    store.gather("flat", warm)
    assert store.hot["flat"].hits == 64
    assert store.hot["flat"].misses == before


def test_a_closed_store_gives_no_row_and_its_memory_goes_with_it(shelf: Shelf, engine: GatherEngine) -> None:
    store = attached(shelf, engine, 64)
    subset = store.id_range(0, 50)
    assert subset.hot["flat"] is store.hot["flat"]
    call = store.prepare("flat", np.arange(3), np.zeros((3, 264), np.uint8))
    call()
    store.close()
    with pytest.raises(ClosedError):
        call()
    del store
    gc.collect()
    with pytest.raises(ClosedError):
        subset.gather("flat", [1])


@pytest.mark.parametrize(
    ("hot_rows", "message"),
    [
        (-1, "hot_rows=-1"),
        (True, "hot_rows=True"),
        (1.5, "hot_rows=1.5"),
        ({"flat": "many"}, "hot_rows='many'"),
        ({"third": 5}, "hot_rows of table 'third'"),
    ],
)
def test_what_is_no_number_of_rows_is_refused(shelf: Shelf, engine: GatherEngine, hot_rows: Any, message: str) -> None:
    with pytest.raises(ObmmArgumentError, match=message):
        attached(shelf, engine, hot_rows)


def test_long_rows_and_memory_without_a_version_are_refused(shelf: Shelf, engine: GatherEngine) -> None:
    most = int(lib.OBMM_HOT_MOST_BYTES)
    with pytest.raises(ObmmArgumentError, match=f"more than {most} bytes"):
        attached(shelf, engine, 8, (TableSpec("t", 10, most + 8),))
    bare = LocalMemory(bytearray(FLAT.end))
    with pytest.raises(ObmmArgumentError, match="without a region header"):
        RowStore.attach(bare, Manifest((FLAT,)), verify="none", engine=engine, hot_rows=8)


@pytest.mark.parametrize("cache", ["cc", "nc"])
def test_over_an_import_the_plan_says_what_it_costs(engine: GatherEngine, cache: Any) -> None:
    with (
        emulator.start(nodes=2) as fabric,
        obmm.open(fabric.device("a")) as a,
        obmm.open(fabric.device("b")) as b,
        a.export_region(FLAT.end) as region,
        region.map("rw", cache=cache) as mapping,
    ):
        owner = RowStore.attach(mapping, Manifest((FLAT,)), verify="none", engine=engine)
        manifest = publish(owner)
        with (
            b.import_region(region.handle(cache=cache)) as imported,
            RowStore.attach([imported], manifest, engine=engine, hot_rows=1024) as store,
        ):
            plan = store.plans["flat"]
            assert (plan.hot_rows, plan.hot_bytes) == (1024, store.hot["flat"].nbytes)
            assert plan.kept > 0
            assert plan.not_kept > 0
            assert "hot-row cache: asked for, 1024 rows" in store.explain()
            assert "pay" in store.explain().rsplit("hot-row cache", 1)[1]
            assert store.hot["flat"].hits == store.hot["flat"].misses == 0  # measuring does not count as use
            ids = np.arange(500)
            for _ in range(3):
                assert np.array_equal(store.gather("flat", ids), expected(ids, 264))
            assert store.hot["flat"].hits > 900
