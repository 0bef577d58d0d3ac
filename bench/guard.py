# SPDX-License-Identifier: Apache-2.0
"""What the fault guard costs: guarded 1,364-byte reads against plain memcpy, in one run.

``python -m obmm.bench.guard [--json FILE]``.  Both loops are in C and take turns; the median of the rounds' ratios is
the figure, in CPU time of the thread, since other processes take turns on a shared machine.  "hot" reads stay in the second-level cache, "cold" ones are spread over 256 MiB.
"""

from __future__ import annotations

import argparse
import json
import mmap
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from obmm import guard
from obmm._native import ffi, lib
from obmm.bench import machine, reference

ROW = 1364
READS = 20_000
SETS = {"hot": 256 << 10, "cold": 256 << 20}


def measure(rounds: int = 31) -> list[dict[str, Any]]:
    """One record per working set: ns per read, plain and guarded, and the ratio."""
    ref, library = reference.load()
    memory = mmap.mmap(-1, max(SETS.values()))
    memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8)[:] = 1
    held = ref.from_buffer("uint8_t[]", memory)
    guard.register(int(ref.cast("uintptr_t", held)), len(memory), 1)
    guarded = ref.cast("void *", int(ffi.cast("uintptr_t", ffi.addressof(lib, "obmm_copy_from"))))
    out = ref.new("uint8_t[]", ROW)
    random = np.random.default_rng(1)
    records = []
    for name, size in SETS.items():
        times: dict[str, list[float]] = {"plain": [], "guarded": []}
        for round_ in range(rounds):
            offsets = random.integers(0, (size - ROW) // 4, READS) * 4
            numbers = ref.from_buffer("int64_t[]", offsets.data)
            for arm in sorted(times, reverse=bool(round_ % 2)):
                copy = guarded if arm == "guarded" else ref.NULL
                library.ref_reads(copy, out, held, numbers, 1000, ROW)
                began = time.thread_time_ns()
                library.ref_reads(copy, out, held, numbers, READS, ROW)
                times[arm].append((time.thread_time_ns() - began) / READS)
        ratios = [g / p for g, p in zip(times["guarded"], times["plain"], strict=True)]
        records.append(
            {
                "set": name,
                "bytes": size,
                "plain_ns": median(times["plain"]),
                "guarded_ns": median(times["guarded"]),
                "ratio": median(ratios),
            }
        )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the records there")
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    records = measure(arguments.rounds)
    result = {"benchmark": "guard", "machine": machine.describe(), "row_bytes": ROW, "records": records}
    print(f"{'set':>6} {'plain ns':>10} {'guarded ns':>11} {'ratio':>7}")
    for record in records:
        print(f"{record['set']:>6} {record['plain_ns']:10.1f} {record['guarded_ns']:11.1f} {record['ratio']:7.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
