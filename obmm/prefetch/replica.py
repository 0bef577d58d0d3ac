# SPDX-License-Identifier: Apache-2.0
"""Tables in this node's own memory or in a file, for the policy "local" (Engram specification 11.2)."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.errors import ObmmArgumentError
from obmm.prefetch.source import Invalid, TableId, Ticket


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """Sizes of one replicated table."""

    n_rows: int
    row_bytes: int
    neutral_zero: bool = False


@dataclass(frozen=True, slots=True)
class _Done:
    """A gather that is over: local memory needs no window."""

    rows: int
    generation: int

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def result(self) -> int:
        return self.rows

    def abandon(self) -> None:
        pass


class LocalReplica:
    """Gathers from local arrays on the caller's thread.

    `tables`: uint8 ``[n_rows, row_bytes]`` each, packed; an ``np.memmap`` serves a file without loading it.
    `generation`: the content version that the arrays were copied from.
    """

    path = "replica"

    def __init__(self, tables: Mapping[TableId, NDArray[np.uint8]], generation: int = 0) -> None:
        for name, rows in tables.items():
            if rows.ndim != 2 or rows.dtype != np.uint8:
                raise ObmmArgumentError.because(
                    "PREFETCH",
                    errno.EINVAL,
                    f"replica of table {name!r} is {rows.dtype} {rows.shape}",
                    "pass uint8 [n_rows, row_bytes]",
                    "Engram specification 11.2",
                )
        self._rows = dict(tables)
        self._generation = generation
        self.tables: Mapping[Any, ReplicaTable] = {
            name: ReplicaTable(len(rows), rows.shape[1]) for name, rows in self._rows.items()
        }

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        tables: Mapping[TableId, tuple[int, int, int]],
        generation: int = 0,
    ) -> LocalReplica:
        """Tables of one file: ``{name: (offset, n_rows, row_bytes)}``, mapped read-only."""
        arrays: dict[TableId, NDArray[np.uint8]] = {
            name: np.memmap(path, np.uint8, "r", offset, (n_rows, row_bytes))
            for name, (offset, n_rows, row_bytes) in tables.items()
        }
        return cls(arrays, generation)

    def submit_many(
        self,
        requests: Sequence[tuple[TableId, NDArray[np.int64], NDArray[np.uint8]]],
        *,
        invalid: Invalid = "error",
    ) -> Sequence[Ticket]:
        """Gather now; the tickets are done."""
        return [_Done(self._gather(*request, invalid), self._generation) for request in requests]

    def _gather(self, table: TableId, ids: NDArray[np.int64], out: NDArray[np.uint8], invalid: Invalid) -> int:
        rows = self._rows[table]
        flat = out.reshape(ids.size, rows.shape[1])
        outside = (ids < 0) | (ids >= len(rows))
        strange = bool(outside.any())
        if strange and invalid == "error":
            raise ObmmArgumentError.because(
                "PREFETCH",
                errno.EINVAL,
                f"id {ids[outside][0]} in a replica of {len(rows)} rows",
                "replicate the whole table",
                "Engram specification 11.2",
            )
        np.take(rows, ids.ravel(), axis=0, out=flat, mode="clip")
        if strange:
            flat[outside.ravel()] = 0
        return ids.size - int(outside.sum())

    def generation(self) -> int:
        return self._generation

    def healthy(self) -> bool:
        return True

    def submit_probe(self) -> Ticket:
        return _Done(0, self._generation)
