# SPDX-License-Identifier: Apache-2.0
"""Where the rows of one table lie (Engram specification 5.2, 13.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from obmm.rows.errors import bad_manifest

TableId = int | str

_U32 = (1 << 32) - 1
_I63 = (1 << 63) - 1
_MAX_ROW = 1 << 24


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of byte rows.

    Row ``i`` is at ``base_offset + i * row_stride`` of the payload; with `rows_per_segment` (slot mode) at
    ``base_offset + (i // rows_per_segment) * segment_bytes + (i % rows_per_segment) * row_stride``.  `row_stride` 0
    means `row_bytes` rounded up to 8.  `head_offsets` has the first flat row of each column's head, for ids that are
    local to their head.  `neutral_zero`: an all-zero row set leaves the model's hidden state as it was.  `dtype`,
    `values` and `scale_layout` describe a row for the code that decodes it; this package moves bytes only.

    `table_id` names it, `n_rows` of `row_bytes` bytes each.  `layer_id` and `checksum` are for readers.  ObmmArgumentError
    for numbers that cannot be.

    >>> spec = obmm.rows.TableSpec("words", n_rows=100, row_bytes=60, base_offset=4096)
    >>> spec.end, spec.nbytes, spec.offset_of(2)
    (10492, 6000, 4224)
    >>> obmm.rows.TableSpec.from_manifest(spec.to_manifest()) == spec
    True
    """

    table_id: TableId
    n_rows: int
    row_bytes: int
    row_stride: int = 0
    base_offset: int = 0
    dtype: str = "u1"
    values: int = 0
    scale_layout: str = ""
    head_offsets: tuple[int, ...] = ()
    rows_per_segment: int = 0
    segment_bytes: int = 0
    neutral_zero: bool = False
    layer_id: int | None = None
    checksum: str = ""

    def __post_init__(self) -> None:
        if not self.row_stride:
            object.__setattr__(self, "row_stride", -(-self.row_bytes // 8) * 8)
        self._require(1 <= self.n_rows <= _I63, f"n_rows={self.n_rows}")
        self._require(1 <= self.row_bytes <= _MAX_ROW, f"row_bytes={self.row_bytes} (1..{_MAX_ROW})")
        self._require(
            self.row_stride >= self.row_bytes and self.row_stride % 8 == 0 and self.row_stride <= _U32,
            f"row_stride={self.row_stride} for {self.row_bytes} bytes (a multiple of 8, at least the row)",
        )
        self._require(
            self.base_offset >= 0 and self.base_offset % 8 == 0,
            f"base_offset={self.base_offset} (a multiple of 8)",
        )
        slots = self.rows_per_segment
        self._require(slots >= 0, f"rows_per_segment={slots}")
        self._require(
            not slots or (self.segment_bytes >= slots * self.row_stride and self.segment_bytes % 8 == 0),
            f"segment_bytes={self.segment_bytes} for {slots} rows of {self.row_stride} bytes",
        )
        heads = self.head_offsets
        self._require(
            not heads or (heads[0] == 0 and all(a < b for a, b in zip(heads, (*heads[1:], self.n_rows), strict=True))),
            f"head_offsets {heads[:4]}... do not divide {self.n_rows} rows",
        )
        self._require(self.end <= _I63, f"the table ends at byte {self.end}")

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise bad_manifest(f"table {self.table_id!r}: {problem}")

    @property
    def end(self) -> int:
        """The payload offset behind the last row's last byte."""
        return self.offset_of(self.n_rows - 1) + self.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of row data, without the gaps of the stride."""
        return self.n_rows * self.row_bytes

    def offset_of(self, row: int) -> int:
        """The payload offset of a row."""
        if not self.rows_per_segment:
            return self.base_offset + row * self.row_stride
        segment, place = divmod(row, self.rows_per_segment)
        return self.base_offset + segment * self.segment_bytes + place * self.row_stride

    def to_manifest(self) -> dict[str, Any]:
        """An entry of the manifest's ``tables``."""
        entry: dict[str, Any] = {
            "table_id": self.table_id,
            "rows": self.n_rows,
            "row_bytes": self.row_bytes,
            "row_stride": self.row_stride,
            "data_offset": self.base_offset,
            "dtype": self.dtype,
            "values": self.values,
            "scale_layout": self.scale_layout,
            "neutral_zero": self.neutral_zero,
        }
        if self.layer_id is not None:
            entry["layer_id"] = self.layer_id
        if self.head_offsets:
            entry["head_offsets"] = list(self.head_offsets)
        if self.rows_per_segment:
            entry["rows_per_segment"] = self.rows_per_segment
            entry["segment_bytes"] = self.segment_bytes
        if self.checksum:
            entry["checksum"] = self.checksum
        return entry

    @classmethod
    def from_manifest(cls, entry: Mapping[str, Any]) -> Self:
        """The table that an entry describes; ObmmArgumentError for anything else."""
        identity = entry.get("table_id")
        if not isinstance(identity, str) and (not isinstance(identity, int) or isinstance(identity, bool)):
            raise bad_manifest(f"a table's table_id is {identity!r}, not a number or a name")

        def number(key: str, default: int | None = None) -> int:
            value = entry.get(key, default)
            if not isinstance(value, int) or isinstance(value, bool):
                raise bad_manifest(f"table {identity!r}: {key} is {value!r}, not a whole number")
            return value

        def text(key: str, default: str) -> str:
            value = entry.get(key, default)
            if not isinstance(value, str):
                raise bad_manifest(f"table {identity!r}: {key} is {value!r}, not a string")
            return value

        heads = entry.get("head_offsets", [])
        if not isinstance(heads, list) or not all(isinstance(h, int) and not isinstance(h, bool) for h in heads):
            raise bad_manifest(f"table {identity!r}: head_offsets is not a list of whole numbers")
        return cls(
            table_id=identity,
            n_rows=number("rows"),
            row_bytes=number("row_bytes"),
            row_stride=number("row_stride", 0),
            base_offset=number("data_offset", 0),
            dtype=text("dtype", "u1"),
            values=number("values", 0),
            scale_layout=text("scale_layout", ""),
            head_offsets=tuple(heads),
            rows_per_segment=number("rows_per_segment", 0),
            segment_bytes=number("segment_bytes", 0),
            neutral_zero=entry.get("neutral_zero", False) is True,
            layer_id=number("layer_id") if "layer_id" in entry else None,
            checksum=text("checksum", ""),
        )
