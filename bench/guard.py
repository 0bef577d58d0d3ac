# SPDX-License-Identifier: Apache-2.0
"""What the fault guard costs: guarded 1,364-byte reads against plain memcpy, in one run.

``python -m bench.guard [--json FILE]``.  Both loops are in C and take turns; the median of the rounds' ratios is
the figure, in CPU time of the thread, since other processes take turns on a shared machine.  "hot" reads stay in the second-level cache, "cold" ones are spread over 256 MiB.

Then what it costs to stay in front: the same sources compiled once as they are and once without the count of calls and
the look at masks and handlers after 256 of them; loads of 8 bytes and reads of 1,364, hot, in turns.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cffi import FFI

from bench import reference
from obmm._native import ffi, lib
from obmm.bench import machine
from obmm.mapping import guard

ROW = 1364
READS = 20_000
ACCESS = Path(__file__).resolve().parents[1] / "native" / "access"
PARTS = ("copy", "fixup", "guard", "guard_call", "guard_chain", "guard_ranges", "nc")
VARIANTS = {"before": "#define obmm_guard_ready(length) ((void)(length))\n", "after": ""}
"""What is read between the guard's own declarations and the sources."""
GUARD = FFI()
GUARD.cdef("""
int obmm_guard_add(const void *base, size_t length, uint64_t id);
int obmm_load(const void *src, unsigned int width, uint64_t *value, void *fault);
int obmm_copy_from(void *dst, const void *src, size_t length, void *fault);
""")
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


def stay_in_front(rounds: int = 31) -> list[dict[str, Any]]:
    """One record per kind of access: ns without and with the looks, and the ratio."""
    ref, library = reference.load()
    with tempfile.TemporaryDirectory() as folder:
        built = {name: _built(Path(folder) / name, text) for name, text in VARIANTS.items()}
    memory = mmap.mmap(-1, SETS["hot"])
    held = ref.from_buffer("uint8_t[]", memory)
    built["after"].obmm_guard_add(GUARD.cast("void *", int(ref.cast("uintptr_t", held))), len(memory), 1)
    out, random = ref.new("uint8_t[]", ROW), np.random.default_rng(1)
    records = []
    for what, function in {"load of 8 bytes": "obmm_load", "read of 1,364 bytes": "obmm_copy_from"}.items():
        times: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for round_ in range(rounds):
            offsets = random.integers(0, (len(memory) - ROW) // 8, READS) * 8
            numbers = ref.from_buffer("int64_t[]", offsets.data)
            for arm in sorted(times, reverse=bool(round_ % 2)):
                call = ref.cast("void *", int(GUARD.cast("uintptr_t", GUARD.addressof(built[arm], function))))
                for count in (1000, READS):  # the first ones are not timed
                    began = time.thread_time_ns()
                    if function == "obmm_load":
                        library.ref_loads(call, held, numbers, count)
                    else:
                        library.ref_reads(call, out, held, numbers, count, ROW)
                    took = time.thread_time_ns() - began
                times[arm].append(took / READS)
        ratios = [after / before for before, after in zip(times["before"], times["after"], strict=True)]
        records.append(
            {"what": what} | {f"{arm}_ns": median(each) for arm, each in times.items()} | {"ratio": median(ratios)}
        )
    return records


def _built(target: Path, text: str) -> Any:
    header = target.with_suffix(".h")
    header.write_text(text)
    first = ["-include", str(ACCESS / "guard_internal.h"), "-include", str(header)]
    sources = [str(ACCESS / f"{name}.c") for name in PARTS]
    command = [os.environ.get("CC", "cc"), "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", *first, "-o", str(target)]
    subprocess.run([*command, *sources], check=True)
    return GUARD.dlopen(str(target))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the records there")
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    looks = stay_in_front(arguments.rounds)  # first: one guard at a time is in front
    records = measure(arguments.rounds)
    result = {"benchmark": "guard", "machine": machine.describe(), "row_bytes": ROW, "records": records, "looks": looks}
    print(f"{'set':>6} {'plain ns':>10} {'guarded ns':>11} {'ratio':>7}")
    for record in records:
        print(f"{record['set']:>6} {record['plain_ns']:10.1f} {record['guarded_ns']:11.1f} {record['ratio']:7.3f}")
    print(f"\n{'staying in front':>20} {'before ns':>10} {'after ns':>9} {'ratio':>7}")
    for look in looks:
        print(f"{look['what']:>20} {look['before_ns']:10.2f} {look['after_ns']:9.2f} {look['ratio']:7.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
