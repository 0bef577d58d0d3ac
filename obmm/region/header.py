# SPDX-License-Identifier: Apache-2.0
"""The 4 KiB header at the start of a region (Engram specification 5.3): its fields, and where each of them lies."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import ClassVar

from obmm.errors import other_version

MAGIC = b"OBMMREG1"


class OtherVersion(ValueError):
    """A header that another version of this package reads."""


class RegionState(enum.IntEnum):
    """Word 40 of the header."""

    EMPTY = 0
    LOADING = 1
    READY = 2
    RETIRING = 3


@dataclass(frozen=True, slots=True)
class RegionHeader:
    """What the exporter writes and every importer checks through the fabric before it trusts the memory.

    `content_version` is a sequence lock: even = stable, odd = being written.  `generation` equals the handle's and
    never changes; a handle whose generation differs is stale.
    """

    generation: int
    data_bytes: int
    data_offset: int = 4096
    content_version: int = 0
    state: RegionState = RegionState.EMPTY
    tables: int = 0
    manifest_sha256: bytes = bytes(32)
    manifest_bytes: int = 0
    heartbeat: int = 0
    writer_boot_id: int = 0

    SIZE: ClassVar[int] = 4096
    VERSION: ClassVar[int] = 1
    # Byte offsets of the fields that are read and written one by one; no other file has such a number.
    CONTENT_VERSION_OFFSET: ClassVar[int] = 16
    STATE_OFFSET: ClassVar[int] = 40
    TABLES_OFFSET: ClassVar[int] = 44
    DIGEST_OFFSET: ClassVar[int] = 48
    MANIFEST_BYTES_OFFSET: ClassVar[int] = 80
    GENERATION_OFFSET: ClassVar[int] = 88
    HEARTBEAT_OFFSET: ClassVar[int] = 128
    DIGEST_SIZE: ClassVar[int] = 32
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<8sIIQQQII32sQQ32xQ56xQ")

    def pack(self) -> bytes:
        """The 4096 bytes of the header page."""
        head = self._LAYOUT.pack(
            MAGIC,
            self.VERSION,
            self.SIZE,
            self.content_version,
            self.data_offset,
            self.data_bytes,
            self.state,
            self.tables,
            self.manifest_sha256,
            self.manifest_bytes,
            self.generation,
            self.heartbeat,
            self.writer_boot_id,
        )
        return head.ljust(self.SIZE, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> RegionHeader:
        """The header in `data`; ValueError that says which field is not a header's, OtherVersion among them."""
        if len(data) < cls._LAYOUT.size:
            raise ValueError(f"{len(data)} bytes are too few for a region header")
        (
            magic,
            version,
            size,
            content_version,
            data_offset,
            data_bytes,
            state,
            tables,
            sha256,
            manifest_bytes,
            generation,
            heartbeat,
            boot_id,
        ) = cls._LAYOUT.unpack(data[: cls._LAYOUT.size])
        if magic != MAGIC:
            raise ValueError("the magic is not OBMMREG1")
        if version != cls.VERSION:
            raise OtherVersion(other_version("the region header", version, cls.VERSION))
        if size != cls.SIZE:
            raise ValueError(f"a header of {size} bytes, expected {cls.SIZE}")
        if data_offset % 4096 or data_offset < cls.SIZE:
            raise ValueError(f"data offset {data_offset} is not a multiple of 4096 behind the header")
        if state not in RegionState._value2member_map_:
            raise ValueError(f"state {state} is unknown")
        return cls(
            generation=generation,
            data_bytes=data_bytes,
            data_offset=data_offset,
            content_version=content_version,
            state=RegionState(state),
            tables=tables,
            manifest_sha256=sha256,
            manifest_bytes=manifest_bytes,
            heartbeat=heartbeat,
            writer_boot_id=boot_id,
        )


assert RegionHeader._LAYOUT.size == 200
