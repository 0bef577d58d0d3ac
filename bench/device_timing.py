# SPDX-License-Identifier: Apache-2.0
"""What the parts of `bench.device` share: a table, the clock, replays."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch

from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.stream_gather import StreamGather

clock = time.perf_counter


def of(times: list[float]) -> dict[str, float]:
    """p50 and p99 in microseconds."""
    ordered = sorted(times)
    return {
        "p50_us": round(statistics.median(ordered) * 1e6, 2),
        "p99_us": round(ordered[int(len(ordered) * 0.99)] * 1e6, 2),
    }


def table(n_rows: int, row_bytes: int) -> tuple[Any, Any]:
    """A store over random bytes, and the bytes."""
    stride = -(-row_bytes // 8) * 8
    data = np.random.default_rng(1).integers(0, 256, (n_rows, stride), np.uint8)
    store = RowStore.attach(
        LocalMemory(data.reshape(-1)), Manifest((TableSpec("t", n_rows, row_bytes, stride),)), verify="none"
    )
    return store, data[:, :row_bytes]


def replayed(
    graph: Any, count: int, gather: StreamGather | None = None, phases: list[Any] | None = None
) -> list[float]:
    """Seconds from replay to the end, each; of `gather`, until it began, while it gathered, and after it."""
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        t0 = clock()
        graph.replay()
        torch.cuda.synchronize()
        t1 = clock()
        times.append(t1 - t0)
        if gather is not None and phases is not None:
            began, ended = gather.last_run
            phases.append((began - t0, ended - began, t1 - ended))
    return times


def middle(phases: list[tuple[float, float, float]]) -> list[float]:
    """The median of each phase in microseconds."""
    return [round(statistics.median(values) * 1e6, 1) for values in zip(*phases, strict=True)]
