# SPDX-License-Identifier: Apache-2.0
"""The device plug-in, played by a device whose copies run when they are told to (Engram specification 7.2, 10-19)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from memory_source import MemorySource, MemoryTable, fault, until
from played_device import PlayedDevice

from obmm.prefetch import Deadlines, PrefetchLayer, RowsStatus
from obmm.prefetch import EngramPrefetcher as _EngramPrefetcher

EngramPrefetcher = partial(_EngramPrefetcher, deadlines=Deadlines(decode=10))
TABLE = MemoryTable(1_000, 264, neutral_zero=True)


@pytest.fixture
def source() -> Iterator[MemorySource]:
    made = MemorySource({"t": TABLE})
    yield made
    made.close()


def test_rows_arrive_at_one_device_address_and_staging_waits_for_its_copy(source: MemorySource) -> None:
    device = PlayedDevice()
    random = np.random.default_rng(1)
    with EngramPrefetcher(source, [PrefetchLayer(1, "t", 4)], 8, device=device) as prefetcher:
        assert device.pinned == [8 * 4 * 264] * 3
        home = prefetcher.rows_u8(1)
        read = 0
        for step in range(20):
            ids = random.integers(0, 1_000, (8, 1, 4))
            prefetcher.begin(ids, 8)
            prefetcher.start()
            rows = prefetcher.consume(1, stream=f"stream {step}")
            assert device.waited[-1] == f"stream {step}"
            assert np.shares_memory(rows.buffer, home)
            prefetcher.drain()
            # The compute stream runs late: another step is begun while this copy has not left its slot.
            other = random.integers(0, 1_000, (8, 1, 4))
            prefetcher.begin(other, 8)
            prefetcher.start()
            read += 64
            until(lambda expected=read: source.rows_read >= expected)  # type: ignore[misc]
            device.run()
            assert np.array_equal(home, TABLE.rows(ids[:, 0], 2))
            prefetcher.consume(1)
            device.run()
            assert np.array_equal(home, TABLE.rows(other[:, 0], 2))
            prefetcher.drain()
        assert not prefetcher.metrics.sync_fallback.values
    h2d = prefetcher.metrics.h2d
    assert h2d.cumulative(("1",))[-1] == 40
    assert h2d.sums[("1",)] == pytest.approx(40 * 0.002)


def test_poll_starts_the_copy_as_soon_as_the_layer_is_there(source: MemorySource) -> None:
    device = PlayedDevice()
    with EngramPrefetcher(source, [PrefetchLayer(1, "t", 4)], 8, device=device) as prefetcher:
        prefetcher.begin(np.zeros((8, 1, 4), np.int64), 8)
        prefetcher.start()
        until(lambda: prefetcher.poll(1))
        assert len(device.queue) == 1
        prefetcher.consume(1)
        assert len(device.queue) == 1


def test_zeros_reach_the_device_too(source: MemorySource) -> None:
    device = PlayedDevice()
    source.alive = False
    with EngramPrefetcher(source, [PrefetchLayer(1, "t", 4)], 8, device=device, policy="zero") as prefetcher:
        prefetcher.rows_u8(1)[:] = 7
        prefetcher.begin(np.zeros((8, 1, 4), np.int64), 8)
        prefetcher.start()
        assert prefetcher.consume(1).status is RowsStatus.ZEROED
        device.run()
        assert not prefetcher.rows_u8(1).any()


@pytest.mark.parametrize("policy", ["retry", "local", "zero", "raise"])
def test_what_poll_saw_fail_reaches_the_device_as_what_took_its_place(source: MemorySource, policy: Any) -> None:
    """The bytes of a failed gather are not rows: they must not be copied before the policy has replaced them."""
    device, other = PlayedDevice(), MemorySource({"t": TABLE})
    ids = np.random.default_rng(2).integers(0, 1_000, (8, 1, 4))
    failures = iter([fault()])

    def once() -> None:
        for error in failures:
            prefetcher._buffers[1]._slots[0].rows[:] = 0xEE  # what a gather that ends early leaves
            raise error

    source.before = once
    with EngramPrefetcher(
        source, [PrefetchLayer(1, "t", 4)], 8, device=device, policy=policy, replica=other
    ) as prefetcher:
        prefetcher.begin(ids, 8)
        prefetcher.start()
        until(lambda: prefetcher.poll(1))
        device.run()  # a copy that is under way may be over at any time
        rows = prefetcher.consume(1)
        device.run()
        right = TABLE.rows(ids[:, 0], 2) if policy in ("retry", "local") else np.zeros_like(rows.buffer)
        assert np.array_equal(rows.buffer, right)
        assert (
            rows.status
            is {
                "retry": RowsStatus.OK,
                "local": RowsStatus.REPLICA,
                "zero": RowsStatus.ZEROED,
                "raise": RowsStatus.FAILED,
            }[policy]
        )
        prefetcher.cancel()
    other.close()
