# SPDX-License-Identifier: Apache-2.0
"""What a table's owner does with a store: fill it, publish it, say that he is alive (Engram specification 5.3, 5.4)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.arguments import whole
from obmm.closing import Closing
from obmm.mapping.buffers import array_here
from obmm.rows import canary
from obmm.rows.errors import refused
from obmm.rows.heartbeat import INTERVAL, Heartbeat
from obmm.rows.manifest import Manifest
from obmm.rows.memory import RowMemory
from obmm.rows.table import TableId, TableSpec


class OwnerSide(Closing):
    """The part of a `RowStore` that writes."""

    _memory: RowMemory
    _is_subset: bool
    manifest: Manifest
    tables: MappingProxyType[TableId, TableSpec]

    def populate(self, table: TableId, rows: Any, at: int = 0) -> None:
        """Owner side: write rows ``[n, row_bytes]`` (any type whose rows have that many bytes) from row `at` on.

        From the first call on readers get StaleHandleError, until `publish`.

        `table`: its id.  ObmmArgumentError for rows that do not fit, or a read-only store.
        """
        spec = self._spec(table)
        at = whole("POPULATE", "at", at)
        data = np.ascontiguousarray(array_here(rows))
        if data.dtype.hasobject:
            raise refused(f"rows of dtype {data.dtype}", "numbers, or bytes")
        data = data.reshape(data.shape[0], -1).view(np.uint8) if data.size else np.empty((0, spec.row_bytes), np.uint8)
        if data.shape[1] != spec.row_bytes or at < 0 or at + len(data) > spec.n_rows:
            raise refused(
                f"{len(data)} rows of {data.shape[1]} bytes at {at} into table {table!r} of {spec.n_rows} rows of "
                f"{spec.row_bytes}",
                "rows of exactly row_bytes, inside the table",
            )
        self._memory.begin()
        for low, high in _runs(spec, at, at + len(data)):
            self._write_run(spec, low, data[low - at : high - at])

    def publish(self, **model: Any) -> Manifest:
        """Owner side: choose canary rows, write everything back, content version + 2 -> the manifest for readers.

        `model`: entries to add to the manifest, see `Manifest.model`.

        ObmmArgumentError for a part of a store.
        """
        if self._is_subset:
            raise refused("publish() of a subset", "publish the whole store")
        self._memory.begin()
        generation = self._memory.version() + 1 if self._memory.versioned else self.manifest.generation + 2
        rows = {table_id: canary.choose(spec, secrets.randbits(32)) for table_id, spec in self.tables.items()}
        manifest = replace(
            self.manifest,
            generation=generation,
            segments=tuple({"ordinal": i, "bytes": size} for i, size in enumerate(self._memory.segments)),
            canary={table_id: canary.sums(ids, self._read_rows(table_id, ids)) for table_id, ids in rows.items()},
            model={**self.manifest.model, **model},
        )
        text = manifest.to_json()
        self._memory.commit(len(self.tables), manifest.sha256, len(text))
        self.manifest = manifest
        return manifest

    def heartbeat(self, interval: float = INTERVAL) -> Heartbeat:
        """Owner side: count in the header every `interval` seconds until closed, so that readers notice when it ends.

        For non-cacheable regions; leases do as much for cacheable ones (Engram specification 5.3).

        ObmmArgumentError on cacheable memory, where no reader would see it.
        """
        if self._is_subset:
            raise refused("heartbeat() of a subset", "of the whole store")
        return Heartbeat(self._memory, interval)

    def _spec(self, table: TableId) -> TableSpec:
        try:
            return self.tables[table]
        except (KeyError, TypeError):
            raise refused(f"table {table!r}", f"one of {list(self.tables)}") from None

    def _read_rows(self, table: TableId, ids: Iterable[int]) -> NDArray[np.uint8]:
        """Owner side, while the version is odd: rows without the sequence lock."""
        spec = self.tables[table]
        rows = [self._memory.read(spec.offset_of(int(row)), spec.row_bytes) for row in ids]
        return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, spec.row_bytes)

    def _write_run(self, spec: TableSpec, row: int, data: NDArray[np.uint8]) -> None:
        if spec.row_stride == spec.row_bytes:
            self._memory.write(spec.offset_of(row), data)
            return
        step = max(1, (4 << 20) // spec.row_stride)
        for at in range(0, len(data), step):
            part = data[at : at + step]
            padded = np.zeros((len(part), spec.row_stride), np.uint8)
            padded[:, : spec.row_bytes] = part
            last = spec.row_stride - spec.row_bytes
            self._memory.write(spec.offset_of(row + at), padded.reshape(-1)[: padded.size - last])


def _runs(spec: TableSpec, low: int, high: int) -> Iterable[tuple[int, int]]:
    """Row ranges that lie in one piece: everything, or segment by segment in slot mode."""
    slots = spec.rows_per_segment or max(high, 1)
    while low < high:
        end = min(high, (low // slots + 1) * slots)
        yield low, end
        low = end
