# SPDX-License-Identifier: Apache-2.0
"""Rows of equal size in mapped memory, read by number: the gather without a store around it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.errors import ObmmArgumentError
from obmm.mapping.buffers import to_fill
from obmm.mapping.guard import fault_kind
from obmm.mapping.native_rows import NativeTable, aim, row_numbers
from obmm.mapping.ownership import Right
from obmm.mapping.pieces import fabric_played

if TYPE_CHECKING:
    from obmm.mapping.memory import Memory

B = TypeVar("B")


class RowView(Owner):
    """`n_rows` rows of `row_bytes`, `row_stride` bytes apart, from payload offset `offset` on.  Made by `Mapping.rows`.

    For tables with manifests, worker threads and tickets there is `obmm.rows.RowStore`.
    """

    def __init__(self, memory: Memory, row_bytes: int, row_stride: int, n_rows: int, offset: int) -> None:
        """ObmmArgumentError unless the rows lie inside `memory`."""
        _refuse_bad_rows(memory, row_bytes, row_stride, n_rows, offset)
        self.row_bytes, self.row_stride, self.n_rows, self.offset = row_bytes, row_stride, n_rows, offset
        self._memory = memory
        self._table = NativeTable(
            memory.address - memory.start + offset,
            n_rows,
            row_bytes,
            row_stride,
            [piece.gate for piece in memory._pieces],
            nc=memory.cache == "nc",
            huge=memory.region.pmd,
            fabric=fabric_played(memory),
        )

    @overload
    def gather(self, ids: npt.ArrayLike, out: None = None) -> npt.NDArray[np.uint8]: ...

    @overload
    def gather(self, ids: npt.ArrayLike, out: B) -> B: ...

    def gather(self, ids: npt.ArrayLike, out: Any = None) -> Any:
        """Copy rows `ids` (any shape, int32 or int64) into `out` -> `out`, by default a new uint8 array [*ids.shape, row_bytes].

        Guarded, on this thread, the interpreter lock released.  All ids are checked before the first row is read:
        ObmmArgumentError names the first that is not a row.  `out` is any writable contiguous buffer of the right size.
        """
        wanted = row_numbers(ids)
        if out is None:
            out = np.empty((*wanted.shape, self.row_bytes), np.uint8)
        target = to_fill("GATHER", "out", out)
        size = wanted.size * self.row_bytes
        if len(target) != size:
            raise _bad(f"out has {len(target)} bytes, {wanted.size} rows need {size}", f"a buffer of {size} bytes")
        if wanted.size:
            self._gather(wanted, target)
        return out

    def _gather(self, ids: npt.NDArray[Any], target: Any) -> None:
        memory, numbers = self._memory, ffi.from_buffer(ids)
        memory._checked(self.offset, self._extent, Right.READ)
        request, outcome = self._table.request(), ffi.new("struct obmm_outcome *")
        aim(request, numbers, ids.itemsize, ids.size, ffi.cast("uint8_t *", target))
        result = lib.obmm_gather_check(request, outcome)
        if result == -errno.ERANGE:
            raise ObmmArgumentError.because(
                "GATHER",
                errno.ERANGE,
                f"id {outcome.bad_id} at index {outcome.bad_index}",
                f"row numbers of 0..{self.n_rows - 1}",
                "docs/rows.md",
            )
        if result == -errno.EINVAL:
            raise _bad("out overlaps the rows or the ids, which are read while it is written", "a buffer of its own")
        result = result or lib.obmm_gather_range(request, 0, ids.size, ffi.NULL, outcome)
        if result == -errno.EFAULT:
            raise memory._fault_at("gather", outcome.fault.address, fault_kind(outcome.fault.signo), outcome.fault.code)
        if result:
            raise memory._is_closed()

    @property
    def _extent(self) -> int:
        return (self.n_rows - 1) * self.row_stride + self.row_bytes

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        return f"<RowView {self.n_rows} rows of {self.row_bytes} bytes every {self.row_stride} at {self.offset} of {self._memory!r}>"


def _refuse_bad_rows(memory: Memory, row_bytes: int, row_stride: int, n_rows: int, offset: int) -> None:
    """ObmmArgumentError unless the rows lie inside the mapping."""
    if row_bytes <= 0 or row_stride < row_bytes or n_rows <= 0:
        raise _bad(
            f"{n_rows} rows of {row_bytes} bytes every {row_stride}",
            "at least one row, and a stride of at least its bytes",
        )
    end = offset + (n_rows - 1) * row_stride + row_bytes
    if offset < memory.start or end > memory.stop:
        raise _bad(f"rows at [{offset}, {end})", f"rows inside the mapped payload [{memory.start}, {memory.stop})")


def _bad(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("GATHER", errno.EINVAL, problem, fix, "docs/rows.md")
