# SPDX-License-Identifier: Apache-2.0
"""A run in a stream whose loads do not come back: zeros and a status in time, and never a late byte."""

from __future__ import annotations

import errno
import time

import numpy as np
import pytest
from stuck_pages import StuckPages

from obmm.errors import ObmmError
from obmm.rows import GatherEngine, LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Stream
from obmm.rows.fake_accelerator import FakeAccelerator
from obmm.rows.stream_gather import StreamGather

ROWS, SPEC = 1024, TableSpec("t", 1024, 64)


@pytest.fixture
def pages():
    try:
        pages = StuckPages(ROWS * 64)
    except OSError as error:
        pytest.skip(f"no userfaultfd here: {error}")
    yield pages
    pages.release()


@pytest.fixture
def engine(pages):
    engine = GatherEngine(2)
    yield engine
    pages.release()
    engine.close()


def stuck(pages, engine):
    return RowStore.attach(LocalMemory(pages.map), Manifest((SPEC,)), verify="none", plan=False, engine=engine)


def test_rows_in_time_are_right():
    data = np.random.default_rng(1).integers(0, 256, (ROWS, 64), np.uint8)
    accelerator = FakeAccelerator()
    with (
        RowStore.attach(LocalMemory(data.reshape(-1)), Manifest((SPEC,)), verify="none", plan=False) as store,
        StreamGather(store, "t", 24, accelerator, deadline=30.0) as gather,
    ):
        for seed in range(100):
            gather.ids[:] = np.random.default_rng(seed).integers(0, ROWS, 24)
            gather.enqueue()
            accelerator.synchronize()
            assert (np.asarray(gather.rows) == data[gather.ids]).all()
        gather.ids[3] = ROWS
        gather.enqueue()
        accelerator.synchronize()
        assert not np.asarray(gather.rows).any()
        with pytest.raises(ObmmError, match=str(ROWS)):
            gather.check()
    gather.forget()


def test_a_stream_goes_on_with_zeros_when_the_deadline_is_over(pages, engine):
    accelerator = FakeAccelerator()
    gather = StreamGather(stuck(pages, engine), "t", 24, accelerator, deadline=0.05)
    stream = Stream(accelerator)
    gather.staged[:] = 7
    began = time.monotonic()
    for _ in range(3):  # those behind the first do not wait at all
        gather.enqueue(stream)
    accelerator.synchronize(stream.handle)
    assert time.monotonic() - began < 10
    assert not np.asarray(gather.rows).any()
    assert (gather.runs, gather.failed, gather.status) == (3, 3, errno.ETIMEDOUT)
    with pytest.raises(ObmmError, match="deadline") as caught:
        gather.check()
    assert caught.value.errno == errno.ETIMEDOUT
    pages.release()
    for _ in range(2000):
        gather.enqueue(stream)
        accelerator.synchronize(stream.handle)
        if gather.status == 0:
            break
        time.sleep(0.005)
    assert gather.status == 0
    gather.close()
    gather.forget()


def test_closing_leaves_a_late_gather_its_memory(pages, engine):
    accelerator = FakeAccelerator()
    gather = StreamGather(stuck(pages, engine), "t", 24, accelerator, deadline=0.02)
    gather.enqueue()
    accelerator.synchronize()
    assert gather.status == errno.ETIMEDOUT
    gather.close()
    gather.forget()
    assert engine.in_use == 1
    pages.release()
    end = time.monotonic() + 20
    while engine.abandoned and time.monotonic() < end:
        time.sleep(0.005)
    assert engine.in_use == 0


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), 1e9, "soon"])
def test_a_deadline_that_is_none_is_refused(deadline):
    accelerator = FakeAccelerator()
    memory = LocalMemory(np.zeros(ROWS * 64, np.uint8))
    with (
        RowStore.attach(memory, Manifest((SPEC,)), verify="none", plan=False) as store,
        pytest.raises(ObmmError, match="deadline"),
    ):
        StreamGather(store, "t", 24, accelerator, deadline=deadline)
