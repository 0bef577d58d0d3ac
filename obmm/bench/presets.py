# SPDX-License-Identifier: Apache-2.0
"""What a run measures."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes and counts of one run.  `footprint` in bytes (None: 4 times the last-level cache), times in seconds."""

    name: str
    footprint: int | None
    loads: int
    widths: tuple[int, ...]
    row_sizes: tuple[int, ...]
    row_bytes: int
    batches: tuple[int, ...]
    size_batch: int
    tables: int
    table_row_bytes: int
    tokens: tuple[int, ...]
    iterations: int
    seconds: float
    cycles: int
    threads: tuple[int, ...] = (1,)
    hot: bool = True
    lists: tuple[int, ...] = (1, 8, 64, 512, 1536, 4096)
    """Reads in one call, where reads come in lists."""
    steps: tuple[tuple[int, int], ...] = ((1536, 320), (1536, 1364))
    """(rows, bytes of each) of a step from one table; on every arm."""


CPUS = len(os.sched_getaffinity(0))

PRESETS = {
    "honest": Preset(
        name="honest",
        footprint=None,
        loads=20_000,
        widths=(4, 8, 64),
        row_sizes=(64, 128, 264, 512, 1364, 4096),
        row_bytes=1364,
        batches=(32, 128, 512, 2048, 16_384),
        size_batch=2048,
        tables=12,
        table_row_bytes=264,
        tokens=(32, 128, 512, 2048, 8192),
        iterations=1000,
        seconds=0.5,
        cycles=200,
        threads=(1, CPUS) if CPUS > 1 else (1,),
    ),
    # what the first prototype measured: 12 tables of 10,000 rows of 341 float32, cached after the first pass
    "prototype": Preset(
        name="prototype",
        footprint=12 * 10_000 * 1368,
        loads=2000,
        widths=(8,),
        row_sizes=(1364,),
        row_bytes=1364,
        batches=(32, 64, 128, 256),
        size_batch=128,
        tables=12,
        table_row_bytes=1364,
        tokens=(32, 64, 128, 256),
        iterations=200,
        seconds=60.0,
        cycles=50,
    ),
    "smoke": Preset(
        name="smoke",
        footprint=8 << 20,
        loads=500,
        widths=(8, 64),
        row_sizes=(64, 1364),
        row_bytes=1364,
        batches=(1, 32),
        size_batch=32,
        tables=3,
        table_row_bytes=1364,
        tokens=(8,),
        iterations=100,
        seconds=0.05,
        cycles=10,
        lists=(1, 64, 1536),
        steps=((1536, 320),),
    ),
}
