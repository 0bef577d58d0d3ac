# SPDX-License-Identifier: Apache-2.0
"""A set of integers kept as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class IntervalSet:
    """Disjoint, non-touching ranges [start, end) in order."""

    __slots__ = ("_borders",)

    def __init__(self) -> None:
        self._borders: list[int] = []

    def __contains__(self, value: int) -> bool:
        return bisect_right(self._borders, value) % 2 == 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._borders[::2], self._borders[1::2], strict=True)

    def add(self, start: int, end: int) -> None:
        """All of [start, end) is in the set from now on."""
        low, high = bisect_left(self._borders, start), bisect_right(self._borders, end)
        self._borders[low:high] = [start] * (low % 2 == 0) + [end] * (high % 2 == 0)

    def discard(self, start: int, end: int) -> None:
        """None of [start, end) is in the set from now on."""
        low, high = bisect_left(self._borders, start), bisect_right(self._borders, end)
        self._borders[low:high] = [start] * (low % 2) + [end] * (high % 2)

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are in the set."""
        return [(max(low, start), min(high, end)) for low, high in self if low < end and start < high]

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are not."""
        holes = []
        for low, high in self.within(start, end):
            if start < low:
                holes.append((start, low))
            start = high
        if start < end:
            holes.append((start, end))
        return holes
