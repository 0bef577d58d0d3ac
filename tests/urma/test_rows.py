# SPDX-License-Identifier: Apache-2.0
"""Tables in a peer's segment: the gather, tickets and the prefetcher over one-sided reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from obmm import urma
from obmm.errors import ClosedError, ObmmArgumentError, RemoteMemoryError, StaleHandleError
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
from obmm.urma.standin import StandIn

from .conftest import OwnerProcess
from .owner import content

ROWS, ROW, STRIDE = 2000, 264, 320
SIZE = ROWS * STRIDE
SPEC = TableSpec("t", ROWS, ROW, STRIDE, 0)
Published = tuple[bytes, Manifest, np.ndarray]


@pytest.fixture
def table() -> np.ndarray:
    return content(31, SIZE).reshape(ROWS, STRIDE)[:, :ROW]


@pytest.fixture
def memory(context: urma.Context, owner: OwnerProcess) -> Iterator[urma.UrmaMemory]:
    _, ticket = owner.register(31, SIZE)
    with urma.UrmaMemory(context, ticket, header=False) as memory:
        yield memory


@pytest.fixture
def store(memory: urma.UrmaMemory) -> RowStore:
    return RowStore.attach(memory, Manifest((SPEC,)))


@pytest.mark.parametrize("count", [0, 1, 1536, 10_000])
def test_rows_are_gathered_from_another_process(store: RowStore, table: np.ndarray, count: int) -> None:
    ids = np.random.default_rng(count).integers(0, ROWS, count)
    assert (store.gather("t", ids) == table[ids]).all()


def test_a_step_is_one_list(store: RowStore, context: urma.Context) -> None:
    ids = np.arange(1536)
    out = np.empty((1536, ROW), np.uint8)
    before = context.library.counters()
    store.gather_into("t", ids, out)
    after = context.library.counters()
    assert before is not None
    assert after is not None
    assert after["posts"] - before["posts"] == 1


def test_tickets_strides_and_ids_that_give_zeros(store: RowStore, table: np.ndarray) -> None:
    ids = np.array([5, -1, 7, ROWS, 9], np.int32)
    wide = np.full((5, 512), 9, np.uint8)
    ticket = store.submit("t", ids, wide[:, :ROW], invalid="zero")
    assert ticket.wait(5)
    assert ticket.result() == 3
    expected = np.zeros((5, ROW), np.uint8)
    expected[[0, 2, 4]] = table[[5, 7, 9]]
    assert (wide[:, :ROW] == expected).all()
    assert (wide[:, ROW:] == 9).all()


def test_a_bad_id_posts_nothing(store: RowStore, context: urma.Context) -> None:
    before = context.library.counters()
    with pytest.raises(ObmmArgumentError, match="2000"):
        store.gather("t", [1, ROWS])
    assert context.library.counters() == before


def test_threads_share_one_memory(store: RowStore, table: np.ndarray) -> None:
    wrong = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            ids = rng.integers(0, ROWS, 700)
            if not (store.gather("t", ids) == table[ids]).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_failed_list_is_an_error_and_the_next_gather_has_a_new_queue(
    store: RowStore, memory: urma.UrmaMemory, standin: StandIn, table: np.ndarray
) -> None:
    standin.inject("at=3,status=16")
    with pytest.raises(RemoteMemoryError, match="REM_DATA_POISON") as caught:
        store.gather("t", [1, 2, 3, 4, 5])
    assert caught.value.offset == 4 * STRIDE
    standin.mend()
    assert (store.gather("t", [1, 2, 3]) == table[[1, 2, 3]]).all()


def test_a_dead_owner_fails_each_gather_in_time(context: urma.Context, spawn: Callable[..., OwnerProcess]) -> None:
    owner = spawn()
    _, ticket = owner.register(31, SIZE)
    with urma.UrmaMemory(context, ticket, header=False) as memory:
        store = RowStore.attach(memory, Manifest((SPEC,)))
        owner.kill()
        for _ in range(2):
            with pytest.raises(RemoteMemoryError, match="ACK_TIMEOUT"):
                store.gather("t", [1])


def test_a_closed_memory_refuses(store: RowStore, memory: urma.UrmaMemory) -> None:
    memory.close()
    with pytest.raises(ClosedError):
        store.gather("t", [1])


def test_what_needs_an_address_or_a_header_is_refused(store: RowStore, memory: urma.UrmaMemory) -> None:
    with pytest.raises(ObmmArgumentError, match="hot_rows"):
        RowStore.attach(memory, Manifest((SPEC,)), hot_rows=100)
    with pytest.raises(ValueError, match="gather the rows"):
        store.view("t")


@pytest.fixture
def published(context: urma.Context) -> Iterator[tuple[RowStore, urma.UrmaMemory, Manifest]]:
    """A table with a header, published by this very process, and read over the queue."""
    buffer = context.buffer(4096 + SIZE, "r")
    LocalMemory.format(buffer, 77)
    local = LocalMemory(buffer, header=True)
    writer = RowStore.attach(local, Manifest((SPEC,)), verify="none")
    with context.queue() as queue:
        ticket = context.segment_of(buffer)[0].ticket(queue)
        writer.populate("t", content(32, ROWS * ROW).reshape(ROWS, ROW))
        manifest = writer.publish()
        with urma.UrmaMemory(context, ticket) as memory:
            yield writer, memory, manifest
    local.close()


def test_a_publication_is_checked_and_a_new_one_is_noticed(
    published: tuple[RowStore, urma.UrmaMemory, Manifest],
) -> None:
    writer, memory, manifest = published
    reader = RowStore.attach(memory, manifest)
    assert (reader.gather("t", [0, ROWS - 1]) == content(32, ROWS * ROW).reshape(ROWS, ROW)[[0, ROWS - 1]]).all()
    writer.populate("t", np.zeros((1, ROW), np.uint8))
    with pytest.raises(StaleHandleError):
        reader.gather("t", [0])
    assert reader.check_generation() % 2  # being written
    published_again = writer.publish()
    assert reader.check_generation() == published_again.generation != manifest.generation
    with pytest.raises(StaleHandleError):
        RowStore.attach(memory, manifest)


def test_a_step_of_the_prefetcher_is_gathered_in_the_background(store: RowStore, table: np.ndarray) -> None:
    ids, out = np.zeros(300, np.int64), np.empty((300, ROW), np.uint8)
    step = store.prepare_many([("t", ids[:100], out[:100]), ("t", ids[100:], out[100:])])
    for seed in range(5):
        ids[:] = np.random.default_rng(seed).integers(0, ROWS, 300)
        for ticket in step.submit():
            ticket.result()
        assert (out == table[ids]).all()


def test_a_version_that_cannot_be_read_is_an_error_of_this_memory(
    published: tuple[RowStore, urma.UrmaMemory, Manifest], standin: StandIn
) -> None:
    _, memory, manifest = published
    reader = RowStore.attach(memory, manifest)
    standin.inject("at=0,status=16")
    with pytest.raises(RemoteMemoryError, match="REM_DATA_POISON"):
        reader.gather("t", [0])


def test_the_plan_says_what_a_list_costs_and_that_it_is_a_stand_in(store: RowStore) -> None:
    assert "stand-in: says nothing about hardware" in store.explain()
    assert ", urma, " in store.explain()
