# SPDX-License-Identifier: Apache-2.0
"""Ascend's part of the table, against a library that plays its runtime and writes every call down.

Nothing here was run on hardware: what is tested is that each function makes the calls that ACL's interface asks for, with
the arguments and in the order that it asks for, and that nothing is left.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from obmm.errors import ObmmError
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus
from obmm.prefetch.landing import NativeDevice
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Accelerator, PinnedMemory, SharedRows, Stream
from obmm.rows.stream_gather import StreamGather

N_ROWS, ROW_BYTES = 512, 264
TO_DEVICE, TO_HOST, WAITS = "1", "2", "1"


class Recorder:
    """The library, and what was called."""

    def __init__(self, path):
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.recorder_log.restype = ctypes.c_char_p

    @property
    def calls(self):
        """Each call: its name, two arguments, the device that was set on its thread."""
        lines = self._library.recorder_log().decode().splitlines()
        return [(line.rsplit(" ", 4)[0], *line.rsplit(" ", 4)[1:3], line.rsplit(" ", 1)[1]) for line in lines]

    @property
    def names(self):
        return [call[0] for call in self.calls]

    @property
    def left(self):
        """Memories, streams and events that were not given back."""
        return tuple(self._library.recorder_left(what) for what in range(3))

    def clear(self):
        self._library.recorder_clear()

    def refuse_pinned(self, on):
        self._library.recorder_refuse_pinned(int(on))


@pytest.fixture(scope="module", params=["first", "later"])
def recorder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("acl") / f"libascendcl-{request.param}.so"
    more = ["-DLATER"] if request.param == "later" else []
    source = Path(__file__).with_name("acl_recorder.c")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", *more, "-o", str(path), str(source)],
        check=True,
    )
    recorder = Recorder(path)
    recorder.later = request.param == "later"
    return recorder


@pytest.fixture
def accelerator(recorder):
    recorder.clear()
    return Accelerator.ascend(3, recorder.path)


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(1).integers(0, 256, (N_ROWS, ROW_BYTES), np.uint8)


@pytest.fixture
def store(table):
    manifest = Manifest((TableSpec("t", N_ROWS, ROW_BYTES),))
    with RowStore.attach(LocalMemory(table.reshape(-1)), manifest, verify="none", plan=False) as store:
        yield store


def on_device(array):
    """Device memory: the library's is memory of this process."""
    return np.frombuffer(ctypes.string_at(array.address, array.nbytes), np.uint8).reshape(array.shape)


def test_every_thread_enters_the_device_before_it_calls(accelerator, recorder, store):
    with StreamGather(store, "t", 24, accelerator) as gather:
        stream = Stream(accelerator)
        gather.enqueue(stream)
        accelerator.synchronize(stream.handle)
    assert {call[3] for call in recorder.calls if call[0] != "aclInit"} == {"3"}
    gather.forget()


def test_a_gather_in_a_stream_makes_the_three_calls_in_order(accelerator, recorder, store, table):
    stream = Stream(accelerator)
    gather = StreamGather(store, "t", 24, accelerator)
    ids = np.arange(24, dtype=np.int64)
    recorder.clear()
    gather.enqueue(stream, ids.ctypes.data)
    copies = [call for call in recorder.calls if call[0] == "aclrtMemcpyAsync"]
    assert [(call[1], call[2]) for call in copies] == [(str(24 * 8), TO_HOST), (str(24 * ROW_BYTES), TO_DEVICE)]
    names = [name for name in recorder.names if name not in ("aclrtSetDevice", "aclmdlRICaptureGetInfo")]
    if recorder.later:
        assert names == ["aclrtMemcpyAsync", "aclrtLaunchHostFunc", "aclrtMemcpyAsync"]
    else:
        assert names == [
            "aclrtMemcpyAsync",
            "aclrtSubscribeReport",
            "aclrtLaunchCallback",
            "runs a callback",
            "aclrtMemcpyAsync",
        ]
        # what is behind it in the stream waits for it
        assert [call[1] for call in recorder.calls if call[0] == "aclrtLaunchCallback"] == [WAITS]
    assert (on_device(gather.rows) == table[ids]).all()
    gather.check()
    gather.close()
    gather.forget()


def test_streams_are_subscribed_once_and_given_back_before_they_end(accelerator, recorder, store):
    gather = StreamGather(store, "t", 24, accelerator)
    for _ in range(70):  # more than may be subscribed at once
        stream = Stream(accelerator)
        gather.enqueue(stream)
        gather.enqueue(stream)
        del stream
    calls = Counter(recorder.names)
    expected = 0 if recorder.later else 70
    assert (calls["aclrtSubscribeReport"], calls["aclrtUnSubscribeReport"]) == (expected, expected)
    assert gather.runs == 140
    gather.close()
    gather.forget()


def test_prefetched_rows_reach_the_device(accelerator, recorder, store, table):
    layers = [PrefetchLayer(layer, "t", 2) for layer in range(3)]
    device = NativeDevice(accelerator)
    with EngramPrefetcher(store, layers, 8, device=device, deadlines=Deadlines(decode=30.0)) as pre:
        for seed in range(50):
            ids = np.random.default_rng(seed).integers(0, N_ROWS, (8, 3, 2))
            pre.begin(ids, 8)
            pre.start()
            for layer in range(3):
                rows = pre.consume(layer)
                assert rows.status is RowsStatus.OK
                assert (on_device(rows.buffer) == table[ids[:, layer]]).all()
            pre.drain()
    names = set(recorder.names)
    assert {"aclrtRecordEvent", "aclrtStreamWaitEvent", "aclrtQueryEventStatus"} <= names
    assert ("aclrtCreateEventExWithFlag" in names) == recorder.later
    assert ("aclrtCreateEvent" in names) != recorder.later


def test_memory_is_zeroed_and_nothing_is_left(recorder, store):
    gc.collect()
    before = recorder.left
    accelerator = Accelerator.ascend(2, recorder.path)
    gather = StreamGather(store, "t", 24, accelerator)
    assert not gather.staged.any()
    assert not on_device(gather.rows).any()
    stream = Stream(accelerator)
    gather.enqueue(stream)
    gather.close()
    gather.forget()
    del gather, stream, accelerator
    gc.collect()
    assert recorder.left == before


def test_refused_memory_is_one_sentence(accelerator, recorder):
    recorder.refuse_pinned(True)
    with pytest.raises(ObmmError, match=r"4096 pinned bytes: pinned memory: ACL error 200000.*; fix: ") as caught:
        PinnedMemory(accelerator, 4096)
    recorder.refuse_pinned(False)
    assert caught.value.errno == errno.ENOMEM
    assert ("the device has no more memory" in str(caught.value)) == recorder.later


def test_a_device_that_is_not_there_is_one_sentence(recorder):
    with pytest.raises(ObmmError, match=r"device 9: enter the device: ACL error 100000") as caught:
        Accelerator.ascend(9, recorder.path)
    assert caught.value.errno == errno.ENODEV


AFTER_AN_ENDED_ONE = """
import gc, sys
from obmm.errors import ObmmError
from obmm.rows.accelerator import Accelerator, PinnedMemory

accelerator = Accelerator.ascend(3, sys.argv[1])
PinnedMemory(accelerator, 4096)
del accelerator
gc.collect()
others = [b"\\xa5" * size for size in range(560, 2048, 8) for _ in range(8)]  # the next users of that memory
try:
    Accelerator.ascend(9, sys.argv[1])
except ObmmError as error:
    print(error)
"""


def test_the_words_of_a_refusal_are_not_asked_of_an_ended_device(recorder):
    """Freed memory is used again here: a table of functions that is read there ends the process."""
    command = [sys.executable, "-P", "-c", AFTER_AN_ENDED_ONE, recorder.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "device 9: enter the device: ACL error 100000" in done.stdout


def test_a_thread_goes_back_to_the_device_that_it_calls(accelerator, recorder):
    Accelerator.ascend(5, recorder.path)
    recorder.clear()
    PinnedMemory(accelerator, 4096)
    assert [call[3] for call in recorder.calls if call[0] == "aclrtMallocHost"] == ["3"]


def test_a_number_that_is_no_stream_is_refused(accelerator, recorder, store):
    gather = StreamGather(store, "t", 24, accelerator)
    with pytest.raises(ObmmError, match="is not a stream"):
        gather.enqueue(12345)
    gather.close()
    gather.forget()


def test_a_replica_is_registered_where_the_runtime_can(accelerator, recorder, table):
    if recorder.later:
        shared = SharedRows(accelerator, table.copy())
        assert (on_device(shared.on_device) == table).all()
        del shared
        gc.collect()
        assert "aclrtHostUnregister" in recorder.names
    else:
        with pytest.raises(ObmmError, match="no aclrtHostRegister") as caught:
            SharedRows(accelerator, table.copy())
        assert caught.value.errno == errno.ENOSYS
