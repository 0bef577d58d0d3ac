# SPDX-License-Identifier: Apache-2.0
"""Rows on an accelerator: what a step waits for, what a gather adds to a captured graph, and that every byte is right.

    python -m bench.device [--json FILE] [--steps N] [--quick] [--only PART ...]

Needs torch and a CUDA device; tables are in this machine's memory, so figures are of the way to the device and of no
fabric.  Baselines are in the same run: a copy by torch from pinned memory, a graph with an empty host function.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import obmm
from bench.device_decode import decoding, hashing
from bench.device_hardship import hardship, replica
from bench.device_owner import on_cuda, owner_killed
from bench.device_timing import clock, middle, of, replayed, table
from obmm._native import ffi, lib
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus
from obmm.prefetch.landing import NativeDevice
from obmm.rows import Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Accelerator
from obmm.rows.stream_gather import StreamGather

LAYERS, ROWS = 12, 128


def busy(seconds: float) -> None:
    """The compute of a layer, on the host: the gather has the other CPUs."""
    end = clock() + seconds
    while clock() < end:
        pass


def prefetching(accelerator: Accelerator, steps: int, compute: float) -> dict[str, Any]:
    """12 layers x 128 rows of 1,364 B with compute before each layer."""
    store, data = table(1 << 17, 1364)
    random = np.random.default_rng(2)
    device = NativeDevice(accelerator)
    begins, starts, waits, ready, bad = [], [], [], 0, 0
    layers = [PrefetchLayer(layer, "t", 1) for layer in range(LAYERS)]
    stream = torch.cuda.current_stream().cuda_stream
    with EngramPrefetcher(store, layers, ROWS, device=device, deadlines=Deadlines(decode=1.0)) as pre:
        for step in range(steps):
            ids = random.integers(0, len(data), (ROWS, LAYERS, 1))
            t0 = clock()
            pre.begin(ids, ROWS)
            t1 = clock()
            pre.start()
            t2 = clock()
            taken = []
            for layer in range(LAYERS):
                busy(compute)
                flight = pre._oldest[layer]
                landing = flight.slot.landing if flight.slot else None
                ready += bool(landing and landing.queued and landing.done())
                t3 = clock()
                rows = pre.consume(layer, stream)
                waits.append(clock() - t3)
                taken.append(rows)
            begins.append(t1 - t0)
            starts.append(t2 - t1)
            if step % 20 == 0:
                torch.cuda.synchronize()
                for layer, rows in enumerate(taken):
                    here = torch.as_tensor(rows.buffer, device="cuda").cpu().numpy()
                    bad += rows.status is not RowsStatus.OK or not (here[:, 0] == data[ids[:, layer, 0]]).all()
            pre.drain()
    skip = LAYERS * 10
    return {
        "begin": of(begins[10:]),
        "start": of(starts[10:]),
        "consume": of(waits[skip:]),
        "ready_before_the_layer_percent": round(100 * ready / (steps * LAYERS), 2),
        "wrong_layers": bad,
        "compute_us": compute * 1e6,
    }


def empty_graph(accelerator: Accelerator, gather: StreamGather, ids: Any) -> Any:
    """The same copies with a host function that does nothing."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    nothing = ffi.cast("void (*)(void *)", ffi.addressof(lib, "obmm_fence_load"))
    call = accelerator.pointer
    with torch.cuda.graph(graph, stream=stream):
        handle = torch.cuda.current_stream().cuda_stream
        into = ffi.cast("void *", gather.ids.ctypes.data)
        accelerator.check(call.to_host(call, into, ids.data_ptr(), gather.ids.nbytes, handle), "ids")
        accelerator.check(call.host(call, handle, nothing, ffi.NULL), "empty")
        rows = ffi.cast("void *", gather.staged.ctypes.data)
        accelerator.check(call.to_device(call, gather.rows.address, rows, gather.staged.nbytes, handle), "rows")
    return graph


def graphs(accelerator: Accelerator, count: int, row_bytes: int, rounds: int) -> dict[str, Any]:
    """A gather in a captured graph against the same graph with an empty host function, in turns."""
    store, data = table(1 << 19 if row_bytes < 512 else 1 << 17, row_bytes)
    ids = torch.zeros(count, dtype=torch.int64, device="cuda")
    gather = StreamGather(store, "t", count, accelerator)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        gather.enqueue(torch.cuda.current_stream(), ids)
    empty = empty_graph(accelerator, gather, ids)
    view = torch.as_tensor(gather.rows, device="cuda")
    random, wrong = np.random.default_rng(3), 0
    ours: list[float] = []
    theirs: list[float] = []
    host: list[float] = []
    phases: list[tuple[float, float, float]] = []
    prepared = store.prepare("t", gather.ids, gather.staged)
    for turn in range(rounds):
        wanted = random.integers(0, len(data), count)
        ids.copy_(torch.from_numpy(wanted))
        theirs += replayed(empty, 4)[1:]
        ours += replayed(graph, 4, gather, phases)[1:]
        if turn % 4 == 0:
            wrong += not (view.cpu().numpy() == data[wanted]).all()
        gather.ids[:] = random.integers(0, len(data), count)
        t0 = clock()
        prepared()
        host.append(clock() - t0)
    gather.check()
    graph_us, empty_us = of(ours), of(theirs)
    facts: dict[str, Any] = {"rows": count, "row_bytes": row_bytes, "graph": graph_us, "empty": empty_us}
    facts |= {
        "gather_alone": of(host),
        "wrong": wrong,
        "until it gathers, gathers, until the rows are there": middle(phases),
        "added_p50_us": round(graph_us["p50_us"] - empty_us["p50_us"], 2),
    }
    gather.close()
    return facts


def host_and_copy(accelerator: Accelerator, rounds: int) -> dict[str, Any]:
    """1,536 x 1,364 B from ids on the host to rows on the device: `send`, `enqueue`, and torch's index_select with a copy."""
    store, data = table(1 << 17, 1364)
    gather = StreamGather(store, "t", 1536, accelerator)
    source, out = (
        torch.from_numpy(np.ascontiguousarray(data)),
        torch.empty((1536, 1364), dtype=torch.uint8, pin_memory=True),
    )
    target = torch.empty((1536, 1364), dtype=torch.uint8, device="cuda")
    view = torch.as_tensor(gather.rows, device="cuda")
    random, wrong = np.random.default_rng(4), 0
    times: dict[str, list[float]] = {
        name: [] for name in ("send", "send, told", "enqueue", "index_select and copy_", "copy_")
    }
    phases: dict[str, list[tuple[float, float, float]]] = {"send": [], "send, told": [], "enqueue": []}
    for block in range(3):
        for name in random.permutation(list(times)):
            time.sleep(40e-3)  # until the other team's threads sleep: two teams that spin ruin each other
            for turn in range(rounds // 3):
                wanted = random.integers(0, len(data), 1536)
                gather.ids[:] = wanted
                picked = torch.from_numpy(wanted)
                torch.cuda.synchronize()
                if name == "send, told":
                    store.expect()
                    busy(200e-6)
                t0 = clock()
                if name == "enqueue":
                    gather.enqueue(torch.cuda.current_stream())
                elif name.startswith("send"):
                    gather.send(torch.cuda.current_stream())
                else:
                    if name != "copy_":
                        torch.index_select(source, 0, picked, out=out)
                    target.copy_(out, non_blocking=True)
                torch.cuda.synchronize()
                t1 = clock()
                times[name].append(t1 - t0)
                if name in phases:
                    began, ended = gather.last_run
                    phases[name].append((began - t0, ended - began, t1 - ended))
                    if (block + turn) % 16 == 0:
                        wrong += not (view.cpu().numpy() == data[wanted]).all()
    gather.check()
    gather.close()
    facts: dict[str, Any] = {name: of(values) for name, values in times.items()} | {"wrong": wrong}
    facts |= {
        f"{name}: until it gathers, gathers, until the rows are there": middle(found) for name, found in phases.items()
    }
    return facts


def owner_goes(accelerator: Accelerator) -> dict[str, Any]:
    """Replays over an emulated import whose owner takes the memory away: zeros and a status, and no process dies."""
    with obmm.emulator.start(nodes=2) as fabric, contextlib.ExitStack() as undo:
        a, b = undo.enter_context(obmm.open(fabric.device("a"))), undo.enter_context(obmm.open(fabric.device("b")))
        region = a.export_region(1024 * 264)
        with region.map("rw") as m:
            with m.writing():
                m.write(0, np.full(1024 * 264, 7, np.uint8))
            m.publish()
        imported = b.import_region(region.handle())
        store = RowStore.attach(imported.map("r"), Manifest((TableSpec("t", 1024, 264),)), verify="none", plan=False)
        gather = StreamGather(store, "t", 24, accelerator)
        ids = torch.zeros(24, dtype=torch.int64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            gather.enqueue(torch.cuda.current_stream(), ids)
        view = torch.as_tensor(gather.rows, device="cuda")
        for _ in range(100):
            graph.replay()
        torch.cuda.synchronize()
        before = bool((view == 7).all())
        fabric.inject("a", "revoke", mem_id=region.mem_id)
        for _ in range(100):
            graph.replay()
        torch.cuda.synchronize()
        said = ""
        try:
            gather.check()
        except obmm.ObmmError as error:
            said = type(error).__name__
        return {
            "rows before": before,
            "zeros after": bool((view == 0).all()),
            "failed": gather.failed,
            "check raises": said,
        }


def decode_loop(accelerator: Accelerator, replays: int) -> dict[str, Any]:
    """Replays with random ids, every one verified."""
    store, data = table(1 << 17, 264)
    gather = StreamGather(store, "t", 24, accelerator)
    ids = torch.zeros(24, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        gather.enqueue(torch.cuda.current_stream(), ids)
    view, reference, wrong = (
        torch.as_tensor(gather.rows, device="cuda"),
        torch.from_numpy(np.ascontiguousarray(data)).cuda(),
        0,
    )
    for _ in range(replays):
        ids.random_(0, len(data))
        graph.replay()
        wrong += int(not torch.equal(view, reference[ids]))
    gather.check()
    gather.close()
    return {"replays": replays, "wrong": wrong}


def dequantising() -> dict[str, Any]:
    """The Triton kernel against the readable way, and its time for 1,536 rows."""
    from obmm.nn import dequantise, dequantised

    rows = torch.randint(0, 256, (1536, 264), dtype=torch.uint8, device="cuda")  # every scale too
    ours, theirs = dequantise(rows), dequantised(rows)
    same = bool(torch.equal(torch.nan_to_num(ours.float()), torch.nan_to_num(theirs.float())))
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        t0 = clock()
        dequantise(rows, ours)
        torch.cuda.synchronize()
        times.append(clock() - t0)
    return {"equal": same, **of(times)}


def libraries(accelerator: Accelerator) -> dict[str, Any]:
    """Who sees device rows without a copy."""
    from obmm.rows.accelerator import DeviceArray

    array = DeviceArray(accelerator, (4, 8))
    seen: dict[str, Any] = {}
    torch.as_tensor(array, device="cuda").fill_(9)
    for name in ("torch", "cupy", "jax"):
        try:
            if name == "torch":
                value = torch.from_dlpack(array).cpu().numpy()
            elif name == "cupy":
                import cupy

                value = cupy.asarray(array).get()
            else:
                import jax

                value = np.asarray(jax.dlpack.from_dlpack(array))
            seen[name] = bool((value == 9).all())
        except Exception as error:
            seen[name] = f"{type(error).__name__}: {error}"[:120]
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts by name, as they are printed")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: this benchmark measures nothing else")
    accelerator = Accelerator.cuda(0)
    rounds = 40 if options.quick else 150
    facts: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    parts: dict[str, Callable[[], Any]] = {
        "libraries": lambda: libraries(accelerator),
        "prefetch": lambda: prefetching(accelerator, options.steps // (4 if options.quick else 1), 500e-6),
        **{
            f"graph {count} x {row_bytes}": partial(graphs, accelerator, count, row_bytes, rounds)
            for count, row_bytes in ((24, 264), (384, 264), (1536, 264), (1536, 1364))
        },
        "gather and copy 1536 x 1364": lambda: host_and_copy(accelerator, rounds * 2),
        **{
            f"decode with {rows} rows a layer": partial(decoding, accelerator, rows, rounds) for rows in (24, 384, 1536)
        },
        "token ids in a graph": lambda: hashing(accelerator, rounds * 4),
        "decode loop": lambda: decode_loop(accelerator, 1000),
        "wrong uses": lambda: hardship(accelerator),
        "a replica read by the device": lambda: replica(accelerator),
        "owner goes": lambda: owner_goes(accelerator),
        "owner killed": lambda: owner_killed(accelerator, on_cuda),
        "dequantise 1536 x 264": dequantising,
    }
    if unknown := set(options.only or ()) - set(parts):
        parser.error(f"no part {sorted(unknown)}; there are {list(parts)}")
    for name, part in parts.items():
        if options.only and name not in options.only:
            continue
        try:
            facts[name] = part()
        except Exception as error:
            facts[name] = {"error": f"{type(error).__name__}: {error}"}
        print(name, json.dumps(facts[name]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
