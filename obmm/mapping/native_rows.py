# SPDX-License-Identifier: Apache-2.0
"""``struct obmm_table`` and ``struct obmm_request``, filled here and nowhere else (native/gather/gather.h).

Native code reads both while the interpreter lock is away: a table is whole before the first gather from it and never
written again but for its tuning, a request belongs to one caller.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm._native import ffi, lib
from obmm.arguments import U64
from obmm.closing import Owner
from obmm.driver.modelled import ModelledFabric
from obmm.errors import ObmmArgumentError
from obmm.mapping.buffers import array_here, brought_here
from obmm.mapping.delay import native_delay

_ID_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


class NativeTable(Owner):
    """Rows of `row_bytes`, `row_stride` bytes apart, from `address` on, between `gates`.

    With `rows_per_segment` row i is in segment ``i // rows_per_segment`` of `segment_bytes`.  `version`: the address of
    the content version, 0 for none; `cached`: ``uint64_t *``, the version that caches may hold rows of; `huge`: the memory
    is mapped in blocks of 2 MiB.  `totals`, `pace` and `fetch` are native structs of the same names; gathers
    take the time of `fabric`, if there is one.
    """

    def __init__(
        self,
        address: int,
        rows: int,
        row_bytes: int,
        row_stride: int,
        gates: Sequence[Any],
        *,
        nc: bool,
        huge: bool,
        rows_per_segment: int = 0,
        segment_bytes: int = 0,
        version: int = 0,
        cached: Any = ffi.NULL,
        totals: Any = ffi.NULL,
        pace: Any = ffi.NULL,
        fetch: Any = ffi.NULL,
        fabric: ModelledFabric | None = None,
    ) -> None:
        delay = ffi.NULL if fabric is None else native_delay(fabric, row_bytes)
        self._kept = ffi.new("struct obmm_gate *[]", gates), cached, totals, pace, fetch, delay
        table = self.struct = ffi.new("struct obmm_table *")
        table.base = ffi.cast("uint8_t *", address)
        table.rows = rows
        table.row_bytes = row_bytes
        table.row_stride = row_stride
        table.rows_per_segment = rows_per_segment
        table.segment_bytes = segment_bytes
        table.flags = (lib.OBMM_TABLE_NC if nc else 0) | (lib.OBMM_TABLE_HUGE if huge else 0)
        table.gates = self._kept[0]
        table.n_gates = len(gates)
        table.version = ffi.cast("uint64_t *", version)
        table.cached, table.totals, table.pace, table.fetch = cached, totals, pace, fetch
        table.delay = delay
        lib.obmm_tuning_default(ffi.addressof(table, "tuning"), row_bytes, table.flags)

    def request(self, low: int = 0, high: int = U64) -> Any:
        """A new ``struct obmm_request *`` for packed rows; flat rows outside [low, high) give zeros.  Keep this object."""
        request = ffi.new("struct obmm_request *")
        request.table = self.struct
        request.out_stride = self.struct.row_bytes
        request.low = low
        request.high = high
        return request


def row_numbers(ids: npt.ArrayLike) -> npt.NDArray[Any]:
    """`ids`, numbers of rows in any shape, as contiguous int32 or int64; ObmmArgumentError for what is none."""
    try:
        found = np.asarray(ids) if type(ids) is np.ndarray else array_here(ids)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_numbers(f"that are not an array: {error}") from None
    if found.dtype not in _ID_TYPES or not found.flags.c_contiguous:
        found = brought_here(found)  # NumPy is about to read it
    if found.dtype not in _ID_TYPES:
        if found.dtype.kind not in "iu" and found.size:
            raise _no_numbers(f"of type {found.dtype}")
        found = found.astype(np.int64)
    return found if found.flags.c_contiguous else np.ascontiguousarray(found)


def _no_numbers(problem: str) -> ObmmArgumentError:
    return ObmmArgumentError.because(
        "GATHER", errno.EINVAL, f"row numbers {problem}", "whole numbers, int32 or int64", "docs/rows.md"
    )


def aim(request: Any, ids: Any, id_bytes: int, count: int, out: Any) -> None:
    """Let `request` read `count` ids at `ids` and write rows to `out`; both are the caller's to keep alive."""
    request.ids = ids
    request.id_bytes = id_bytes
    request.count = count
    request.out = out
