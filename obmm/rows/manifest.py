# SPDX-License-Identifier: Apache-2.0
"""The manifest of published tables (Engram specification 5.4): JSON that goes with the handle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from obmm.errors import other_version
from obmm.rows.errors import bad_manifest
from obmm.rows.table import TableId, TableSpec

Canary = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a reader must know to find, check and hash into published tables.

    `generation` equals the region header's content version.  `canary` has row numbers with their CRC-32C per table,
    read at attach and by health probes.  `model` holds everything else a reader may want (``model``, ``algorithm``,
    ``layers``, ``pad_id``, ``dead_ids``, ``token_map``, ...) as JSON values, kept as they are.

    `segments`: per region its name and bytes, where a payload lies in several.  ObmmArgumentError for what cannot be.

    >>> spec = obmm.rows.TableSpec("words", n_rows=100, row_bytes=64)
    >>> manifest = obmm.rows.Manifest((spec,), model={"pad_id": 2})
    >>> manifest.nbytes, manifest.to_dict()["tables"][0]["table_id"], len(manifest.sha256)
    (6400, 'words', 32)
    >>> obmm.rows.Manifest.from_json(manifest.to_json()) == manifest == obmm.rows.Manifest.from_dict(manifest.to_dict())
    True
    """

    tables: tuple[TableSpec, ...]
    generation: int = 0
    canary: Mapping[TableId, Canary] = field(default_factory=dict)
    segments: tuple[Mapping[str, Any], ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)

    FORMAT: ClassVar[str] = "obmm-table"
    VERSION: ClassVar[int] = 1
    MAX_BYTES: ClassVar[int] = 64 << 20

    def __post_init__(self) -> None:
        ids = [table.table_id for table in self.tables]
        if not ids or len(set(map(str, ids))) != len(ids):
            raise bad_manifest(f"tables {ids}: at least one, each with its own id")
        for table_id in self.canary:
            if table_id not in ids:
                raise bad_manifest(f"canary rows of table {table_id!r}, which is not in tables")
        for table in self.tables:
            for row, crc in self.canary.get(table.table_id, ()):
                if not 0 <= row < table.n_rows or not 0 <= crc < 1 << 32:
                    raise bad_manifest(f"canary row {row} (CRC {crc}) of table {table.table_id!r}")

    @property
    def nbytes(self) -> int:
        """Payload bytes that the tables need."""
        return max(table.end for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            **self.model,
            "format": self.FORMAT,
            "version": self.VERSION,
            "generation": self.generation,
            "tables": [table.to_manifest() for table in self.tables],
            "segments": [dict(segment) for segment in self.segments],
            "canary": [
                {"table_id": table_id, "rows": [list(pair) for pair in pairs]}
                for table_id, pairs in self.canary.items()
            ],
        }

    def to_json(self) -> bytes:
        """One canonical text: the SHA-256 of it stands in the region header."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":")).encode()

    @property
    def sha256(self) -> bytes:
        """Of `to_json`."""
        return hashlib.sha256(self.to_json()).digest()

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """The manifest in a JSON text; ObmmArgumentError that names what is wrong with it."""
        if len(text) > cls.MAX_BYTES:
            raise bad_manifest(f"{len(text)} bytes of manifest, at most {cls.MAX_BYTES}")
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise bad_manifest(f"not JSON: {error}") from error
        return cls.from_dict(entry)

    @classmethod
    def from_dict(cls, entry: Any) -> Self:
        """The manifest in the JSON object `entry`, as a lease carries it; ObmmArgumentError."""
        if not isinstance(entry, Mapping):
            raise bad_manifest("not a JSON object")
        if entry.get("format") != cls.FORMAT:
            raise bad_manifest(f"format {entry.get('format')!r}, expected {cls.FORMAT!r}")
        if entry.get("version") != cls.VERSION:
            raise bad_manifest(other_version("the table's manifest", entry.get("version"), cls.VERSION))
        generation = entry.get("generation", 0)
        if not isinstance(generation, int) or isinstance(generation, bool) or not 0 <= generation < 1 << 64:
            raise bad_manifest(f"generation {generation!r}")
        known = {"format", "version", "generation", "tables", "segments", "canary"}
        return cls(
            tables=tuple(TableSpec.from_manifest(table) for table in _objects(entry, "tables")),
            generation=generation,
            canary={_table_id(canary): _canary(canary) for canary in _objects(entry, "canary")},
            segments=tuple(_objects(entry, "segments")),
            model={key: value for key, value in entry.items() if key not in known},
        )


def _objects(entry: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = entry.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        raise bad_manifest(f"{key} is not a list of objects")
    return found


def _table_id(entry: Mapping[str, Any]) -> TableId:
    identity = entry.get("table_id")
    if isinstance(identity, bool) or not isinstance(identity, int | str):
        raise bad_manifest(f"canary of table {identity!r}")
    return identity


def _canary(entry: Mapping[str, Any]) -> Canary:
    rows = entry.get("rows")
    if not isinstance(rows, list):
        raise bad_manifest("canary without rows")
    pairs = []
    for pair in rows:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(n) is int for n in pair):
            raise bad_manifest(f"canary row {pair!r} is not [row, CRC-32C]")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)
