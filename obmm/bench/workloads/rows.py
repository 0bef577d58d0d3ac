# SPDX-License-Identifier: Apache-2.0
"""Gathers: one row, batches, row sizes, and the tables of a decode step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from obmm.bench import content
from obmm.bench.arms.arm import Memory
from obmm.bench.footprint import Footprint
from obmm.bench.presets import Preset
from obmm.bench.shared_table import AlignedPages
from obmm.bench.timing import Series
from obmm.bench.workloads.workload import Case, Workload, threads_of, working_sets


def gather_series(case: Case, memory: Memory, preset: Preset, series: Series) -> int:
    """Time gathers of new random rows every time, into a 2 MiB-aligned buffer; every byte of each is checked."""
    tables = memory.tables(case.tables, case.row_bytes, case.working_set)
    random = series.random()
    ids = np.zeros((case.tables, case.count), np.int64)
    buffer = AlignedPages(case.nbytes)
    verified = 0
    try:
        out = buffer.array.reshape(case.tables, case.count, case.row_bytes)
        call = memory.gather(tables, ids, out, case.threads)

        def draw() -> None:
            ids[:] = random.integers(0, tables.rows, ids.shape)

        def check() -> None:
            nonlocal verified
            verified += content.check_rows(out, ids, tables.bases, tables.stride)

        series.loop(draw, call, check, preset.iterations, preset.seconds)
    finally:
        buffer.close()
    return verified


class Rows(Workload):
    """Common ground of the gathers."""

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        return gather_series(case, memory, preset, series)


class OneRow(Rows):
    """What a single row costs, call included."""

    name, title = "row", "one row"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for size in working_sets(preset, memory):
            yield Case("one row", preset.row_bytes, working_set=size)


class Batches(Rows):
    """Rows of one size, more and more of them."""

    name, title = "batch", "batches of rows"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for threads in threads_of(preset, memory):
            for count in preset.batches:
                yield Case(
                    f"{count} row{'s' if count > 1 else ''}",
                    preset.row_bytes,
                    count=count,
                    threads=threads,
                    working_set=memory.nbytes,
                )


class Step(Rows):
    """The rows of a step from one table: the same on every path, so that paths can be compared (URMA specification 13, B3)."""

    name, title = "step", "the rows of a step"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for threads in threads_of(preset, memory):
            for count, row_bytes in preset.steps:
                yield Case(
                    f"{count:,} rows of {row_bytes:,} B",
                    row_bytes,
                    count=count,
                    threads=threads,
                    working_set=memory.nbytes,
                )


class RowSizes(Rows):
    """One batch, larger and larger rows."""

    name, title = "row-size", "row sizes"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for row_bytes in preset.row_sizes:
            yield Case(f"rows of {row_bytes} B", row_bytes, count=preset.size_batch, working_set=memory.nbytes)


class TableTokens(Rows):
    """A step of a model: the same number of rows from each of several tables."""

    name, title = "tables", "tables x tokens"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for threads in threads_of(preset, memory):
            for tokens in preset.tokens:
                yield Case(
                    f"{preset.tables} tables x {tokens} tokens",
                    preset.table_row_bytes,
                    tables=preset.tables,
                    count=tokens,
                    threads=threads,
                    working_set=memory.nbytes,
                )
