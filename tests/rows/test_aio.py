# SPDX-License-Identifier: Apache-2.0
"""Tickets that can be awaited, over real rows."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import threading

import numpy as np
import pytest
from row_shelf import Shelf, expected, publish

from obmm import ObmmArgumentError, ObmmError
from obmm.rows import GatherEngine, RowStore, TableSpec, aio
from tests.exchange.conftest import until

WIDTH = 264


@pytest.fixture
def store(shelf: Shelf, engine: GatherEngine) -> RowStore:
    owner = shelf.owner(TableSpec("t", 1000, WIDTH), engine=engine)
    return RowStore.attach(shelf.memory(), publish(owner), plan=False, engine=engine)


def test_a_gather_is_awaited_and_its_rows_are_there(store: RowStore) -> None:
    ids = np.array([3, 1, 2, 3])
    outs = [np.zeros((4, WIDTH), np.uint8) for _ in range(8)]
    before = threading.active_count()

    async def main() -> list[int]:
        tickets = [aio.submit(store, "t", ids, out) for out in outs]
        rows = [await ticket for ticket in tickets]
        assert threading.active_count() == before, "no thread waits"
        assert [await ticket for ticket in tickets] == rows, "awaited again it is still done"
        return rows

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [4] * 8
    for out in outs:
        np.testing.assert_array_equal(out, expected(ids, WIDTH))


def test_its_descriptor_is_readable_once_it_is_done(store: RowStore) -> None:
    ids, out = np.arange(50), np.zeros((50, WIDTH), np.uint8)
    ticket = aio.submit(store, "t", ids, out)
    assert select.select([ticket], [], [], 30)[0] == [ticket]
    until(ticket.done)
    assert ticket.result(10) == 50
    np.testing.assert_array_equal(out, expected(ids, WIDTH))


def test_what_cannot_be_gathered_is_refused_at_once_and_leaves_no_descriptor(store: RowStore) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(ObmmArgumentError):
            aio.submit(store, "t", np.array([10**9]), np.zeros((1, WIDTH), np.uint8))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_thousand_dropped_tickets_leave_nothing(store: RowStore, engine: GatherEngine) -> None:
    """Dropped while they run: a descriptor must not be closed, and used again, before the gather has written to it."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    ids, out = np.arange(50), np.zeros((50, WIDTH), np.uint8)
    for _ in range(1000):
        try:
            aio.submit(store, "t", ids, out)
        except ObmmError:
            until(lambda: engine.in_use == 0)
    aio.submit(store, "t", ids, out).result(10)
    until(lambda: engine.in_use == 0 and gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) == before)


def test_a_cancelled_await_leaves_the_gather_to_end(store: RowStore) -> None:
    ids, out = np.arange(50), np.zeros((50, WIDTH), np.uint8)

    async def main() -> None:
        ticket = aio.submit(store, "t", ids, out)

        async def waiting() -> int:
            return await ticket

        task = asyncio.create_task(waiting())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await ticket == 50

    asyncio.run(asyncio.wait_for(main(), 30))
    np.testing.assert_array_equal(out, expected(ids, WIDTH))
