# SPDX-License-Identifier: Apache-2.0
"""What the Python surface costs over the bare call, and the control path of the emulator.

``python -m bench.access [--json]``.  Every figure stands beside its baseline, measured in the same run in turns;
only the ratios mean anything on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import obmm
from obmm._native import ffi, lib

ROW = 1364
CALLS = 20_000
TURNS = 9


def in_turns(**calls: Callable[[], object]) -> dict[str, float]:
    """Median nanoseconds per call of each, measured in alternating turns so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter_ns() - begin) / CALLS)
    return {name: median(values) for name, values in times.items()}


def _times(mapping: obmm.Mapping) -> dict[str, float]:
    local, row = bytearray(64 * 1024), bytearray(ROW)
    here, out = ffi.from_buffer(local), ffi.from_buffer(row)
    address, gate = int(ffi.cast("uintptr_t", here)), ffi.new("struct obmm_gate *")
    view, array = mapping.as_numpy("<u8"), np.zeros(1000, "<u8")
    null, bare_load, bare_copy = ffi.NULL, lib.obmm_gated_load, lib.obmm_gated_copy_from
    return in_turns(
        load=lambda: mapping.load("<u8", 64),
        bare_load=lambda: bare_load(gate, address, 8, null),
        read_into=lambda: mapping.read_into(row, 4096),
        bare_copy=lambda: bare_copy(gate, out, address, ROW, 0, null),
        view_item=lambda: view[7],
        array_item=lambda: array[7],
    )


def measure(device: obmm.Device) -> list[dict[str, Any]]:
    """The rows of the report: what, ns, baseline, baseline ns, ratio."""
    with device.export_region("8MiB", label="bench") as region, region.map("rw") as mapping:
        times = _times(mapping)
    pairs = [
        ("load('<u8', offset)", "load", "the same cffi call, bare", "bare_load"),
        (f"read_into({ROW} bytes)", "read_into", "the same cffi call, bare", "bare_copy"),
        ("NumPy view item", "view_item", "NumPy array item", "array_item"),
    ]
    return [
        {
            "what": what,
            "ns": times[one],
            "baseline": baseline,
            "baseline_ns": times[two],
            "ratio": times[one] / times[two],
        }
        for what, one, baseline, two in pairs
    ]


def control_rate(device: obmm.Device, rounds: int = 300) -> float:
    """export..map..unmap..unexport of a raw 2 MiB region, operations of four calls per second."""
    begin = time.perf_counter()
    for _ in range(rounds):
        with device.export_region(2 << 20, header=False) as region:
            region.map("rw").close()
    return rounds / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with obmm.emulator.start(nodes=1) as fabric, obmm.open(fabric.device()) as device:
        rows, rate = measure(device), control_rate(device)
    if arguments.json:
        print(json.dumps({"backend": "emulator", "access": rows, "control_cycles_per_s": rate}, indent=2))
        return
    print("guarded access on memory of the emulator: the ratios are what counts")
    for row in rows:
        print(
            f"  {row['what']:<24}{row['ns']:9.0f} ns   {row['baseline']:<26}{row['baseline_ns']:9.0f} ns   x{row['ratio']:.2f}"
        )
    print(f"  export..map..unmap..unexport: {rate:.0f} per second (emulator; says nothing about hardware)")


if __name__ == "__main__":
    main()
