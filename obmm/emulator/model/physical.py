# SPDX-License-Identifier: Apache-2.0
"""From a physical address to the live region that holds it (ADDR_QUERY by PA)."""

from __future__ import annotations

from bisect import bisect_right, insort

from .region import Region


class PhysicalMap:
    """All pieces of all live regions by start address.

    Two live regions share memory only when the same huge pages were exported
    twice by EXPORT_PID; their pieces then have equal bounds, and the region
    created last answers first (6.8).
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: dict[int, list[tuple[int, int, Region]]] = {}

    def add(self, region: Region) -> None:
        for offset, pa, length in region.physical(0, region.size):
            pieces = self._pieces.get(pa)
            if pieces is None:
                insort(self._starts, pa)
                pieces = self._pieces[pa] = []
            pieces.append((length, offset, region))

    def remove(self, region: Region) -> None:
        for _, pa, _ in region.physical(0, region.size):
            pieces = [piece for piece in self._pieces[pa] if piece[2] is not region]
            if pieces:
                self._pieces[pa] = pieces
            else:
                del self._pieces[pa]
                del self._starts[bisect_right(self._starts, pa) - 1]

    def find(self, pa: int) -> tuple[Region, int] | None:
        """The newest live region at `pa` and the offset in it."""
        index = bisect_right(self._starts, pa)
        if not index:
            return None
        start = self._starts[index - 1]
        for length, offset, region in reversed(self._pieces[start]):
            if pa < start + length and not region.destroying:
                return region, offset + pa - start
        return None
