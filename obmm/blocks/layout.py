# SPDX-License-Identifier: Apache-2.0
"""How a region is cut into slots, and the manifest that says so."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from obmm._native import ffi
from obmm.arguments import whole
from obmm.blocks.errors import BlockStoreError, refused

HEADER_BYTES: int = ffi.sizeof("struct obmm_slot_header")
LINE = 64
MOST_BLOCK_BYTES = 1 << 30
MOST_SLOTS = 1 << 26
# every slot that was touched splits a cacheable mapping, and a process may have 65,530 pieces (driver specification 9.4)
MOST_CACHEABLE_SLOTS = 20_000

CacheMode = Literal["nc", "cc"]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """`slots` slots of `stride` bytes, each a header of 64 bytes and room for `capacity` bytes of one block.

    On a non-cacheable region a stride is whole lines of 64 bytes.  On a cacheable one it is whole pages: rights are
    given by pages, and data of two writers must never share one (driver specification 16, rule 8).

    >>> obmm.blocks.SlotLayout.for_blocks(16 << 10, 100).stride
    16448
    >>> obmm.blocks.SlotLayout.for_blocks(16 << 10, 100, cache="cc").stride
    20480

    >>> layout = obmm.blocks.SlotLayout.for_bytes(4096, 1 << 20)
    >>> layout.slots, layout.nbytes <= 1 << 20
    (..., True)
    >>> obmm.blocks.SlotLayout.from_json(layout.to_json(incarnation=7), layout.nbytes) == (layout, 7)
    True
    """

    slots: int
    stride: int
    capacity: int
    cache: CacheMode

    FORMAT: ClassVar[str] = "obmm-blocks"
    VERSION: ClassVar[int] = 1

    @classmethod
    def for_blocks(cls, block_bytes: int, slots: int, *, cache: CacheMode = "nc") -> SlotLayout:
        """Slots for blocks of at most `block_bytes`; ObmmArgumentError for sizes that no region can have."""
        block_bytes = whole("BLOCKS", "block_bytes", block_bytes)
        slots = whole("BLOCKS", "slots", slots)
        if not isinstance(cache, str) or cache not in ("nc", "cc"):
            raise refused(f"cache={cache!r}", "'nc' (no rights to take) or 'cc'")
        if not 1 <= block_bytes <= MOST_BLOCK_BYTES:
            raise refused(f"block_bytes={block_bytes}", f"1..{MOST_BLOCK_BYTES}")
        most = MOST_CACHEABLE_SLOTS if cache == "cc" else MOST_SLOTS
        if not 1 <= slots <= most:
            why = ": each slot in use splits a cacheable mapping [9.4]" if cache == "cc" else ""
            raise refused(f"slots={slots}{why}", f"1..{most}, or larger blocks")
        unit = 4096 if cache == "cc" else LINE
        return cls(slots, -(-(block_bytes + HEADER_BYTES) // unit) * unit, block_bytes, cache)

    @classmethod
    def for_bytes(cls, block_bytes: int, nbytes: int, *, cache: CacheMode = "nc") -> SlotLayout:
        """As many slots for blocks of `block_bytes` as `nbytes` have room for; `cache` and errors as for `for_blocks`.

        ObmmArgumentError when there is not room for one.
        """
        one = cls.for_blocks(block_bytes, 1, cache=cache)
        nbytes = whole("BLOCKS", "nbytes", nbytes)
        if nbytes < one.stride:
            raise refused(f"{nbytes} bytes for blocks of {block_bytes}", f"at least {one.stride} bytes")
        return cls.for_blocks(block_bytes, nbytes // one.stride, cache=cache)

    @property
    def nbytes(self) -> int:
        """What the region's payload must have."""
        return self.slots * self.stride

    def to_json(self, incarnation: int) -> dict[str, Any]:
        """The region's manifest; `incarnation`: which life of the owner, 64 bits."""
        incarnation = whole("BLOCKS", "incarnation", incarnation, low=1, high=(1 << 64) - 1)
        return {
            "format": self.FORMAT,
            "version": self.VERSION,
            "slots": self.slots,
            "stride": self.stride,
            "capacity": self.capacity,
            "cache": self.cache,
            "incarnation": f"{incarnation:016x}",
        }

    @classmethod
    def from_json(cls, manifest: Mapping[str, Any], nbytes: int) -> tuple[SlotLayout, int]:
        """Layout and incarnation in a manifest, for a payload of `nbytes`; BlockStoreError for anything else."""
        if not isinstance(manifest, Mapping):
            raise _bad(f"a manifest of type {type(manifest).__name__}", "name a region of `obmm blocks serve`")
        nbytes = whole("BLOCKS", "nbytes", nbytes, low=0)
        if not _is(manifest.get("format"), cls.FORMAT):
            raise _bad(f"a manifest of format {manifest.get('format')!r}", "name a region of `obmm blocks serve`")
        if not _is(manifest.get("version"), cls.VERSION):
            raise _bad(
                f"the owner writes slots of version {manifest.get('version')!r}, this side knows {cls.VERSION}",
                "run the same version of obmm on both nodes",
            )
        try:
            layout = cls.for_blocks(manifest["capacity"], manifest["slots"], cache=manifest["cache"])
            incarnation = int(manifest["incarnation"], 16)
        except (KeyError, TypeError, ValueError) as error:
            raise _bad(
                f"the manifest is not one of blocks: {error}", "serve the region with `obmm blocks serve`"
            ) from None
        if not _is(manifest.get("stride"), layout.stride) or layout.nbytes > nbytes or not 0 < incarnation < 1 << 64:
            raise _bad(
                f"the manifest and the region of {nbytes} bytes do not fit each other",
                "serve the region with `obmm blocks serve`",
            )
        return layout, incarnation


def _is(found: object, value: int | str) -> bool:
    """Equal, and of the same type: True is not version 1."""
    return type(found) is type(value) and found == value


def _bad(problem: str, fix: str) -> BlockStoreError:
    return BlockStoreError.because(errno.EPROTO, problem, fix)
