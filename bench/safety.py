# SPDX-License-Identifier: Apache-2.0
"""What safety costs beside the guard (`bench.guard`): views, the doctor, and how fast lifetimes are tried.

``python -m bench.safety [--json FILE]``.  View creation is compared with NumPy's own over local memory in the same
run, in CPU time of the thread.  On an emulated node the doctor's time says nothing about hardware: each of its few
system calls is a message there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import obmm
from obmm import emulator
from obmm.bench import machine
from obmm.host.doctor import diagnose

CALLS = 2_000
SHAPE = (64, 341)


def views(mapping: obmm.Mapping, rounds: int = 15) -> list[dict[str, Any]]:
    """ns per view, beside what the same array costs over local memory."""
    local = bytearray(mapping.nbytes)
    kept = np.frombuffer(local, np.uint8)
    arms: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "as_numpy": (lambda: mapping.as_numpy("<f4", SHAPE), lambda: np.ndarray(SHAPE, "<f4", local)),
        "view": (lambda: mapping.view(0, 4096), lambda: memoryview(local)[:4096]),
        "DLPack through NumPy": (lambda: np.from_dlpack(mapping), lambda: np.from_dlpack(kept)),
    }
    records = []
    for name, pair in arms.items():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for make, found in zip(pair, times, strict=True):
                began = time.thread_time_ns()
                for _ in range(CALLS):
                    make()
                found.append((time.thread_time_ns() - began) / CALLS)
        ours, plain = median(times[0]), median(times[1])
        records.append({"what": name, "ns": ours, "local_ns": plain, "ratio": ours / plain})
    return records


def doctor(backend: obmm.Backend, rounds: int = 7) -> float:
    """Seconds of one report, the median."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        list(diagnose(backend, users=dict))
        found.append(time.perf_counter() - began)
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with emulator.start(nodes=1) as fabric:
        with obmm.open(fabric.device()) as device, device.export_region(4 << 20) as region, region.map("rw") as mapping:
            records = views(mapping)
        seconds = doctor(obmm.Backend.parse(fabric.device()))
    for record in records:
        print(
            f"{record['what']:<22} {record['ns']:>8.0f} ns   local {record['local_ns']:>6.0f} ns   x {record['ratio']:.1f}"
        )
    print(f"{'doctor (emulated)':<22} {seconds * 1e3:>8.1f} ms")
    if options.json:
        document = {"machine": machine.describe(), "backend": "emulated", "views": records, "doctor_s": seconds}
        options.json.write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
