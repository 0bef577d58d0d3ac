# SPDX-License-Identifier: Apache-2.0
"""Ranges of the local windows that imports and preimports occupy (rule I13, R10)."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(order=True, slots=True)
class Range:
    """[start, end), held by `owner`."""

    start: int
    end: int
    owner: object = field(compare=False)


class RangeList:
    """Disjoint ranges in address order."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def add(self, start: int, end: int, owner: object) -> None:
        insort(self._ranges, Range(start, end, owner))

    def remove(self, start: int) -> None:
        del self._ranges[bisect_right(self._ranges, start, key=lambda r: r.start) - 1]

    def at(self, address: int) -> Range | None:
        """The range that contains `address`."""
        index = bisect_right(self._ranges, address, key=lambda r: r.start)
        if index and self._ranges[index - 1].end > address:
            return self._ranges[index - 1]
        return None

    def overlaps(self, start: int, end: int) -> bool:
        """Whether [start, end) touches any range."""
        index = bisect_right(self._ranges, start, key=lambda r: r.start)
        if index and self._ranges[index - 1].end > start:
            return True
        return index < len(self._ranges) and self._ranges[index].start < end
