# SPDX-License-Identifier: Apache-2.0
"""What a device and its users get wrong, on the fake device: one sentence each, and nothing is left of it."""

from __future__ import annotations

import errno
import gc
import os

import numpy as np
import pytest

import obmm
from obmm.errors import ClosedError, ObmmArgumentError, ObmmError
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus
from obmm.prefetch.landing import NativeDevice
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.accelerator import DeviceArray, Event, PinnedMemory, SharedRows, Stream
from obmm.rows.fake_accelerator import FakeAccelerator
from obmm.rows.stream_gather import StreamGather

N_ROWS, ROW_BYTES, TOKENS = 512, 264, 8
NOTHING = {"memories": 0, "streams": 0, "events": 0}


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(1).integers(0, 256, (N_ROWS, ROW_BYTES), np.uint8)


@pytest.fixture
def store(table):
    manifest = Manifest((TableSpec("t", N_ROWS, ROW_BYTES, neutral_zero=True),))
    with RowStore.attach(LocalMemory(table.reshape(-1)), manifest, verify="none", plan=False) as store:
        yield store


@pytest.fixture
def accelerator():
    return FakeAccelerator()


@pytest.fixture
def gather(store, accelerator):
    gather = StreamGather(store, "t", 24, accelerator)
    yield gather
    gather.close()
    gather.forget()


def prefetcher(store, accelerator):
    layers = [PrefetchLayer(layer, "t", 2) for layer in range(3)]
    return EngramPrefetcher(
        store, layers, TOKENS, device=NativeDevice(accelerator), deadlines=Deadlines(decode=30.0), policy="zero"
    )


def step(pre, ids):
    pre.begin(ids, len(ids))
    pre.start()


def one_sentence(caught, number):
    text = str(caught.value)
    assert caught.value.errno == number, text
    assert "DEVICE: " in text
    assert "; fix: " in text
    assert "\n" not in text


class TestStreams:
    """Handles that are not streams of this device."""

    WRONG = (12345, 0xDEAD_BEEF_0000, (1 << 47) - 8)

    @pytest.mark.parametrize("handle", WRONG)
    def test_a_number_that_is_no_stream_is_refused_by_enqueue_and_send(self, gather, handle):
        for call in (gather.enqueue, gather.send):
            with pytest.raises(ObmmError) as caught:
                call(handle)
            one_sentence(caught, errno.EINVAL)
        assert gather.runs == 0

    @pytest.mark.parametrize("handle", WRONG)
    def test_consume_for_such_a_stream_raises_and_the_step_goes_on(self, store, accelerator, table, handle):
        with prefetcher(store, accelerator) as pre:
            ids = np.ones((2, 3, 2), np.int64)
            step(pre, ids)
            with pytest.raises(ObmmError) as caught:
                pre.consume(0, handle)
            one_sentence(caught, errno.EINVAL)
            rows = pre.consume(0)
            accelerator.synchronize()
            assert rows.status is RowsStatus.OK
            assert (np.asarray(rows.buffer) == table[1]).all()
            pre.drain()

    def test_a_stream_of_another_device_is_refused(self, gather):
        other = FakeAccelerator()
        theirs = Stream(other)
        with pytest.raises(ObmmError) as caught:
            gather.enqueue(theirs)
        one_sentence(caught, errno.EINVAL)

    def test_a_stream_that_has_ended_is_refused(self, gather, accelerator):
        handle = Stream(accelerator).handle
        gc.collect()
        with pytest.raises(ObmmError) as caught:
            gather.enqueue(handle)
        one_sentence(caught, errno.EINVAL)


class TestTensors:
    """Memory that is not this device's."""

    class Tensor:
        """A tensor as far as a door looks at it: of another device."""

        def __init__(self, device):
            self.device = device

        def __dlpack_device__(self):
            return self.device

        def data_ptr(self):
            raise AssertionError("its address was asked for")

    @pytest.mark.parametrize("device", [(2, 0), (2, 1), (12, 3)])
    def test_ids_of_another_device_are_refused(self, gather, device):
        with pytest.raises(ObmmError, match="device"):
            gather.enqueue(None, self.Tensor(device))
        assert gather.runs == 0

    def test_an_address_where_nothing_lies_is_refused(self, gather):
        with pytest.raises(ObmmError) as caught:
            gather.enqueue(None, 64)
        one_sentence(caught, errno.EINVAL)

    def test_tensors_of_torch_are_taken_where_they_fit(self, gather, accelerator, table):
        torch = pytest.importorskip("torch", reason="torch is an extra")
        ids = torch.arange(24)
        gather.enqueue(None, ids)
        accelerator.synchronize()
        assert (np.asarray(gather.rows) == table[:24]).all()
        with pytest.raises(ObmmError):
            gather.enqueue(None, ids.to("meta"))


class TestCaptures:
    """Graphs: what can be in them, and what cannot."""

    def test_a_captured_gather_is_replayed_with_the_ids_of_then(self, gather, accelerator, table):
        stream, ids = Stream(accelerator), np.zeros(24, np.int64)
        accelerator.capture(stream)
        gather.enqueue(stream, ids)
        graph = accelerator.end_capture(stream)
        assert gather.runs == 0
        for seed in range(1000):
            ids[:] = np.random.default_rng(seed).integers(0, N_ROWS, 24)
            graph.replay(stream)
            accelerator.synchronize(stream.handle)
            assert (np.asarray(gather.rows) == table[ids]).all()
        gather.check()
        assert gather.runs == 1000

    def test_a_branch_of_the_capture_may_gather(self, gather, accelerator, table):
        main, side, ids = Stream(accelerator), Stream(accelerator), np.arange(24)
        fork, join, native = Event(accelerator), Event(accelerator), accelerator.pointer
        accelerator.capture(main)
        assert native.record(native, fork.handle, main.handle) == 0
        assert native.wait(native, side.handle, fork.handle) == 0
        gather.enqueue(side, ids)
        assert native.record(native, join.handle, side.handle) == 0
        assert native.wait(native, main.handle, join.handle) == 0
        graph = accelerator.end_capture(main)
        assert gather.runs == 0
        graph.replay(main)
        accelerator.synchronize(main.handle)
        assert (np.asarray(gather.rows) == table[:24]).all()

    def test_send_under_capture_is_refused_and_the_capture_goes_on(self, gather, accelerator):
        stream = Stream(accelerator)
        accelerator.capture(stream)
        with pytest.raises(ObmmError) as caught:
            gather.send(stream)
        one_sentence(caught, errno.EBUSY)
        gather.enqueue(stream)
        accelerator.end_capture(stream)
        assert gather.runs == 0

    def test_rows_from_before_a_capture_cannot_be_part_of_it(self, store, accelerator):
        stream = Stream(accelerator)
        with prefetcher(store, accelerator) as pre:
            step(pre, np.ones((2, 3, 2), np.int64))
            pre.consume(1)  # the rows are there
            accelerator.capture(stream)
            with pytest.raises(ObmmError) as caught:
                pre.consume(0, stream)
            one_sentence(caught, errno.EINVAL)
            with pytest.raises(ObmmError):
                accelerator.end_capture(stream)
            assert pre.consume(0, stream).status is RowsStatus.OK
            pre.drain()

    def test_a_graph_that_outlives_its_gather_gets_zeros(self, store, accelerator):
        stream = Stream(accelerator)
        gather = StreamGather(store, "t", 24, accelerator)
        accelerator.capture(stream)
        gather.enqueue(stream)
        graph = accelerator.end_capture(stream)
        graph.replay(stream)
        accelerator.synchronize(stream.handle)
        assert np.asarray(gather.rows).any()
        gather.close()
        graph.replay(stream)
        accelerator.synchronize(stream.handle)
        assert not np.asarray(gather.rows).any()
        assert gather.status == errno.ESHUTDOWN
        gather.forget()


class TestRefusedMemory:
    """Whatever cannot be made: one sentence, and what was made before is given back."""

    def everything(self, store, accelerator):
        with prefetcher(store, accelerator):
            pass

    def one_gather(self, store, accelerator):
        gather = StreamGather(store, "t", 24, accelerator)
        gather.close()
        gather.forget()

    @pytest.mark.parametrize("make", ["everything", "one_gather"])
    def test_each_of_its_parts_may_be_refused(self, store, make):
        accelerator, refused, others = FakeAccelerator(), True, 0
        while refused:
            accelerator.refuse_after(others)
            refused = False
            try:
                getattr(self, make)(store, accelerator)
            except ObmmError as error:
                refused = True
                assert error.errno == errno.ENOMEM
                assert "; fix: " in str(error)
                assert "no more" in str(error)
                error.__traceback__ = None
            gc.collect()
            assert accelerator.left == NOTHING, f"after {others} that were made"
            others += 1
        accelerator.refuse_after(1 << 30)
        assert others > 3

    def test_pinned_memory_that_is_refused_says_how_much(self, accelerator):
        accelerator.refuse_after(0)
        with pytest.raises(ObmmError, match="4096 pinned bytes") as caught:
            PinnedMemory(accelerator, 4096)
        one_sentence(caught, errno.ENOMEM)
        assert accelerator.left == NOTHING


class TestEvents:
    """Events outlive the streams that they were recorded in."""

    def test_an_event_of_a_stream_that_has_ended_can_be_waited_for(self, accelerator):
        native, event, reader = accelerator.pointer, Event(accelerator), Stream(accelerator)
        memory, pinned = DeviceArray(accelerator, (64,)), PinnedMemory(accelerator, 64)
        pinned.array(np.uint8, (64,))[:] = 3
        copies = Stream(accelerator)
        assert native.to_device(native, memory.address, pinned._memory, 64, copies.handle) == 0
        assert native.record(native, event.handle, copies.handle) == 0
        del copies
        gc.collect()
        assert native.wait(native, reader.handle, event.handle) == 0
        accelerator.synchronize(reader.handle)
        assert native.query(native, event.handle) == 0
        assert (np.asarray(memory) == 3).all()

    def test_an_event_that_is_none_is_refused(self, accelerator):
        native, handle = accelerator.pointer, Event(accelerator).handle
        gc.collect()
        assert native.query(native, handle) == -errno.EINVAL
        assert native.wait(native, 0, handle) == -errno.EINVAL
        with pytest.raises(ObmmError) as caught:
            accelerator.refuse(-errno.EINVAL, "wait for rows")
        one_sentence(caught, errno.EINVAL)

    def test_a_reader_that_ended_before_drain_holds_nothing_up(self, store, accelerator, table):
        with prefetcher(store, accelerator) as pre:
            for round in range(20):
                stream = Stream(accelerator)
                step(pre, np.full((2, 3, 2), round, np.int64))
                rows = pre.consume(0, stream)
                accelerator.synchronize(stream.handle)
                assert (np.asarray(rows.buffer) == table[round]).all()
                pre.drain()
                del stream


class TestArguments:
    """What is no device at all."""

    @pytest.mark.parametrize("device", ["cuda:0", 0, object()], ids=["name", "number", "object"])
    def test_a_device_by_name_is_refused(self, store, device):
        with pytest.raises(ObmmArgumentError, match=r"device=.*NativeDevice\(Accelerator"):
            EngramPrefetcher(store, [PrefetchLayer(0, "t", 2)], TOKENS, device=device)

    @pytest.mark.parametrize("make", [NativeDevice, Stream, Event], ids=lambda make: make.__name__)
    def test_an_accelerator_by_name_is_refused(self, make):
        with pytest.raises(ObmmArgumentError, match="accelerator='cuda'"):
            make("cuda")

    def test_memory_that_there_is_not_is_not_counted(self, accelerator):
        with pytest.raises(ObmmError):
            PinnedMemory(accelerator, 1 << 62)
        assert accelerator.left == NOTHING


def test_a_forked_child_is_told_and_waits_for_nothing(gather, accelerator):
    gather.enqueue()
    accelerator.synchronize()
    child = os.fork()
    if not child:
        told = 0
        for call in (gather.enqueue, gather.send, gather.run):
            try:
                call()
            except ClosedError as error:
                told += "forked" in str(error)
        gather.close()
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    gather.enqueue()
    accelerator.synchronize()
    assert gather.runs == 2


def test_a_forked_child_that_collects_a_device_waits_for_nothing(store):
    accelerator = FakeAccelerator()
    held = [Stream(accelerator), Event(accelerator), PinnedMemory(accelerator, 64), prefetcher(store, accelerator)]
    step(held[-1], np.ones((2, 3, 2), np.int64))
    held[-1].consume(0)
    accelerator.synchronize()
    child = os.fork()
    if not child:
        held.clear()
        del accelerator
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    held.pop().close()


class TestSharedRows:
    """Rows of this node that the device reads by itself."""

    def test_a_replica_is_read_where_it_lies(self, accelerator, table):
        rows = table.copy()
        shared = SharedRows(accelerator, rows)
        assert (np.asarray(shared.on_device) == rows).all()
        rows[5] = 9
        assert (np.asarray(shared.on_device)[5] == 9).all()
        assert accelerator.left["memories"] == 1
        view = shared.on_device
        del shared
        gc.collect()
        assert (np.asarray(view)[5] == 9).all()
        del view
        gc.collect()
        assert accelerator.left == NOTHING

    def refusal(self, accelerator, rows):
        try:
            SharedRows(accelerator, rows)
        except ObmmError as error:
            return error.with_traceback(None)
        raise AssertionError("it was registered")

    def test_rows_of_another_node_are_never_registered(self, accelerator):
        with (
            obmm.emulator.start(nodes=2) as fabric,
            obmm.open(fabric.device("a")) as a,
            obmm.open(fabric.device("b")) as b,
        ):
            region = a.export_region(1 << 20)
            imported = b.import_region(region.handle())
            with imported.map("r") as mapped:
                error = self.refusal(accelerator, np.frombuffer(mapped.view(), np.uint8).reshape(-1, 256))
                assert error.errno == errno.EPERM
                assert "mapped from another node" in str(error)
        assert accelerator.left == NOTHING

    @pytest.mark.parametrize("rows", [np.zeros((4, 8)), np.zeros(8, np.uint8), np.zeros((8, 8), np.uint8)[:, ::2]])
    def test_what_are_no_rows_is_refused(self, accelerator, rows):
        with pytest.raises(ObmmError) as caught:
            SharedRows(accelerator, rows)
        one_sentence(caught, errno.EINVAL)
