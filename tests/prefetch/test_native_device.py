# SPDX-License-Identifier: Apache-2.0
"""Rows in device memory before the layer asks, on the fake device: every byte, every order, every fault."""

from __future__ import annotations

import gc
import os
import time

import numpy as np
import pytest
from memory_source import until

from obmm.errors import ObmmError
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus
from obmm.prefetch.landing import Landing, NativeDevice
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Accelerator, DeviceArray, PinnedMemory, Stream, handle_of
from obmm.rows.stream_gather import StreamGather

N_ROWS, ROW_BYTES, COLUMNS, LAYERS, TOKENS = 4096, 264, 8, 4, 16


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(1).integers(0, 256, (LAYERS, N_ROWS, ROW_BYTES), np.uint8)


@pytest.fixture
def store(table):
    specs = [
        TableSpec(layer, N_ROWS, ROW_BYTES, base_offset=layer * N_ROWS * ROW_BYTES, neutral_zero=True)
        for layer in range(LAYERS)
    ]
    with RowStore.attach(LocalMemory(table.reshape(-1)), Manifest(tuple(specs)), verify="none", plan=False) as store:
        yield store


@pytest.fixture
def device():
    return NativeDevice(Accelerator.fake())


def prefetcher(store, device, **options):
    layers = [PrefetchLayer(layer, layer, COLUMNS) for layer in range(LAYERS)]
    patient = Deadlines(decode=30.0)  # a busy machine is not a late peer
    return EngramPrefetcher(store, layers, TOKENS, device=device, deadlines=patient, **options)


def on_host(device, rows, stream=0):
    device.accelerator.synchronize(stream)
    return np.asarray(rows.buffer).copy()


def test_each_step_brings_its_own_rows_to_the_same_address(store, device, table):
    random = np.random.default_rng(2)
    with prefetcher(store, device) as pre:
        addresses = {layer: pre.rows_u8(layer).address for layer in range(LAYERS)}
        for _ in range(200):
            tokens = int(random.integers(1, TOKENS + 1))
            ids = random.integers(0, N_ROWS, (tokens, LAYERS, COLUMNS))
            pre.begin(ids, tokens)
            pre.start()
            for layer in range(LAYERS):
                rows = pre.consume(layer)
                assert rows.status is RowsStatus.OK
                assert rows.buffer.address == addresses[layer]
                assert (on_host(device, rows) == table[layer][ids[:, layer]]).all()
            pre.drain()


def test_the_gathering_thread_queues_the_copy_and_not_the_consumer(store, device, monkeypatch):
    monkeypatch.setattr(Landing, "copy", lambda *_: pytest.fail("queued by Python"))
    with prefetcher(store, device) as pre:
        pre.begin(np.zeros((2, LAYERS, COLUMNS), np.int64), 2)
        pre.start()
        deadline = time.monotonic() + 10
        flights = pre._steps[0].flights.values()
        while not all(flight.ticket.ready(flight.generation) for flight in flights):
            assert time.monotonic() < deadline
        for layer in range(LAYERS):
            pre.consume(layer)
        pre.drain()


def test_the_consumers_stream_waits_and_the_host_does_not(store, device, table):
    """A stream that is behind keeps its order: it reads the rows of its step, whenever it comes to it."""
    stream, accelerator = Stream(device.accelerator), device.accelerator
    host = PinnedMemory(accelerator, TOKENS * COLUMNS * ROW_BYTES)
    ids = np.random.default_rng(3).integers(0, N_ROWS, (TOKENS, LAYERS, COLUMNS))
    with prefetcher(store, device) as pre:
        pre.begin(ids, TOKENS)
        pre.start()
        rows = pre.consume(0, stream=stream)
        table_of_calls = accelerator.pointer
        from obmm._native import ffi

        into = ffi.cast("void *", host.address)
        accelerator.check(
            table_of_calls.to_host(table_of_calls, into, rows.buffer.address, host.nbytes, stream.handle), "read back"
        )
        pre.drain()
        accelerator.synchronize(stream.handle)
    assert (host.array(np.uint8, (TOKENS, COLUMNS, ROW_BYTES)) == table[0][ids[:, 0]]).all()


def test_a_step_that_was_begun_early_waits_for_its_turn(store, device, table):
    random = np.random.default_rng(4)
    steps = [random.integers(0, N_ROWS, (TOKENS, LAYERS, COLUMNS)) for _ in range(40)]
    with prefetcher(store, device, depth=2) as pre:
        pre.begin(steps[0], TOKENS)
        pre.start()
        for now, ids in enumerate(steps):
            if now + 1 < len(steps):
                pre.begin(steps[now + 1], TOKENS)
                pre.start()
            for layer in range(LAYERS):
                assert (on_host(device, pre.consume(layer)) == table[layer][ids[:, layer]]).all()
            pre.drain()


def test_a_cancelled_step_never_shows_in_the_next(store, device, table):
    random = np.random.default_rng(5)
    with prefetcher(store, device, depth=1) as pre:
        for _ in range(200):
            pre.begin(random.integers(0, N_ROWS, (TOKENS, LAYERS, COLUMNS)), TOKENS)
            pre.start()
            pre.cancel()
            ids = random.integers(0, N_ROWS, (TOKENS, LAYERS, COLUMNS))
            pre.begin(ids, TOKENS)
            pre.start()
            for layer in range(LAYERS):
                assert (on_host(device, pre.consume(layer)) == table[layer][ids[:, layer]]).all()
            pre.drain()


def test_padding_is_zero_on_the_device(store, device):
    with prefetcher(store, device) as pre:
        for tokens in (TOKENS, 3):
            pre.begin(np.zeros((tokens, LAYERS, COLUMNS), np.int64), tokens, TOKENS)
            pre.start()
            rows = on_host(device, pre.consume(0))
            pre.drain()
    assert not rows[3:].any()


def test_without_a_step_the_device_has_zeros(store, device):
    with prefetcher(store, device) as pre:
        assert not on_host(device, pre.consume(0)).any()


def test_nothing_is_left_after_a_life(store):
    def live() -> None:
        device = NativeDevice(Accelerator.fake())
        with prefetcher(store, device) as pre:
            pre.begin(np.zeros((2, LAYERS, COLUMNS), np.int64), 2)
            pre.start()

    live()  # the engine's own team stays
    gc.collect()
    before = set(os.listdir("/proc/self/task"))
    for _ in range(20):
        live()
    until(lambda: gc.collect() >= 0 and len(set(os.listdir("/proc/self/task")) - before) < 10)


class TestStreamGather:
    """A gather inside a stream."""

    @pytest.fixture
    def gather(self, store, device):
        gather = StreamGather(store, 0, 24, device.accelerator)
        yield gather
        gather.close()
        gather.forget()

    def test_each_run_brings_rows_of_the_ids_that_are_there_then(self, gather, device, table):
        stream = Stream(device.accelerator)
        for seed in range(100):
            ids = np.random.default_rng(seed).integers(0, N_ROWS, 24)
            gather.enqueue(stream, ids)
            device.accelerator.synchronize(stream.handle)
            assert (np.asarray(gather.rows) == table[0][ids]).all()
        gather.check()
        assert (gather.runs, gather.failed, gather.status) == (100, 0, 0)

    @pytest.mark.parametrize("wrong", [-1, N_ROWS, 1 << 40])
    def test_an_id_outside_gives_zeros_a_status_and_one_error(self, gather, device, wrong):
        gather.ids[:] = 5
        gather.enqueue()
        gather.ids[7] = wrong
        gather.enqueue()
        device.accelerator.synchronize()
        assert not np.asarray(gather.rows).any()
        assert gather.failed >= 1
        with pytest.raises(ObmmError, match=str(wrong)):
            gather.check()
        gather.check()

    def test_a_closed_gather_gives_zeros_to_graphs_that_are_left(self, gather, device):
        from obmm._native import lib

        gather.ids[:] = 5
        gather.run()
        assert gather.staged.any()
        gather.close()
        lib.obmm_stream_gather_run(gather._gather)  # what a replay would do
        assert not gather.staged.any()
        assert gather.status == 108

    @pytest.mark.parametrize(
        "ids", [np.zeros(3, np.int64), np.zeros(24, np.int32), np.zeros(48, np.int64)[::2], "text"]
    )
    def test_ids_that_do_not_fit_are_refused(self, gather, ids):
        with pytest.raises(ObmmError):
            gather.enqueue(None, ids)
        assert gather.runs == 0


@pytest.mark.parametrize("make", [Accelerator.cuda, Accelerator.ascend])
def test_a_missing_driver_is_one_sentence(make):
    with pytest.raises(ObmmError, match=r"DEVICE: device 0: .*no-such-library.*fix:") as caught:
        make(0, "/no-such-library.so")
    assert caught.value.errno == 38


@pytest.mark.parametrize("make", [Accelerator.cuda, Accelerator.ascend])
def test_a_library_that_lacks_a_function_is_named(make):
    with pytest.raises(ObmmError, match=r"libc\.so\.6 has no (cuInit|aclInit)") as caught:
        make(0, "libc.so.6")
    assert caught.value.errno == 80


def test_device_memory_is_zero_and_sliced_without_a_copy():
    accelerator = Accelerator.fake()
    array = DeviceArray(accelerator, (6, 4, 2))
    assert not np.asarray(array).any()
    part = array[2:4]
    np.asarray(part)[:] = 7
    assert (np.asarray(array)[2:4] == 7).all()
    assert (np.from_dlpack(array) == np.asarray(array)).all()
    del array
    assert (np.asarray(part) == 7).all()


def test_a_stream_is_taken_from_each_library_that_makes_one():
    class Theirs:
        cuda_stream = 77

    class Protocol:
        def __cuda_stream__(self):
            return 0, 78

    assert [handle_of(each) for each in (None, 5, Theirs(), Protocol())] == [0, 5, 77, 78]
    with pytest.raises(ObmmError, match="no stream"):
        handle_of("default")


@pytest.mark.parametrize("count", [1, 24, 1536, 6000])
def test_rows_are_sent_in_pieces_while_others_are_gathered(store, table, count):
    accelerator = Accelerator.fake()
    with StreamGather(store, 0, count, accelerator) as gather:
        random = np.random.default_rng(count)
        for _ in range(20):
            gather.ids[:] = random.integers(0, N_ROWS, count)
            gather.send()
            accelerator.synchronize()
            gather.check()
            assert (np.asarray(gather.rows) == table[0][gather.ids]).all()
        began, ended = gather.last_run
        assert 0 < began <= ended <= time.monotonic()


def test_what_is_sent_of_a_gather_that_fails_in_its_last_piece_is_zeros(store):
    accelerator = Accelerator.fake()
    with StreamGather(store, 0, 6000, accelerator) as gather:
        gather.ids[:] = 1
        gather.ids[5999] = N_ROWS
        gather.send()
        accelerator.synchronize()
        assert not np.asarray(gather.rows).any()
        with pytest.raises(ObmmError, match=f"{N_ROWS}"):
            gather.check()
        assert gather.failed == 1
