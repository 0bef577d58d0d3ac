# SPDX-License-Identifier: Apache-2.0
"""UMMU: gives an export its token and its bus address (driver specification 7 and 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ids import LowestFree

if TYPE_CHECKING:
    from .region import ExportRegion

UBA_SPACE = 1 << 48


def uba_of(size: int) -> int:
    """Base of a region of `size` bytes in its private 48-bit space: top-down, naturally aligned."""
    alignment = 1 << (size - 1).bit_length()
    return (UBA_SPACE - size) // alignment * alignment


class Ummu:
    """One translation unit. `index` None is the logical UMMU, which takes requests without vendor data."""

    def __init__(self, index: int | None, token_min: int, token_max: int) -> None:
        self.index = index
        self.tokens = LowestFree(token_min, token_max)
        self.exports: dict[int, ExportRegion] = {}

    def accepts(self, vendor: bytes) -> bool:
        """Whether this unit takes a request with `vendor` (driver specification 18)."""
        if len(vendor) < 24:
            return self.index is None and not vendor
        mask = int.from_bytes(vendor[8:16], "little")
        on_chip = vendor[16] != 0
        if self.index is None:
            return not on_chip
        return on_chip and mask != 0 and (mask & -mask).bit_length() - 1 == self.index

    def find(self, tokenid: int, uba: int) -> tuple[ExportRegion, int] | None:
        """The export that lives at (token, uba), and the offset in it."""
        region = self.exports.get(tokenid)
        if region is None or not region.uba <= uba < region.uba + region.size:
            return None
        return region, uba - region.uba
