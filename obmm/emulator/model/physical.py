# SPDX-License-Identifier: Apache-2.0
"""From a physical address to the live region that holds it (ADDR_QUERY by PA)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from .region import ExportRegion, Region


class PhysicalMap:
    """All pieces of all live regions by start address.

    Pool segments and window ranges belong to one region at a time. Pages of a process can be exported
    several times by EXPORT_PID; the region created last answers first (6.8).
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: dict[int, tuple[int, int, Region]] = {}
        self._pinned: list[Region] = []

    def add(self, region: Region) -> None:
        if isinstance(region, ExportRegion) and region.from_user:
            self._pinned.append(region)
            return
        for offset, pa, length in region.physical(0, region.size):
            insort(self._starts, pa)
            self._pieces[pa] = length, offset, region

    def remove(self, region: Region) -> None:
        if isinstance(region, ExportRegion) and region.from_user:
            self._pinned.remove(region)
            return
        for _, pa, _ in region.physical(0, region.size):
            del self._pieces[pa]
            del self._starts[bisect_left(self._starts, pa)]

    def find(self, pa: int) -> tuple[Region, int] | None:
        """The newest live region at `pa` and the offset in it."""
        index = bisect_right(self._starts, pa)
        if index:
            start = self._starts[index - 1]
            length, offset, region = self._pieces[start]
            if pa < start + length and not region.destroying:
                return region, offset + pa - start
        for region in reversed(self._pinned):
            for offset, start, length in region.physical(0, region.size):
                if start <= pa < start + length and not region.destroying:
                    return region, offset + pa - start
        return None
