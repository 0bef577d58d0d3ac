# SPDX-License-Identifier: Apache-2.0
"""Rows of equal size in a mapping, read by number: the gather without a store around it."""

from __future__ import annotations

import errno
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from obmm._native import ffi, lib
from obmm.buffers import holds_objects
from obmm.errors import ObmmArgumentError
from obmm.region import Region
from obmm.window import Cache

_ID_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


class RowSource(Protocol):
    """Payload bytes [`start`, `stop`) that rows can be gathered from: a mapping, or several side by side."""

    region: Region
    cache: Cache

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def gather(self, table: Any, offset: int, extent: int, ids: npt.NDArray[Any], target: Any) -> None:
        """Rows `ids` of the native `table` at payload bytes [offset, offset + extent) into `target`."""


class RowView:
    """`n_rows` rows of `row_bytes`, `row_stride` bytes apart, from payload offset `offset` on.  Made by `Mapping.rows`.

    For tables with manifests, worker threads and tickets there is `obmm.rows.RowStore`.
    """

    def __init__(self, mapping: RowSource, row_bytes: int, row_stride: int, n_rows: int, offset: int) -> None:
        self.row_bytes, self.row_stride, self.n_rows, self.offset = row_bytes, row_stride, n_rows, offset
        self._mapping = mapping
        table = ffi.new("struct obmm_table *")
        table.rows = n_rows
        table.row_bytes = row_bytes
        table.row_stride = row_stride
        flags = lib.OBMM_TABLE_NC if mapping.cache == "nc" else 0
        table.flags = flags | (lib.OBMM_TABLE_HUGE if mapping.region.pmd else 0)
        lib.obmm_tuning_default(ffi.addressof(table, "tuning"), row_bytes, table.flags)
        self._table = table

    def gather(self, ids: npt.ArrayLike, out: Any = None) -> Any:
        """Copy rows `ids` (any shape, int32 or int64) into `out` -> `out`, by default a new uint8 array [*ids.shape, row_bytes].

        Guarded, on this thread, the interpreter lock released.  All ids are checked before the first row is read:
        ObmmArgumentError names the first that is no row.  `out` is any writable contiguous buffer of the right size.
        """
        wanted = np.asarray(ids)
        if wanted.dtype not in _ID_TYPES:
            if wanted.dtype.kind not in "iu" and wanted.size:
                raise _bad(f"row numbers of type {wanted.dtype}", "int32 or int64")
            wanted = wanted.astype(np.int64)
        wanted = np.ascontiguousarray(wanted)
        if out is None:
            out = np.empty((*wanted.shape, self.row_bytes), np.uint8)
        try:
            target = ffi.from_buffer(out, require_writable=True)
        except (TypeError, BufferError, ValueError) as error:
            raise _bad(f"out: {error}", "a writable contiguous buffer") from None
        size = wanted.size * self.row_bytes
        if holds_objects(out):
            raise _bad("out is an array of Python objects", "bytes, or numbers")
        if len(target) != size:
            raise _bad(f"out has {len(target)} bytes, {wanted.size} rows need {size}", f"a buffer of {size} bytes")
        if wanted.size:
            self._mapping.gather(self._table, self.offset, self._extent, wanted, target)
        return out

    @property
    def _extent(self) -> int:
        return (self.n_rows - 1) * self.row_stride + self.row_bytes

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        return f"<RowView {self.n_rows} rows of {self.row_bytes} bytes every {self.row_stride} at {self.offset} of {self._mapping!r}>"


def refuse_bad_rows(mapping: RowSource, row_bytes: int, row_stride: int, n_rows: int, offset: int) -> None:
    """ObmmArgumentError unless the rows lie inside the mapping."""
    if row_bytes <= 0 or row_stride < row_bytes or n_rows <= 0:
        raise _bad(
            f"{n_rows} rows of {row_bytes} bytes every {row_stride}",
            "at least one row, and a stride of at least its bytes",
        )
    end = offset + (n_rows - 1) * row_stride + row_bytes
    if offset < mapping.start or end > mapping.stop:
        raise _bad(f"rows at [{offset}, {end})", f"rows inside the mapped payload [{mapping.start}, {mapping.stop})")


def _bad(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("GATHER", errno.EINVAL, problem, fix, "docs/rows.md")
