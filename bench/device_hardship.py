# SPDX-License-Identifier: Apache-2.0
"""What users get wrong, on a real device: each is one sentence, the process lives, and gathers go on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.device_timing import clock, of, table
from obmm.errors import ObmmError
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer
from obmm.prefetch.landing import NativeDevice
from obmm.rows.accelerator import Accelerator, PinnedMemory, SharedRows
from obmm.rows.stream_gather import StreamGather


def said(call: Callable[[], object]) -> str:
    """The sentence that a call is refused with."""
    try:
        call()
    except ObmmError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"NOT OURS {type(error).__name__}: {error}"[:300]
    return "NOT REFUSED"


def other_context() -> tuple[Any, int]:
    """A second context of the device and a stream of it; the library keeps both."""
    driver, context, stream, before = (
        ctypes.CDLL("libcuda.so.1"),
        ctypes.c_void_p(),
        ctypes.c_void_p(),
        ctypes.c_void_p(),
    )
    driver.cuCtxGetCurrent(ctypes.byref(before))
    assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    driver.cuCtxSetCurrent(before)
    return (driver, context), int(stream.value or 0)


def hardship(accelerator: Accelerator) -> dict[str, Any]:
    """Each wrong use, and whether rows are right afterwards."""
    store, data = table(1 << 14, 264)
    gather = StreamGather(store, "t", 24, accelerator)
    ids = torch.arange(24, device="cuda")
    kept, foreign = other_context()
    facts: dict[str, Any] = {
        "a number that is not a stream": said(lambda: gather.enqueue(12345, ids)),
        "an address where nothing lies": said(lambda: gather.enqueue(0x7F0000000000, ids)),
        "a stream of another context": said(lambda: gather.enqueue(foreign, ids)),
        "ids on the host": said(lambda: gather.enqueue(None, torch.arange(24))),
        "an address that is not the device's": said(lambda: gather.enqueue(None, 0x1000)),
        "pinned memory that cannot be": said(lambda: PinnedMemory(accelerator, 1 << 50)),
        "no such device": said(lambda: Accelerator.cuda(63)),
    }

    def send_under_capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
            gather.send(torch.cuda.current_stream())

    def old_rows_under_capture() -> None:
        layers = [PrefetchLayer(0, "t", 1)]
        with EngramPrefetcher(
            store, layers, 24, device=NativeDevice(accelerator), deadlines=Deadlines(decode=1.0)
        ) as pre:
            pre.begin(np.zeros((24, 1, 1), np.int64), 24)
            pre.start()
            while not pre.poll(0):
                pass
            error = None
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
                    try:
                        pre.consume(0, torch.cuda.current_stream())
                    except ObmmError as refused:
                        error = refused
            except Exception as spoiled:  # torch's own word for a capture that was spoiled
                facts["... and torch says of the capture"] = str(spoiled).splitlines()[0][:120]
            torch.cuda.synchronize()
            pre.consume(0)
            pre.drain()
            if error is not None:
                raise error

    facts["send under capture"] = said(send_under_capture)
    facts["rows from before a capture"] = said(old_rows_under_capture)
    stream = torch.cuda.Stream()
    gather.enqueue(stream, ids)
    del stream  # torch keeps its streams; what was queued ends
    torch.cuda.synchronize()
    view = torch.as_tensor(gather.rows, device="cuda")
    facts["rows are right afterwards"] = bool((view.cpu().numpy() == data[:24]).all())
    gather.check()
    gather.close()
    del kept
    return facts


def replica(accelerator: Accelerator) -> dict[str, Any]:
    """A replica that the device reads by itself, against a gather on the host with its copy: 1,536 rows of 264 bytes."""
    data = np.random.default_rng(9).integers(0, 256, (1 << 19, 264), np.uint8)
    shared = SharedRows(accelerator, data)
    rows = torch.as_tensor(shared.on_device, device="cuda")
    times, wrong = [], 0
    for seed in range(60):
        wanted = np.random.default_rng(seed).integers(0, len(data), 1536)
        ids = torch.from_numpy(wanted).cuda()
        torch.cuda.synchronize()
        t0 = clock()
        found = torch.index_select(rows, 0, ids)
        torch.cuda.synchronize()
        times.append(clock() - t0)
        wrong += not (found.cpu().numpy() == data[wanted]).all()
    del rows
    # apart: the first use of the kernel, and of these pages by the device; the slowest of 60 alone is their p99
    return {"first_us": round(times[0] * 1e6), "index_select on the device": of(times[1:]), "wrong": wrong}
