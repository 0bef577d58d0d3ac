# SPDX-License-Identifier: Apache-2.0
"""Whether what a reader gathers is what the checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.engram.checkpoint import Checkpoint
from obmm.engram.packing import PackedRows
from obmm.engram.tables import SourceTable

Gather = Callable[[str, NDArray[np.int64]], NDArray[np.uint8]]
"""(table, row numbers [n]) -> rows [n, row_bytes], as some reader has them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """In `table`: the first `row` of a block that differs, and how many `rows` of the block do.  Made by `compare`."""

    table: str
    row: int
    rows: int


def packed_rows(checkpoint: Checkpoint, table: SourceTable, rows: Sequence[int]) -> NDArray[np.uint8]:
    """Some rows of a table as they are published, ``[n, row_bytes]``: one read each."""
    out = np.empty((len(rows), table.row_bytes), np.uint8)
    borders = np.cumsum([0, *(part.weight.rows for part in table.parts)])
    for place, row in enumerate(rows):
        number = int(np.searchsorted(borders, row, side="right")) - 1
        column = 0
        for tensor in table.parts[number].tensors:
            data = out[place, column : column + tensor.row_bytes].data
            checkpoint.read_into(tensor, int(row - borders[number]), data)
            column += tensor.row_bytes
    return out


def compare(
    checkpoint: Checkpoint,
    table: SourceTable,
    gather: Gather,
    *,
    samples: int | None = 10_000,
    seed: int = 0,
    progress: Callable[[int], Any] = lambda rows: None,
) -> Iterator[Difference]:
    """Compare `samples` rows of a table (None: all), the first and the last one among them, with the checkpoint's.

    `gather`: gives rows uint8 ``[n, row_bytes]`` of a table for its name and ids, as `RowStore.gather`; `seed`: chooses the
    samples; `progress`: called with the number of rows compared.
    """
    if samples is None:
        for at, block in PackedRows(checkpoint, table):
            yield from _differences(table, np.arange(at, at + len(block)), block, gather)
            progress(len(block))
        return
    random = np.random.default_rng(seed)
    chosen = np.unique(np.concatenate([random.integers(0, table.rows, max(0, samples - 2)), [0, table.rows - 1]]))
    for rows in np.array_split(chosen, max(1, len(chosen) // 4096)):
        yield from _differences(table, rows, packed_rows(checkpoint, table, rows.tolist()), gather)
        progress(len(rows))


def _differences(
    table: SourceTable, rows: NDArray[np.int64], expected: NDArray[np.uint8], gather: Gather
) -> Iterator[Difference]:
    wrong = (gather(table.name, rows) != expected).any(axis=1)
    if wrong.any():
        yield Difference(table.name, int(rows[int(np.argmax(wrong))]), int(wrong.sum()))
