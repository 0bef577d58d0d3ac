# SPDX-License-Identifier: Apache-2.0
"""A process that owns segments, for tests: one JSON command a line on standard input, one answer a line."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import numpy as np

from obmm import urma
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec


def content(seed: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def rows_of(table: str, n_rows: int, row_bytes: int, publication: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What a published table holds."""
    return content(sum(table.encode()) * 1000 + publication, n_rows * row_bytes).reshape(n_rows, row_bytes)


def laid_out(tables: list[tuple[str, int, int]]) -> tuple[TableSpec, ...]:
    """(name, rows, bytes of a row), one after the other."""
    specs, at = [], 0
    for name, n_rows, row_bytes in tables:
        spec = TableSpec(name, n_rows, row_bytes, base_offset=at, neutral_zero=True)
        specs.append(spec)
        at = -(-spec.end // 4096) * 4096
    return tuple(specs)


class Owner:
    def __init__(self) -> None:
        self.context = urma.Context()
        self.queue = self.context.queue(depth=64, list_max=64)
        self.buffers: list[Any] = []
        self.segments: list[urma.Segment] = []
        self.stores: dict[int, RowStore] = {}

    def register(self, seed: int, nbytes: int, access: str = "r") -> list[Any]:
        buffer = self.context.buffer(nbytes, access)  # type: ignore[arg-type]
        buffer[:] = content(seed, nbytes)
        self.buffers.append(buffer)
        return self._announce(self.context.segment_of(buffer)[0])

    def again(self, number: int, seed: int) -> list[Any]:
        """The same memory, revoked and registered anew, with other bytes."""
        buffer = self.buffers[number]
        self.segments[number].close()
        buffer[:] = content(seed, len(buffer))
        return self._announce(self.context.register(buffer.base))

    def publish(self, tables: list[tuple[str, int, int]]) -> list[Any]:
        """Tables with a region header, as publication 2 -> number, ticket, manifest."""
        specs = laid_out(tables)
        nbytes = 4096 + Manifest(specs).nbytes
        buffer = self.context.buffer(nbytes, "r")
        LocalMemory.format(buffer, 9)
        self.buffers.append(buffer)
        number, ticket = self._announce(self.context.segment_of(buffer)[0])
        self.stores[number] = RowStore.attach(LocalMemory(buffer, header=True), Manifest(specs), verify="none")
        return [number, ticket, self.publish_again(number, 2)]

    def publish_again(self, number: int, publication: int) -> dict[str, Any]:
        store = self.stores[number]
        for spec in store.manifest.tables:
            store.populate(spec.table_id, rows_of(str(spec.table_id), spec.n_rows, spec.row_bytes, publication))
        return store.publish().to_dict()

    def _announce(self, segment: urma.Segment) -> list[Any]:
        self.segments.append(segment)
        return [len(self.segments) - 1, segment.ticket(self.queue).hex()]

    def revoke(self, number: int) -> str:
        """And other bytes at once, as a new owner of the memory would write them."""
        self.segments[number].close()
        self.buffers[number][:] = 0xEE
        return "revoked"

    def digest(self, number: int) -> str:
        return hashlib.sha256(self.buffers[number].tobytes()).hexdigest()

    def cpu(self) -> float:
        return time.process_time()

    def pid(self) -> int:
        return os.getpid()


def main() -> None:
    owner = Owner()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = getattr(owner, name)(*arguments)
        except Exception as error:
            answer = repr(error)
        print(json.dumps(answer), flush=True)
    owner.context.close()


if __name__ == "__main__":
    main()
