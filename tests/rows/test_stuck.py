# SPDX-License-Identifier: Apache-2.0
"""Gathers whose loads do not come back: deadlines, abandoned tickets, closing (Engram specification 11.3-3, -4, -8)."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from stuck_pages import StuckPages

from obmm import ClosedError, MappingBusyError
from obmm.rows import GatherDeadlineError, GatherEngine, LocalMemory, Manifest, RowStore, TableSpec, ticket

ROWS = 1024
SPEC = TableSpec("t", ROWS, 64)


@pytest.fixture
def pages() -> Iterator[StuckPages]:
    try:
        pages = StuckPages(ROWS * 64)
    except OSError as error:
        pytest.skip(f"no userfaultfd here: {error}")
    yield pages
    pages.release()


@pytest.fixture
def own_engine(pages: StuckPages) -> Iterator[GatherEngine]:
    """Two workers that only these tests keep busy."""
    engine = GatherEngine(2)
    yield engine
    pages.release()
    engine.close()


@pytest.fixture
def store(pages: StuckPages, own_engine: GatherEngine) -> RowStore:
    return RowStore.attach(LocalMemory(pages.map), Manifest((SPEC,)), verify="none", plan=False, engine=own_engine)


def test_python_runs_while_a_gather_waits_for_memory(pages: StuckPages, store: RowStore) -> None:
    out = np.full((10, 64), 7, np.uint8)
    thread = threading.Thread(target=store.gather_into, args=("t", np.arange(10), out))
    thread.start()
    pages.wait_for_a_load()  # with the interpreter lock held over there, this line would not be reached
    assert thread.is_alive()
    pages.release()
    thread.join(20)
    assert not out.any()


def test_a_deadline_ends_the_wait_and_not_the_gather(
    pages: StuckPages, store: RowStore, own_engine: GatherEngine
) -> None:
    with pytest.raises(GatherDeadlineError, match="did not come within 30 ms"):
        store.gather_into("t", np.arange(10), np.empty((10, 64), np.uint8), deadline=0.03)
    gc.collect()
    assert own_engine.abandoned == 1
    pages.release()
    while own_engine.abandoned:
        pass
    assert own_engine.in_use == 0
    assert store.gather_into("t", np.arange(10), np.empty((10, 64), np.uint8), deadline=20) == 10


def test_a_stuck_gather_leaves_the_other_workers_free(pages: StuckPages, store: RowStore) -> None:
    stuck = store.submit("t", np.arange(10), np.empty((10, 64), np.uint8), threads=1)
    pages.wait_for_a_load()
    spec = TableSpec("f", 10, 64)
    memory = LocalMemory(bytearray(spec.end))
    free = RowStore.attach(memory, Manifest((spec,)), verify="none", plan=False, engine=store.engine)
    assert free.submit("f", np.arange(10), bytearray(640)).result(20) == 10
    assert not stuck.done()
    assert not stuck.wait(0.01)
    with pytest.raises(GatherDeadlineError):
        stuck.result(timeout=0.01)
    pages.release()
    assert stuck.result(20) == 10


def test_an_abandoned_gather_ends_when_its_load_comes_back(pages: StuckPages, store: RowStore) -> None:
    ticket = store.submit("t", np.arange(ROWS).repeat(40), np.empty((40 * ROWS, 64), np.uint8), threads=1)
    pages.wait_for_a_load()
    ticket.abandon()
    assert not ticket.done()
    pages.release()
    assert ticket.wait(20)
    with pytest.raises(ClosedError, match="was abandoned"):
        ticket.result()
    assert store.stats().cancelled == 1


def test_memory_under_a_running_gather_refuses_to_close(pages: StuckPages, store: RowStore) -> None:
    ticket = store.submit("t", np.arange(10), np.empty((10, 64), np.uint8))
    pages.wait_for_a_load()
    with pytest.raises(MappingBusyError, match="still running"):
        store.close()
    pages.release()
    assert ticket.result(20) == 10
    store.close()


def test_an_engine_with_a_stuck_worker_refuses_to_close(
    pages: StuckPages, store: RowStore, own_engine: GatherEngine
) -> None:
    stuck = store.submit("t", np.arange(10), np.empty((10, 64), np.uint8))
    pages.wait_for_a_load()
    with pytest.raises(MappingBusyError, match="still inside a load"):
        own_engine.close(timeout=0.02)
    pages.release()
    own_engine.close()
    assert stuck.done()
    with pytest.raises(ClosedError):
        _ = own_engine.threads
    with pytest.raises(ClosedError):
        store.gather("t", [0])
    with pytest.raises(ClosedError):
        store.submit("t", np.arange(1), bytearray(64))


def test_an_interrupt_behind_the_submission_frees_nothing_that_is_written_to(
    pages: StuckPages, store: RowStore, own_engine: GatherEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the native call and its tickets: requests and output must outlive the gather, and no longer."""

    class Interrupting:
        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

        def obmm_engine_submit(self, *arguments: Any) -> int:
            assert native.obmm_engine_submit(*arguments) == 0
            pages.wait_for_a_load()
            raise KeyboardInterrupt

    native = ticket.lib
    out = np.full((10, 64), 7, np.uint8)
    gone = weakref.ref(out)
    with monkeypatch.context() as patch:
        patch.setattr(ticket, "lib", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            store.submit("t", np.arange(10), out)
    del out
    gc.collect()
    assert gone() is not None
    assert (own_engine.in_use, own_engine.abandoned) == (1, 1)
    pages.release()
    end = time.monotonic() + 20
    while own_engine.abandoned and time.monotonic() < end:
        time.sleep(0.001)
    assert own_engine.in_use == 0
    gc.collect()
    assert gone() is None
