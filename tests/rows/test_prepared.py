# SPDX-License-Identifier: Apache-2.0
"""A prepared gather leaves out what need not be asked twice, and no refusal."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from row_shelf import Shelf, expected, publish

import obmm
from obmm import ClosedError, Mapping, ObmmArgumentError, ObmmError, emulator
from obmm.rows import GatherDeadlineError, GatherEngine, Manifest, RowStore, TableSpec

SPEC = TableSpec("t", 300, 264)
SOME, NONE = np.array([5, 299, 5]), np.empty(0, np.int64)


def out_for(ids: Any) -> Any:
    return np.zeros((len(ids), 264), np.uint8)


@pytest.fixture
def imported(engine: GatherEngine) -> Iterator[tuple[Mapping, RowStore]]:
    """A mapping of an import, and a store over it."""
    with (
        emulator.start(nodes=2) as fabric,
        obmm.open(fabric.device("a")) as a,
        obmm.open(fabric.device("b")) as b,
        a.export_region(SPEC.end) as region,
        region.map("rw") as mapping,
    ):
        manifest = publish(RowStore.attach(mapping, Manifest((SPEC,)), verify="none", engine=engine))
        with b.import_region(region.handle()) as remote, remote.map("r") as there:
            yield there, RowStore.attach(there, manifest, plan=False, engine=engine)


@pytest.mark.parametrize("ids", [SOME, NONE], ids=["some", "none"])
def test_of_local_memory_that_was_closed_it_is_refused(shelf: Shelf, engine: GatherEngine, ids: Any) -> None:
    store = shelf.owner(SPEC, engine=engine)
    publish(store)
    out = out_for(ids)
    call = store.prepare("t", ids, out)
    assert call() == call(threads=2) == len(ids)
    assert np.array_equal(out, expected(ids, 264))
    store.close()
    for threads in (0, 2):
        with pytest.raises(ClosedError):
            call(threads)


@pytest.mark.parametrize("ids", [SOME, NONE], ids=["some", "none"])
def test_of_a_mapping_that_was_closed_it_is_refused(imported: tuple[Mapping, RowStore], ids: Any) -> None:
    mapping, store = imported
    call = store.prepare("t", ids, out_for(ids))
    assert call() == len(ids)
    mapping.close()
    with pytest.raises(ClosedError):
        call()


@pytest.mark.parametrize("ids", [SOME, NONE], ids=["some", "none"])
def test_without_the_right_to_read_it_is_refused(imported: tuple[Mapping, RowStore], ids: Any) -> None:
    mapping, store = imported
    call = store.prepare("t", ids, out_for(ids))
    mapping.release()
    with pytest.raises(ObmmError, match="acquire"):
        call()
    mapping.acquire("r")
    assert call() == len(ids)


def test_in_a_forked_child_it_is_refused(imported: tuple[Mapping, RowStore]) -> None:
    _, store = imported
    call = store.prepare("t", SOME, out_for(SOME))
    pid = os.fork()
    if not pid:
        code = 1
        try:
            call()
        except ClosedError:
            code = 5
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


def test_it_keeps_alive_what_it_needs(shelf: Shelf, engine: GatherEngine) -> None:
    store = shelf.owner(SPEC, engine=engine)
    publish(store)
    out = out_for(SOME)
    call = store.prepare("t", SOME.copy(), out)
    del store
    assert call() == 3
    assert np.array_equal(out, expected(SOME, 264))


@pytest.mark.parametrize(
    "wrong", [[3, 10**9], [3], [3, 3, 3], [3, 2.5], [3, float("nan")], [3, -1], [3, "x"], [3, True]]
)
def test_counts_that_are_refused_change_no_later_step(shelf: Shelf, engine: GatherEngine, wrong: Any) -> None:
    owner = shelf.owner(SPEC, engine=engine)
    store = RowStore.attach(shelf.memory(), publish(owner), engine=engine, plan=False)
    ids = np.arange(10)
    outs = [out_for(ids), out_for(ids)]
    step = store.prepare_many([("t", ids, out) for out in outs])
    with pytest.raises(ObmmArgumentError, match="count"):
        step.submit(wrong)
    assert [ticket.result(20) for ticket in step.submit()] == [10, 10]
    for out in outs:
        assert np.array_equal(out, expected(ids, 264))


@pytest.mark.parametrize("wrong", [1.5, -1, 1 << 32, "2", float("nan")])
def test_a_number_of_threads_that_is_none_is_refused(shelf: Shelf, engine: GatherEngine, wrong: Any) -> None:
    store = RowStore.attach(shelf.memory(), publish(shelf.owner(SPEC, engine=engine)), engine=engine, plan=False)
    gather = store.prepare("t", SOME, out_for(SOME))
    step = store.prepare_many([("t", SOME, out_for(SOME))])
    for call in (gather, lambda threads: step.submit(threads=threads)):
        with pytest.raises(ObmmArgumentError, match="threads"):
            call(threads=wrong)


def test_a_step_on_the_callers_thread_is_the_same_rows(imported: tuple[Mapping, RowStore]) -> None:
    _, store = imported
    ids = np.array([5, -1, 299, 7])
    outs = [out_for(ids), out_for(ids)]
    step = store.prepare_many([("t", ids, out) for out in outs], invalid="zero")
    assert step.gather(within=20, until=time.monotonic() + 20) == 2
    assert step.gather([1, 4], within=20, until=math.inf) == 1
    for out in outs:
        assert np.array_equal(out, expected(ids, 264))


def test_a_step_on_the_callers_thread_ends_at_its_deadline(shelf: Shelf, engine: GatherEngine) -> None:
    store = RowStore.attach(shelf.memory(), publish(shelf.owner(SPEC, engine=engine)), engine=engine, plan=False)
    many = np.zeros(200_000, np.int64)
    step = store.prepare_many([("t", many, out_for(many))])
    with pytest.raises(GatherDeadlineError, match="'t' did not come within 5 ms"):
        step.gather(within=0.005, until=0.0)


def test_a_step_on_the_callers_thread_of_closed_memory_is_refused(imported: tuple[Mapping, RowStore]) -> None:
    mapping, store = imported
    step = store.prepare_many([("t", SOME, out_for(SOME))])
    mapping.close()
    with pytest.raises(ClosedError):
        step.gather(within=1, until=math.inf)


def test_a_step_on_the_callers_thread_of_memory_that_went_is_a_remote_error(shelf: Shelf, engine: GatherEngine) -> None:
    store = RowStore.attach(shelf.memory(), publish(shelf.owner(SPEC, engine=engine)), engine=engine, plan=False)
    step = store.prepare_many([("t", SOME, out_for(SOME))])
    shelf.cut()
    with pytest.raises(obmm.RemoteMemoryError):
        step.gather(within=1, until=math.inf)
