# SPDX-License-Identifier: Apache-2.0
"""A gather inside a device's stream, for engines whose decode is one captured graph (docs/device.md)."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm._native import ffi, lib
from obmm.arguments import U64, patience, seconds, whole, wrong_type
from obmm.closing import Closing, tell_of_forks
from obmm.errors import MappingBusyError, ObmmError
from obmm.rows.accelerator import Accelerator, DeviceArray, PinnedMemory, check_accelerator, handle_of
from obmm.rows.errors import refused
from obmm.rows.requests import Invalid, Requests
from obmm.rows.store import RowStore
from obmm.rows.table import TableId

_LONGEST = 3600.0  # seconds: a stream is held for so long at most


class StreamGather(Closing):
    """Rows of one table by ids that a device knows: ids to pinned memory, a native function that gathers, rows to the device.

    `enqueue` puts the three into a stream, under capture too; a graph replays them with whatever ids are there then.  No
    interpreter runs.  A fault, an id outside of the table (unless ``invalid="zero"``) or a table that is being published
    gives zeros for all rows, and `check` raises: the device never sees another step's bytes.

    `deadline`: seconds that a run waits for its rows, then it gives zeros and the status ETIMEDOUT, and so does every later
    run until the late gather has come back.  Workers gather then, into memory of their own: some 30 us and a copy on the host
    more.  None: the stream waits as long as the loads take.

    A forked child has neither the device's streams nor the threads that gather: there it is closed.

    `count`: ids a run.  `rows`: the device memory, uint8 ``[count, row_bytes]``, at an address that never changes.
    `ids`: the pinned ids, for who has them on the host.

        gather = StreamGather(store, "layer0", 24, Accelerator.cuda())
        with torch.cuda.graph(graph):
            gather.enqueue(torch.cuda.current_stream(), ids)   # ids: an int64 tensor of the device
            model(torch.as_tensor(gather.rows, device="cuda"))
        graph.replay()
        gather.check()
    """

    def __init__(
        self,
        store: RowStore,
        table: TableId,
        count: int,
        accelerator: Accelerator,
        *,
        invalid: Invalid = "error",
        deadline: float | None = None,
    ) -> None:
        check_accelerator(accelerator)
        if not isinstance(store, RowStore):
            raise wrong_type("GATHER", "store", store, "a RowStore")
        count = whole("GATHER", "count", count, low=1, high=1 << 24)
        spec = store._table(table).spec
        self.store = store
        self.accelerator = accelerator
        self._ids = PinnedMemory(accelerator, count * 8)
        self._pinned_rows = PinnedMemory(accelerator, count * spec.row_bytes)
        self.ids: NDArray[np.int64] = self._ids.array(np.int64, (count,))
        self.staged: NDArray[np.uint8] = self._pinned_rows.array(np.uint8, (count, spec.row_bytes))
        """The rows of the last run in host memory."""
        self.rows = DeviceArray(accelerator, (count, spec.row_bytes))
        self._requests: Requests = store.prepare_many([(table, self.ids, self.staged)], invalid=invalid)._requests
        self._gather: Any = ffi.new("struct obmm_stream_gather *")
        gather = self._gather
        gather.accelerator = accelerator.pointer
        gather.engine = store.engine.pointer
        gather.request = self._requests.array[0]
        gather.ids = ffi.cast("void *", self._ids.address)
        gather.rows = ffi.cast("uint8_t *", self._pinned_rows.address)
        gather.ids_bytes, gather.rows_bytes = self._ids.nbytes, self._pinned_rows.nbytes
        gather.device_rows = self.rows.address
        self._late: Any = None if deadline is None else self._in_time(deadline)
        self._open = True
        tell_of_forks(self)

    def _in_time(self, deadline: float) -> Any:
        """What a gather that is given up keeps: memory of its own.  `deadline` in seconds."""
        limit = seconds("GATHER", "deadline", deadline)
        if not 0 < limit <= _LONGEST:
            raise refused(f"deadline={deadline}", f"seconds above 0, up to {_LONGEST:.0f}")
        ids, rows = np.zeros_like(self.ids), np.zeros_like(self.staged)
        late = ffi.new("struct obmm_stream_deadline *")
        late.nanoseconds = int(limit * 1e9)
        late.ids, late.rows = ffi.cast("void *", ids.ctypes.data), ffi.cast("uint8_t *", rows.ctypes.data)
        late.request = self._gather.request
        late.request.ids, late.request.out = late.ids, late.rows
        self._gather.deadline = late
        return late, ids, rows, self._requests

    def enqueue(self, stream: Any = None, ids: Any = None) -> None:
        """Put a run into `stream` (torch's, CuPy's, a handle; None: the default one), which may be under capture.

        `ids`: `count` int64 in device memory, contiguous (a tensor, or an address); None: what is in `self.ids` when the
        run comes.  ObmmError EINVAL: a stream of another context, or a capture that cannot take it.
        """
        self._check_open()
        where = 0 if ids is None else address_of(ids, self.ids.size, self.accelerator)
        self._keep(lib.obmm_stream_gather_enqueue(self._gather, where, handle_of(stream)))

    def _keep(self, code: int) -> None:
        """What an entry into a stream answered; a graph may replay it at any time from now on: see close()."""
        _kept.add(self)
        self.accelerator.check(code, "enqueue a gather")

    def send(self, stream: Any = None) -> None:
        """Gather what `self.ids` says on this thread and send the rows through `stream`, piece by piece while others are read.

        For who has the ids on the host and captures no graph: the copy of the first rows is under way while the last ones
        are gathered.  No other run may be queued or under way.  Rows of a gather that failed are zeros; `check` raises.
        """
        self._check_open()
        refused_by_device = ffi.new("int *")
        code = lib.obmm_stream_gather_send(self._gather, handle_of(stream), refused_by_device)
        if refused_by_device[0] == -errno.EBUSY:
            raise ObmmError(
                errno.EBUSY,
                "DEVICE: send rows: the stream is under capture, and a graph would replay these rows for ever "
                "[docs/device.md]; fix: enqueue() is what a graph replays",
                operation="DEVICE",
            )
        if refused_by_device[0]:
            self.accelerator.refuse(int(code), "send rows")

    @property
    def last_run(self) -> tuple[float, float]:
        """When the last run began and ended to gather, in seconds as `time.monotonic` gives them."""
        times = ffi.new("uint64_t[2]")
        lib.obmm_stream_gather_times(self._gather, times, times + 1)
        return times[0] * 1e-9, times[1] * 1e-9

    def run(self) -> None:
        """One run on this thread, for who has no stream."""
        self._check_open()
        lib.obmm_stream_gather_run(self._gather)

    @property
    def runs(self) -> int:
        """Runs begun."""
        return int(lib.obmm_stream_gather_runs(self._gather))

    @property
    def failed(self) -> int:
        """Runs that gave zeros."""
        return int(lib.obmm_stream_gather_failed(self._gather))

    @property
    def status(self) -> int:
        """0, or the errno of the last run."""
        return -int(lib.obmm_stream_gather_status(self._gather))

    def check(self) -> None:
        """Raise what the first failed run since the last check met, if one did.  Call it once after a step, on the host.

        Otherwise raise why rows may not be read any more, if so: a graph asks no server, and the memory of an owner that
        died is still there, until its host takes it away.  LeaseError: the lease was not renewed, or revoked.

        The stream must have come that far: synchronize it, or wait for an event behind the run.
        """
        status = int(lib.obmm_stream_gather_take(self._gather))
        if not status:
            if self._open:
                self.store._memory.check()
            return
        self._requests.outcomes[0] = self._gather.failure
        if self._requests.outcomes[0].status == status:
            raise self._requests.failure(0)
        if status == -errno.ETIMEDOUT:
            raise ObmmError(
                errno.ETIMEDOUT,
                "GATHER: a run in a stream gave zeros: its rows did not come within the deadline [docs/device.md]; fix: "
                "look after the peer, or allow more time",
                operation="GATHER",
            )
        if status == -errno.EDOM:
            raise ObmmError(
                errno.EDOM,
                "HASH: a run in a stream gave zeros: a token id or its history is not below the vocabulary "
                "[Engram specification 2.1]; fix: hash with the tokenizer of the table's model, mark place-holders negative",
                operation="HASH",
            )
        raise ObmmError(
            -status,
            f"GATHER: a run in a stream gave zeros: {os.strerror(-status)} [docs/device.md]; fix: see the step's other "
            "errors, attach the table anew",
            operation="GATHER",
        )

    def close(self, timeout: float = 1.0) -> None:
        """No run gathers any more: a graph that is replayed later gets zeros and the status ESHUTDOWN.

        Waits for a run that is under way; MappingBusyError when it does not end in time: close again later.  What a graph
        may still use (a few pinned and device bytes) stays until `forget` says that no graph is left.
        """
        if not self._open:
            return
        if lib.obmm_stream_gather_shut(self._gather, int(patience("GATHER", "timeout", timeout) * 1e9)):
            raise MappingBusyError(
                errno.EBUSY, "GATHER: a run in a stream has not ended; fix: close() again later", operation="GATHER"
            )
        self._open = False
        ticket = lib.obmm_stream_gather_take_late(self._gather)
        if ticket:
            self.store.engine.let_go(ticket, self._late)

    def forget(self) -> None:
        """Every graph that was captured with it is destroyed: its memory may go."""
        self.close()
        _kept.discard(self)

    def __repr__(self) -> str:
        state = "" if self._open else " closed"
        return f"<StreamGather of {self.ids.size} rows, {self.runs} runs, {self.failed} failed{state} on {self.accelerator}>"


def address_of(ids: Any, count: int, accelerator: Accelerator) -> int:
    """Where `count` contiguous int64 lie in a device's memory: a tensor there, or the address itself."""
    if isinstance(ids, int):
        return whole("GATHER", "address of ids", ids, low=0, high=U64)
    place = getattr(ids, "__dlpack_device__", None)
    if place is not None:
        try:
            device = place()
        except (ValueError, BufferError, RuntimeError) as error:  # torch's meta tensors lie nowhere
            raise refused(f"ids without memory: {error}", f"an int64 tensor in the memory of {accelerator}") from None
        if not accelerator.places(device):
            raise refused(f"ids on DLPack device {device}", f"an int64 tensor in the memory of {accelerator}")
    found = getattr(ids, "__cuda_array_interface__", None)
    if found is None and hasattr(ids, "data_ptr"):  # a tensor of the fake device, or of another kind of device
        size, code, address = ids.numel(), str(ids.dtype).removeprefix("torch."), ids.data_ptr()
        contiguous = ids.is_contiguous()
    elif found is not None:
        size, code = int(np.prod(found["shape"], dtype=np.int64)), np.dtype(found["typestr"]).name
        address, contiguous = found["data"][0], found.get("strides") is None
    elif isinstance(ids, np.ndarray) and accelerator.name == "fake":
        size, code, address, contiguous = ids.size, ids.dtype.name, ids.ctypes.data, ids.flags.c_contiguous
    else:
        raise refused(f"ids of {type(ids).__name__}", "an int64 tensor in the device's memory, or its address")
    if size != count or code != "int64" or not contiguous:
        raise refused(f"{size} ids of {code}{'' if contiguous else ', not contiguous'}", f"{count} contiguous int64")
    return int(address)


_kept: set[StreamGather] = set()
"""Those that a graph may still replay: their memory outlives their maker."""
