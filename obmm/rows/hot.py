# SPDX-License-Identifier: Apache-2.0
"""Rows of a table that are asked for again and again, kept in local memory (Engram specification 13.2)."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.errors import ObmmError
from obmm.rows.errors import refused
from obmm.rows.memory import RowMemory
from obmm.rows.table import TableId, TableSpec

HOT_ROWS = 16_384
"""As many rows as the specification suggests per table."""

_MOST_BYTES: int = lib.OBMM_HOT_MOST_BYTES


class HotRows(Owner):
    """The hot-row cache of one table; made by ``RowStore.attach(hot_rows=...)``.

    Rows are kept under their number and content version, in sets of eight with a CLOCK hand each.  `hits` and `misses`
    count rows of gathers that ended well; a gather of more ids than `rows` goes by without looking.

    `RowStore` has the example.
    """

    def __init__(self, spec: TableSpec, rows: int, totals: Any) -> None:
        out = ffi.new("struct obmm_hot **")
        if lib.obmm_hot_create(rows, spec.row_bytes, out):
            raise ObmmError(
                errno.ENOMEM,
                f"ATTACH: no memory for {rows} hot rows of {spec.row_bytes} bytes of table {spec.table_id!r}; fix: ask for "
                "fewer hot_rows",
                operation="GATHER",
            )
        # requests hold their table, and it this: freed when no gather can be in it
        self.pointer: Any = ffi.gc(out[0], lib.obmm_hot_free)
        self._totals = totals
        self.rows = int(lib.obmm_hot_rows(self.pointer))
        self.nbytes = int(lib.obmm_hot_bytes(self.pointer))

    @property
    def hits(self) -> int:
        """Rows that were taken from here."""
        return int(self._totals.rows_hot)

    @property
    def misses(self) -> int:
        """Rows that were looked for here and read from the table."""
        return int(self._totals.rows_missed)

    def __repr__(self) -> str:
        return f"<HotRows {self.rows} rows, {self.nbytes} bytes, {self.hits} hits, {self.misses} misses>"


def wanted(
    hot_rows: int | Mapping[TableId, int], tables: tuple[TableSpec, ...], memory: RowMemory
) -> dict[TableId, int]:
    """How many rows of each table are to be kept; tables without a cache are left out."""
    found: dict[TableId, int] = {}
    if isinstance(hot_rows, Mapping):
        known = {spec.table_id for spec in tables}
        for table_id in hot_rows:
            if table_id not in known:
                raise refused(f"hot_rows of table {table_id!r}", f"one of {sorted(known, key=str)}")
    for spec in tables:
        rows = hot_rows.get(spec.table_id, 0) if isinstance(hot_rows, Mapping) else hot_rows
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
            raise refused(f"hot_rows={rows!r} of table {spec.table_id!r}", f"0, or a number of rows such as {HOT_ROWS}")
        if not rows:
            continue
        if spec.row_bytes > _MOST_BYTES:
            raise refused(
                f"hot_rows for table {spec.table_id!r} with rows of {spec.row_bytes} bytes",
                f"leave tables with rows of more than {_MOST_BYTES} bytes out: hot_rows={{table: rows}}",
            )
        if not memory.version_address:
            raise refused(
                f"hot_rows for memory without a region header ({memory.backend})",
                "export with a header: rows are kept by the content version in it, or a new publication would go unnoticed",
            )
        found[spec.table_id] = min(rows, spec.n_rows)
    return found
