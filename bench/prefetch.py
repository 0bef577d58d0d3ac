# SPDX-License-Identifier: Apache-2.0
"""What prefetching hides: a step of 12 layers x 128 rows of 1,364 bytes, 200 us of compute before each layer.

    python -m bench.prefetch [--layers N] [--rows N] [--compute-us N] [--device emulator] [--json FILE]

Three arms take turns within one run, over the same store: *prefetch* starts all layers before the first one computes; *in
the layer* gathers each layer when it is consumed; *not rechecked* is the first without the look at memory that a cacheable
import needs where owners publish without revoking (one UPDATE_RANGE, whose cost on an emulated node is the emulator's).  The caller's costs (`begin`, `start`, blocked time in
`consume`) are timed separately; every byte of every step is compared after its clock has stopped.  The table is larger
than the last-level cache unless --table-mib says otherwise.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.bench.timing import percentiles
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus
from obmm.rows import Manifest, RowStore, TableSpec

ROW_BYTES = 1364
ARMS = ("prefetch", "in the layer", "not rechecked")


def content(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The bytes of these rows, a function of their numbers: ``[*rows.shape, ROW_BYTES]``."""
    words = np.arange(ROW_BYTES // 4, dtype=np.uint32)
    mixed = (rows.astype(np.uint32)[..., None] * np.uint32(2654435761)) ^ (words * np.uint32(40503))
    return mixed.view(np.uint8).reshape(*rows.shape, ROW_BYTES)


def open_store(undo: ExitStack, device: str | None, mib: int) -> tuple[RowStore, int]:
    """A table of `mib` MiB, exported by node A and imported by node B -> B's store, rows."""
    rows = (mib << 20) // -(-ROW_BYTES // 8 * 8)
    spec = TableSpec("t", rows, ROW_BYTES)
    if device is None:
        fabric = undo.enter_context(obmm.emulator.start(nodes=2))
        owner, importer = fabric.device("a"), fabric.device("b")
    else:
        owner = importer = device
    a, b = undo.enter_context(obmm.open(owner)), undo.enter_context(obmm.open(importer))
    region = undo.enter_context(a.export_region(spec.end, label="bench"))
    mapping = undo.enter_context(region.map("rw"))
    source = undo.enter_context(RowStore.attach(mapping, Manifest((spec,)), verify="none"))
    for at in range(0, rows, 1 << 14):
        source.populate("t", content(np.arange(at, min(at + (1 << 14), rows))), at)
    published = source.publish()
    imported = undo.enter_context(b.import_region(region.handle()))
    store = undo.enter_context(RowStore.attach([imported], published))
    # The driver maps a region whole; the emulator's pages come at the first touch, which must not be timed.
    for at in range(0, rows, 1 << 14):
        store.gather("t", np.arange(at, min(at + (1 << 14), rows)))
    return store, rows


def compute(seconds: float) -> None:
    """The layers in between: the caller's thread is busy, the interpreter is not asked for."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def run_step(prefetcher: EngramPrefetcher, ids: NDArray[np.int64], arm: str, between: float) -> dict[str, Any]:
    """One step of ids ``[rows, layers, 1]``; times in seconds."""
    n_rows, n_layers, _ = ids.shape
    clock = time.perf_counter
    began = clock()
    prefetcher.begin(ids, n_rows)
    begun = clock()
    if arm != "in the layer":
        prefetcher.start()
    started = clock()
    blocked, rows = [], []
    for layer in range(n_layers):
        compute(between)
        at = clock()
        rows.append(prefetcher.consume(layer))
        blocked.append(clock() - at)
    ended = clock()
    for layer, got in enumerate(rows):
        if got.status is not RowsStatus.OK or not np.array_equal(got.buffer, content(ids[:, layer])):
            raise AssertionError(f"layer {layer}: {got.status}")
    draining = clock()
    report = prefetcher.drain()
    drained = clock()
    assert report is not None
    return {
        "begin": begun - began,
        "start": started - begun,
        "blocked": blocked,
        "step_blocked": sum(blocked),
        "step": ended - began,
        "drain": drained - draining,
        "gather": list(report.gather.values()),
    }


def measure(
    store: RowStore, table_rows: int, n_layers: int, n_rows: int, steps: int, between: float
) -> list[dict[str, Any]]:
    """One record per arm: percentiles in microseconds."""
    random = np.random.default_rng(7)
    layers = [PrefetchLayer(layer, "t", 1) for layer in range(n_layers)]
    taken: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    with ExitStack() as undo:
        prefetchers = {
            arm: undo.enter_context(
                EngramPrefetcher(
                    store, layers, n_rows, depth=1, deadlines=Deadlines(decode=10), recheck=arm != "not rechecked"
                )
            )
            for arm in ARMS
        }
        for number in range(steps + 10):
            for arm in ARMS:
                ids = random.integers(0, table_rows, (n_rows, n_layers, 1))
                timed = run_step(prefetchers[arm], ids, arm, between)
                if number >= 10:
                    taken[arm].append(timed)
    records = []
    for arm, all_steps in taken.items():
        record: dict[str, Any] = {"arm": arm, "steps": len(all_steps)}
        for what in ("begin", "start", "step_blocked", "step", "drain"):
            record[f"{what}_us"] = microseconds([step[what] for step in all_steps])
        for what in ("blocked", "gather"):
            record[f"{what}_us"] = microseconds([layer for step in all_steps for layer in step[what]])
        records.append(record)
    return records


def microseconds(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{q:g}": value * 1e6 for q, value in zip(_QUANTILES, percentiles(seconds, *_QUANTILES), strict=True)}


_QUANTILES = (50, 90, 99, 99.9)


def table(records: Sequence[dict[str, Any]]) -> str:
    columns = ("begin", "start", "gather", "blocked", "step_blocked", "drain")
    lines = [f"{'us, p50 / p99':<14}" + "".join(f"{name.replace('_', ' '):>20}" for name in columns)]
    for record in records:
        cells = "".join(f"{record[f'{name}_us']['p50']:>12.1f}{record[f'{name}_us']['p99']:>8.1f}" for name in columns)
        lines.append(f"{record['arm']:<14}{cells}")
    with_, without = (record["step_blocked_us"]["p50"] for record in records[:2])
    return "\n".join([*lines, f"blocked per step: {with_ / without:.3f} of what gathering in the layer costs"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.prefetch", description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="an OBMM device that exports and imports (default: two emulated nodes)")
    parser.add_argument("--table-mib", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=128, help="per layer")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compute-us", type=float, default=200.0)
    parser.add_argument("--json", type=Path, help="write the records there")
    options = parser.parse_args(arguments)
    with ExitStack() as undo:
        store, rows = open_store(undo, options.device, options.table_mib)
        records = measure(store, rows, options.layers, options.rows, options.steps, options.compute_us * 1e-6)
        header = {
            "benchmark": "prefetch",
            "version": 1,
            "backend": store.backend,
            "path": store.path,
            "layers": options.layers,
            "rows_per_layer": options.rows,
            "row_bytes": ROW_BYTES,
            "table_mib": options.table_mib,
            "compute_us": options.compute_us,
            "plan": store.explain(),
            "machine": platform.machine(),
        }
    print(
        f"{options.layers} x {options.rows} rows of {ROW_BYTES} B, table {options.table_mib} MiB, {header['path']} on {header['backend']}"
    )
    print(header["plan"])
    print(table(records))
    if options.json:
        options.json.write_text(json.dumps({**header, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
