# SPDX-License-Identifier: Apache-2.0
"""Dependent loads of 4, 8 and 64 bytes at random lines: what latency is."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from obmm.bench import content
from obmm.bench.arms.arm import Memory
from obmm.bench.compiled import ffi, library, pointer
from obmm.bench.footprint import Footprint
from obmm.bench.presets import Preset
from obmm.bench.timing import Series
from obmm.bench.workloads.rows import gather_series
from obmm.bench.workloads.workload import Case, Workload, threads_of, working_sets

LOADS = "loads"


class DependentLoads(Workload):
    """Each load's address depends on the one before, and each has its own reading of the clock.

    Where no plain load reaches the memory (TCP, `take`), a request of one row of that size stands in its place.
    """

    name, title = LOADS, "dependent loads"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        what = "load" if memory.address is not None else "request"
        for width in preset.widths:
            for size in working_sets(preset, memory):
                for threads in threads_of(preset, memory):
                    yield Case(f"{width}-byte {what}", width, threads=threads, working_set=size)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        if memory.address is None:
            return gather_series(case, memory, preset, series)
        per_thread = preset.loads // case.threads
        lines, words = case.working_set // 64, max(1, case.row_bytes // 8)
        work = [
            (
                series.random(thread).integers(0, lines, per_thread).astype(np.uint64) * np.uint64(64),
                np.zeros(per_thread, np.uint64),
                np.zeros(per_thread * words, np.uint64),
            )
            for thread in range(case.threads)
        ]
        base, loads = ffi.cast("uint8_t *", memory.address), library().bench_loads
        gate = threading.Barrier(case.threads)

        def one(number: int) -> None:
            offsets, times, values = (pointer("uint64_t[]", array) for array in work[number])
            gate.wait()
            loads(base, offsets, per_thread, case.row_bytes, times, values)

        others = [threading.Thread(target=one, args=(number,)) for number in range(1, case.threads)]
        for thread in others:
            thread.start()
        one(0)
        for thread in others:
            thread.join()
        verified = 0
        for offsets, times, values in work:
            if not np.array_equal(values, _expected(offsets, case.row_bytes)):
                raise content.VerificationError(
                    f"loads of {case.row_bytes} bytes returned what the memory does not hold"
                )
            series.add_c(times, at_once=case.threads)
            verified += case.row_bytes * per_thread
        return verified


def _expected(offsets: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Every word that `bench_loads` must have seen, offset by offset."""
    first = offsets // np.uint64(8)
    if width == 4:
        low: NDArray[np.uint64] = (first * content.FACTOR) & np.uint64(0xFFFFFFFF)
        return low
    parts: NDArray[np.uint64] = np.add.outer(first, np.arange(width // 8, dtype=np.uint64))
    seen: NDArray[np.uint64] = (parts * content.FACTOR).reshape(-1)
    return seen
