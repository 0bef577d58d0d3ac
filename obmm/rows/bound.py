# SPDX-License-Identifier: Apache-2.0
"""A table at its address: what the native gather is told about it, made once at attach."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.mapping.native_rows import NativeTable
from obmm.rows.errors import refused
from obmm.rows.hot import HotRows
from obmm.rows.memory import RowMemory
from obmm.rows.table import TableSpec

NEVER = (1 << 32) - 1
"""Rows of a batch that is never reached."""


_NODES = b"/sys/devices/system/node"


@functools.cache
def _nodes() -> int:
    """NUMA nodes with CPUs."""
    return int(lib.obmm_nodes_with_cpus(_NODES))


class BoundTable(Owner):
    """A `TableSpec` in a `RowMemory`.

    `columns`: which columns of the ids' last dimension are read (None: all); `low`, `high`: which flat rows.  What is
    left out gives zero rows, unread (Engram specification 7.4).
    """

    def __init__(
        self,
        spec: TableSpec,
        memory: RowMemory,
        *,
        huge: bool,
        columns: NDArray[np.uint8] | None = None,
        low: int = 0,
        high: int | None = None,
    ) -> None:
        if spec.end > memory.nbytes:
            raise refused(
                f"table {spec.table_id!r} ends at byte {spec.end} of a payload of {memory.nbytes}",
                "attach every region of the table, in order",
                "5.2",
            )
        self.spec = spec
        self.memory = memory
        self.huge = huge
        self.columns = columns
        self.low = low
        self.high = spec.n_rows if high is None else high
        self.totals = ffi.new("struct obmm_totals *")
        self.pace = ffi.new("struct obmm_pace *")
        self._table = NativeTable(
            memory.address + spec.base_offset,
            spec.n_rows,
            spec.row_bytes,
            spec.row_stride,
            memory.gates,
            nc=memory.nc,
            huge=huge,
            rows_per_segment=spec.rows_per_segment,
            segment_bytes=spec.segment_bytes,
            version=memory.version_address,
            cached=memory.cached_version,
            totals=self.totals,
            pace=self.pace,
            fetch=memory.fetch,
            fabric=memory.fabric,
        )
        self.struct = self._table.struct
        self.fetched = bool(memory.fetch)
        if self.fetched:
            # requests in lists: no lines to ask for ahead, no order to gain from, and one queue
            self.struct.tuning.prefetch_bytes = 0
            self.struct.tuning.order_rows = NEVER
            self.struct.tuning.most_threads = 1
        if not self.fetched and _nodes() > 1:
            node = lib.obmm_node_of(self.struct.base, max(spec.end - spec.base_offset, 0))
            if node >= 0:
                self.struct.tuning.node, self.struct.tuning.near_cpus = node + 1, lib.obmm_node_cpus(_NODES, node)
        heads = (*spec.head_offsets, spec.n_rows) if spec.head_offsets else ()
        self.heads = ffi.new("int64_t[]", heads) if heads else ffi.NULL
        self.n_heads = len(spec.head_offsets)
        self.mask = ffi.NULL if columns is None else ffi.from_buffer("uint8_t[]", columns)
        self.template = self._table.request(self.low, self.high)
        self.hot: HotRows | None = None

    def keep_hot(self, rows: int) -> None:
        """Keep that many of its rows in local memory, for gathers from now on."""
        self._keep(HotRows(self.spec, rows, self.totals))

    def _keep(self, hot: HotRows) -> None:
        self.hot = hot
        self.template.hot = hot.pointer

    def subset(self, columns: Sequence[int] | None, low: int, high: int | None, n_columns: int) -> BoundTable:
        """The same table, restricted further."""
        mask = self.columns
        if columns is not None:
            mask = np.zeros(n_columns, np.uint8)
            mask[list(columns)] = 1
            if self.columns is not None:
                mask &= self.columns
        top = self.high if high is None else min(high, self.high)
        other = BoundTable(
            self.spec, self.memory, huge=self.huge, columns=mask, low=max(low, self.low), high=max(top, 0)
        )
        other.struct.tuning = self.struct.tuning
        other.totals = other.struct.totals = self.totals
        other.pace = other.struct.pace = self.pace
        if self.hot is not None:
            other._keep(self.hot)
        return other

    def fill_columns(self, request: Any, last_dimension: int, local: bool) -> None:
        """What a ``struct obmm_request`` needs besides the template when columns mean something."""
        if local or self.columns is not None:
            self._fill_columns(request, last_dimension, local)

    def _fill_columns(self, request: Any, last_dimension: int, local: bool) -> None:
        table = self.spec.table_id
        if local:
            if not self.n_heads:
                raise refused(
                    f'id_space="local", but table {table!r} has no head_offsets', 'pass flat ids with id_space="flat"'
                )
            if last_dimension != self.n_heads:
                raise refused(
                    f"local ids with a last dimension of {last_dimension}; table {table!r} has {self.n_heads} heads",
                    "one column per head",
                )
            request.head_offsets = self.heads
        if self.columns is not None:
            if last_dimension != len(self.columns):
                raise refused(
                    f"ids with a last dimension of {last_dimension} in a slice of {len(self.columns)} columns",
                    "pass the ids of all columns",
                    "7.4",
                )
            request.column_mask = self.mask
        request.columns = last_dimension
