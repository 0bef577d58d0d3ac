# SPDX-License-Identifier: Apache-2.0
"""Tables whose every byte is a function of row number, place and publication."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.rows import GatherEngine, LocalMemory, Manifest, RowStore, TableSpec


def expected(ids: Any, row_bytes: int, salt: int = 0) -> NDArray[np.uint8]:
    """The bytes of rows `ids` -> ``[*ids.shape, row_bytes]``; ids below 0 are zero rows."""
    number = np.asarray(ids, dtype=np.int64)
    place = np.arange(row_bytes, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (number.astype(np.uint64)[..., None] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ place
    data = ((mixed ^ np.uint64(salt * 0x94D049BB)) >> np.uint64(29)).astype(np.uint8)
    data[number < 0] = 0
    return data


@dataclass
class Shelf:
    """A memfd with a region header and tables; `cut` is what a revocation does to a mapping."""

    fd: int
    map: mmap.mmap

    def cut(self, length: int = 0) -> None:
        os.ftruncate(self.fd, length)

    def memory(self) -> LocalMemory:
        return LocalMemory(self.map, header=True)

    def owner(self, *tables: TableSpec, engine: GatherEngine | None = None) -> RowStore:
        return RowStore.attach(self.memory(), Manifest(tables), verify="none", engine=engine)


def publish(owner: RowStore, salt: int = 0) -> Manifest:
    """Fill every table of `owner` and publish it."""
    for table_id, spec in owner.tables.items():
        rows = expected(np.arange(spec.n_rows), spec.row_bytes, salt)
        owner.populate(table_id, rows)
    return owner.publish()
