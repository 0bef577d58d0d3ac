# SPDX-License-Identifier: Apache-2.0
"""A decode step of several engram layers in one captured graph: what rows add to it, and what of that is hidden."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import torch

from bench.device_timing import of, replayed, table
from obmm._native import ffi, lib
from obmm.prefetch import PolyHasher
from obmm.prefetch.token_gather import TokenGather
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Accelerator
from obmm.rows.stream_gather import StreamGather

WORK = 6  # products of two 2,048 x 2,048 matrices: the work of a layer


def decoding(accelerator: Accelerator, rows: int, rounds: int) -> dict[str, Any]:
    """Four layers of work in one captured graph, each with an engram gather before it, and none, and empty host functions.

    *forked*: all gathers start on a stream of their own when the ids are there, and each layer joins its own.  *in line*:
    each layer gathers in the model's stream.  `added_us` is what a step takes more than without any rows.
    """
    n_layers, row_bytes = 4, 264
    store, data = table(1 << 19, row_bytes)
    ids = [torch.zeros(rows, dtype=torch.int64, device="cuda") for _ in range(n_layers)]
    gathers = [StreamGather(store, "t", rows, accelerator) for _ in range(n_layers)]
    views = [torch.as_tensor(gather.rows, device="cuda") for gather in gathers]
    matrix = torch.rand(2048, 2048, device="cuda", dtype=torch.bfloat16)
    seen = [torch.empty_like(view) for view in views]
    nothing = ffi.cast("void (*)(void *)", ffi.addressof(lib, "obmm_fence_load"))

    def capture(way: str, layers: int) -> Any:
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            main = torch.cuda.current_stream()
            arrived = []
            if way == "forked" and layers:
                side.wait_stream(main)
                for layer in range(layers):
                    gathers[layer].enqueue(side, ids[layer])
                    arrived.append(side.record_event())
            for layer in range(n_layers):
                if layer < layers:
                    if way == "forked":
                        main.wait_event(arrived[layer])
                    elif way == "in line":
                        gathers[layer].enqueue(main, ids[layer])
                    else:
                        call = accelerator.pointer
                        accelerator.check(call.host(call, main.cuda_stream, nothing, ffi.NULL), "empty")
                    seen[layer].copy_(views[layer])
                for _ in range(WORK):
                    torch.mm(matrix, matrix)
            if way == "forked" and layers:
                main.wait_stream(side)
        return graph

    torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    ways = {
        "none": capture("forked", 0),
        "empty in line": capture("empty", n_layers),
        "in line": capture("in line", n_layers),
    }
    ways |= {f"forked, {n} of {n_layers}": capture("forked", n) for n in range(1, n_layers + 1)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    random, wrong = np.random.default_rng(5), 0
    for turn in range(rounds):
        wanted = [random.integers(0, len(data), rows) for _ in range(n_layers)]
        for layer in range(n_layers):
            ids[layer].copy_(torch.from_numpy(wanted[layer]))
        for name in random.permutation(list(ways)):
            times[name] += replayed(ways[name], 3)[1:]
            if turn % 10 == 0 and name in ("in line", f"forked, {n_layers} of {n_layers}"):
                wrong += sum(not (seen[layer].cpu().numpy() == data[wanted[layer]]).all() for layer in range(n_layers))
    for gather in gathers:
        gather.check()
        gather.close()
    base = statistics.median(times["none"])
    added = {name: round((statistics.median(values) - base) * 1e6, 1) for name, values in times.items()}
    one_by_one = [added[f"forked, {n} of {n_layers}"] for n in range(1, n_layers + 1)]
    return {
        "rows": rows,
        "row_bytes": row_bytes,
        "none": of(times["none"]),
        "added_us": added,
        "left_by_layer_us": [round(b - a, 1) for a, b in zip([0.0, *one_by_one], one_by_one, strict=False)],
        "wrong": wrong,
    }


def hashing(accelerator: Accelerator, rounds: int) -> dict[str, Any]:
    """Eight requests' token ids with their history, hashed and gathered in a captured graph, every row compared."""
    hasher = PolyHasher(V=32000, m=20011, n=3, k=4, eos=2)
    data = np.random.default_rng(6).integers(1, 256, (hasher.rows[0], 264), np.uint8)
    store = RowStore.attach(
        LocalMemory(data.reshape(-1)), Manifest((TableSpec("t", len(data), 264),)), verify="none", plan=False
    )
    gather = TokenGather(store, "t", 8, accelerator, hasher, invalid="zero")
    tokens = torch.zeros(8, dtype=torch.int64, device="cuda")
    history = torch.zeros((8, 2), dtype=torch.int64, device="cuda")
    graph, random, times, wrong = torch.cuda.CUDAGraph(), np.random.default_rng(7), list[float](), 0
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        gather.enqueue_tokens(torch.cuda.current_stream(), tokens, history)
    view = torch.as_tensor(gather.rows, device="cuda")
    for _ in range(rounds):
        new, before = random.integers(0, 32000, 8), random.integers(-1, 32000, (8, 2))
        tokens.copy_(torch.from_numpy(new))
        history.copy_(torch.from_numpy(before))
        times += replayed(graph, 1)
        numbers = hasher.hash(new, np.arange(9), before).reshape(-1)
        wrong += not (view.cpu().numpy() == np.where((numbers >= 0)[:, None], data[numbers], 0)).all()
    gather.check()
    gather.close()
    return {"tokens": 8, "rows": len(numbers), "graph": of(times), "wrong": wrong}
