# SPDX-License-Identifier: Apache-2.0
"""Rows that cannot be read spoil themselves only (Engram specification 11.2): ``faulty="zero"`` and `failed_rows`."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_shelf import Shelf, expected, publish

import obmm
from obmm import Mapping, ObmmArgumentError, RemoteMemoryError, emulator
from obmm._native import lib
from obmm.driver.abi import Cache
from obmm.rows import GatherEngine, Manifest, RowStore, TableSpec

ROWS, ROW = 2000, 264
UNIT = 16 << 10  # what the fabric loses at a time
BAD = 5 * UNIT  # an offset in the region that loses its unit
SPEC = TableSpec("t", ROWS, ROW, rows_per_segment=500, segment_bytes=500 * ROW + 4096)
MOST_FAULTS: int = lib.OBMM_MOST_FAULTS

Gather = Callable[[RowStore, Any, Any], Any]

WAYS: dict[str, Gather] = {
    "now": lambda store, ids, out: store.gather_into("t", ids, out, faulty="zero"),
    "deadline": lambda store, ids, out: store.gather_into("t", ids, out, faulty="zero", deadline=60.0),
    "ticket": lambda store, ids, out: store.submit("t", ids, out, faulty="zero", threads=3).result(),
    "many": lambda store, ids, out: store.submit_many([("t", ids, out)], faulty="zero")[0].result(),
    "prepared": lambda store, ids, out: store.prepare("t", ids, out, faulty="zero")(),
    "step": lambda store, ids, out: store.prepare_many([("t", ids, out)], faulty="zero").submit()[0].result(),
}


@pytest.fixture(scope="module")
def fabric(poison_topology: Path) -> Iterator[emulator.Fabric]:
    with emulator.start(topology=poison_topology) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture(params=["cc", "nc"])
def poisoned(
    request: pytest.FixtureRequest, fabric: emulator.Fabric, engine: GatherEngine
) -> Iterator[tuple[RowStore, set[int]]]:
    """A store over an import that has lost one unit, and the rows that lie on it."""
    cache: Cache = request.param
    with ExitStack() as undo:
        a = undo.enter_context(obmm.open(fabric.device("a")))
        b = undo.enter_context(obmm.open(fabric.device("b")))
        region = undo.enter_context(a.export_region(SPEC.end))
        with region.map("rw", cache=cache) as mapping:
            manifest = publish(RowStore.attach(mapping, Manifest((SPEC,)), verify="none", engine=engine))
        imported = undo.enter_context(b.import_region(region.handle(cache=cache)))
        remote: Mapping = undo.enter_context(imported.map("r"))
        store = RowStore.attach(remote, manifest, plan=False, engine=engine)
        fabric.inject("a", "poison", mem_id=region.mem_id, offset=BAD)
        low = BAD - imported.data_offset
        offsets = np.array([SPEC.offset_of(row) for row in range(ROWS)])
        yield store, set(np.flatnonzero((offsets < low + UNIT) & (offsets + ROW > low)).tolist())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [96, 30_000])
def test_rows_on_a_poisoned_page_are_zero_and_marked_all_others_right(
    poisoned: tuple[RowStore, set[int]], way: str, count: int
) -> None:
    store, bad = poisoned
    # a few of them only: each distinct one is a fault
    lost = sorted(bad)[:: len(bad) // 8]
    ids = np.random.default_rng(count).choice([row for row in range(ROWS) if row not in bad or row in lost], count)
    ids[7] = ids[count - 3] = lost[0]
    out = np.full((count, ROW), 0xAA, np.uint8)
    with pytest.raises(RemoteMemoryError, match="SIGBUS") as caught:
        WAYS[way](store, ids, out)
    failed = caught.value.failed_rows
    assert failed.dtype == np.bool_
    assert np.array_equal(failed, np.isin(ids, lost))
    assert not out[failed].any()
    assert np.array_equal(out[~failed], expected(ids[~failed], ROW))


def test_rows_that_can_be_read_are_no_error(poisoned: tuple[RowStore, set[int]]) -> None:
    store, bad = poisoned
    ids = np.array([row for row in range(ROWS) if row not in bad])
    out = np.zeros((len(ids), ROW), np.uint8)
    for gather in WAYS.values():
        assert gather(store, ids, out) == len(ids)
        assert np.array_equal(out, expected(ids, ROW))


def test_the_map_of_a_prepared_gather_is_of_its_last_call(poisoned: tuple[RowStore, set[int]]) -> None:
    store, bad = poisoned
    good = next(row for row in range(ROWS) if row not in bad)
    ids, out = np.full(8, good), np.zeros((8, ROW), np.uint8)
    call = store.prepare("t", ids, out, faulty="zero")
    ids[2] = min(bad)
    with pytest.raises(RemoteMemoryError) as first:
        call()
    ids[2] = good
    assert call() == 8
    ids[5] = max(bad)
    with pytest.raises(RemoteMemoryError) as second:
        call()
    assert np.flatnonzero(first.value.failed_rows).tolist() == [2]
    assert np.flatnonzero(second.value.failed_rows).tolist() == [5]


def test_a_step_of_fewer_ids_has_a_map_of_as_many(poisoned: tuple[RowStore, set[int]]) -> None:
    store, bad = poisoned
    ids, out = np.full(64, min(bad)), np.zeros((64, ROW), np.uint8)
    (ticket,) = store.prepare_many([("t", ids, out)], faulty="zero").submit([5])
    with pytest.raises(RemoteMemoryError) as caught:
        ticket.result()
    assert caught.value.failed_rows.tolist() == [True] * 5


def test_without_it_a_fault_ends_the_gather_and_nothing_is_known(poisoned: tuple[RowStore, set[int]]) -> None:
    store, bad = poisoned
    with pytest.raises(RemoteMemoryError) as caught:
        store.gather("t", [min(bad)])
    assert caught.value.failed_rows is None


def test_more_rows_than_may_fault_give_the_gather_up(poisoned: tuple[RowStore, set[int]]) -> None:
    """A fault may take a peer's time-out: behind a dead one the gather must not wait for every row."""
    store, bad = poisoned
    assert len(bad) < MOST_FAULTS
    with pytest.raises(RemoteMemoryError) as caught:
        store.gather("t", sorted(bad), faulty="zero")
    assert caught.value.failed_rows.all()


def test_behind_a_dead_peer_nothing_is_known_of_any_row(shelf: Shelf, engine: GatherEngine) -> None:
    owner = shelf.owner(TableSpec("t", 4000, 512), engine=engine)
    publish(owner)
    shelf.cut(mmap.PAGESIZE * 2)  # header and the first eight rows
    for gather in WAYS.values():
        with pytest.raises(RemoteMemoryError) as caught:
            gather(owner, np.arange(4000), np.zeros((4000, 512), np.uint8))
        assert caught.value.failed_rows is None


def test_columns_and_places_without_a_row_do_not_fail(shelf: Shelf, engine: GatherEngine) -> None:
    owner = shelf.owner(TableSpec("t", 4000, 512, head_offsets=(0, 2000)), engine=engine)
    publish(owner)
    shelf.cut(mmap.PAGESIZE * 2)
    ids = np.array([[1, 3000], [-1, 3000], [3000, 2]])
    out = np.full((3, 2, 512), 0xAA, np.uint8)
    with pytest.raises(RemoteMemoryError) as caught:
        owner.column_slice([0]).gather_into("t", ids, out, faulty="zero", invalid="zero")
    assert caught.value.failed_rows.tolist() == [False, False, False, False, True, False]
    assert np.array_equal(out[:, 0], expected([1, -1, -1], 512))
    assert not out[:, 1].any()


def test_another_word_is_refused(shelf: Shelf, engine: GatherEngine) -> None:
    owner = shelf.owner(TableSpec("t", 40, 512), engine=engine)
    with pytest.raises(ObmmArgumentError, match="faulty='skip'"):
        owner.gather("t", [1], faulty="skip")


def test_what_failed_is_counted_as_a_fault(shelf: Shelf, engine: GatherEngine) -> None:
    owner = shelf.owner(TableSpec("t", 4000, 512), engine=engine)
    publish(owner)
    shelf.cut(mmap.PAGESIZE * 2)
    before = owner.stats()
    with pytest.raises(RemoteMemoryError):
        owner.gather("t", [1, 3000], faulty="zero")
    after = owner.stats()
    assert (after.faults - before.faults, after.gathers - before.gathers) == (1, 0)
