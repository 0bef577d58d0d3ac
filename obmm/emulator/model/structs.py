# SPDX-License-Identifier: Apache-2.0
"""The command structs as the kernel reads them (driver specification 4 and 5).

The model keeps its own table: it is the other side of the line, so a wrong
offset in the client's table must show as a wrong answer here.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any


class Layout:
    """A packed struct: names the fields, unpacks from and packs outputs into raw bytes."""

    def __init__(self, *members: tuple[str, str]) -> None:
        code = "<" + "".join(kind for _, kind in members)
        self._struct = struct.Struct(code)
        self.size = self._struct.size
        self._names = [field for field, _ in members if field]
        self._offsets: dict[str, tuple[struct.Struct, int]] = {}
        offset = 0
        for field, kind in members:
            one = struct.Struct("<" + kind)
            if field:
                self._offsets[field] = (one, offset)
            offset += one.size

    def unpack(self, raw: bytes) -> Any:
        """The fields by name (an array of u64 stays packed)."""
        return SimpleNamespace(**dict(zip(self._names, self._struct.unpack(raw), strict=True)))

    def values(self, raw: bytes) -> tuple[Any, ...]:
        """The fields in order."""
        return self._struct.unpack(raw)

    def store(self, raw: bytes, **outputs: int) -> bytes:
        """`raw` with the named fields replaced: the kernel copies the whole struct back."""
        changed = bytearray(raw)
        for field, value in outputs.items():
            one, offset = self._offsets[field]
            one.pack_into(changed, offset, value)
        return bytes(changed)


EXPORT = Layout(
    ("size", "128s"),
    ("length", "Q"),
    ("flags", "Q"),
    ("uba", "Q"),
    ("mem_id", "Q"),
    ("tokenid", "I"),
    ("pxm_numa", "i"),
    ("priv_len", "H"),
    ("vendor_len", "H"),
    ("deid", "16s"),
    ("seid", "16s"),
    ("", "4x"),
    ("vendor_info", "Q"),
    ("priv", "Q"),
)
EXPORT_PID = Layout(
    ("va", "Q"),
    ("length", "Q"),
    ("flags", "Q"),
    ("uba", "Q"),
    ("mem_id", "Q"),
    ("tokenid", "I"),
    ("pid", "i"),
    ("pxm_numa", "i"),
    ("priv_len", "H"),
    ("vendor_len", "H"),
    ("deid", "16s"),
    ("seid", "16s"),
    ("priv", "Q"),
    ("vendor_info", "Q"),
)
REMOVE = Layout(("mem_id", "Q"), ("flags", "Q"))
ADDR_QUERY = Layout(("key_type", "I"), ("", "4x"), ("mem_id", "Q"), ("offset", "Q"), ("pa", "Q"))
IMPORT = Layout(
    ("flags", "Q"),
    ("mem_id", "Q"),
    ("addr", "Q"),
    ("length", "Q"),
    ("tokenid", "I"),
    ("scna", "I"),
    ("dcna", "I"),
    ("numa_id", "i"),
    ("priv_len", "H"),
    ("base_dist", "B"),
    ("deid", "16s"),
    ("seid", "16s"),
    ("", "5x"),
    ("priv", "Q"),
)
UPDATE_RANGE = Layout(("start", "Q"), ("end", "Q"), ("mem_state", "B"), ("cache_ops", "B"), ("", "6x"))
PREIMPORT = Layout(
    ("pa", "Q"),
    ("length", "Q"),
    ("flags", "Q"),
    ("scna", "I"),
    ("dcna", "I"),
    ("numa_id", "i"),
    ("priv_len", "H"),
    ("base_dist", "B"),
    ("deid", "16s"),
    ("seid", "16s"),
    ("priv", "Q"),
    ("", "x"),
)

CMD_EXPORT = 0xC0E07800
CMD_IMPORT = 0xC0607801
CMD_UNEXPORT = 0x40107802
CMD_UNIMPORT = 0x40107803
CMD_ADDR_QUERY = 0xC0207804
CMD_EXPORT_PID = 0xC0687805
CMD_DECLARE_PREIMPORT = 0xC0507806
CMD_UNDECLARE_PREIMPORT = 0x40507807
SHMDEV_UPDATE_RANGE = 0x40185800

EXPORT_ALLOW_MMAP, EXPORT_FAST, EXPORT_MASK = 1, 2, 3
IMPORT_ALLOW_MMAP, IMPORT_PREIMPORT, IMPORT_NUMA_REMOTE, IMPORT_MASK = 1, 2, 4, 7
MAX_LOCAL_NODES = 16
MAX_PRIV_LEN = 512
MAX_VENDOR_LEN = 128
MAX_MEM_ID = 0xFFFFF
MAX_DISTANCE = 255
IMPORT_GRANULE = 2 << 20
HUGETLB_PMD = 1 << 63

SIZES = struct.Struct("<16Q")

assert (EXPORT.size, EXPORT_PID.size, REMOVE.size, ADDR_QUERY.size) == (224, 104, 16, 32)
assert (IMPORT.size, UPDATE_RANGE.size, PREIMPORT.size) == (96, 24, 80)
