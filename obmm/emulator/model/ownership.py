# SPDX-License-Identifier: Apache-2.0
"""Counters per page and the cache operation they imply (driver specification 9.7, 9.8)."""

from __future__ import annotations

from bisect import bisect_left

from .vma import READ, WRITE

NONE, WB_ONLY, INVAL, WB_INVAL = 0, 1, 2, 3
"""Cache operations as bits: merging two is `|` (WB_ONLY + INVAL = WB_INVAL)."""


def weight(rights: int) -> tuple[int, int]:
    """(readers, writers) that a mapping with `rights` adds to each of its pages: a writer also reads;
    an execute-only mapping counts as none (9.3)."""
    if rights & WRITE:
        return 1, 1
    return (1, 0) if rights & READ else (0, 0)


class OwnershipTable:
    """Readers and writers of each unit (PAGE or PMD) of one region on this host.

    Kept as runs of equal counters: ranges change together, so a region of any size costs as much as it
    has boundaries. The counters have no upper limit (Q5).
    """

    __slots__ = ("_counts", "_starts", "units")

    def __init__(self, units: int) -> None:
        self.units = units
        self._starts = [0]
        self._counts = [(0, 0)]

    def change(self, first: int, last: int, before: int, after: int) -> int:
        """A mapping of units [first, last) goes from rights `before` to `after`.

        Returns the merged operation of all its units:

        * the last writer leaves, readers remain: WB_ONLY
        * the last writer leaves, no reader remains: WB_INVAL
        * the last reader leaves, no writers before or after: INVAL
        * anything else: none
        """
        old_readers, old_writers = weight(before)
        new_readers, new_writers = weight(after)
        readers, writers = new_readers - old_readers, new_writers - old_writers
        if not readers and not writers:
            return NONE
        low, high = self._cut(first), self._cut(last)
        counts = self._counts
        operation = NONE
        for index in range(low, high):
            had_readers, had_writers = counts[index]
            now_readers, now_writers = had_readers + readers, had_writers + writers
            counts[index] = now_readers, now_writers
            if had_writers and not now_writers:
                operation |= WB_ONLY if now_readers else WB_INVAL
            elif had_readers and not now_readers and not had_writers:
                operation |= INVAL
        self._join(high)
        self._join(low)
        return operation

    def runs(self) -> list[tuple[int, int, int, int]]:
        """(first, last, readers, writers) of each run, for checks and reports."""
        ends = [*self._starts[1:], self.units]
        return [(s, e, r, w) for s, e, (r, w) in zip(self._starts, ends, self._counts, strict=True)]

    def _cut(self, unit: int) -> int:
        """Index of the run that starts at `unit`, splitting one if needed."""
        index = bisect_left(self._starts, unit)
        if unit < self.units and (index == len(self._starts) or self._starts[index] != unit):
            self._starts.insert(index, unit)
            self._counts.insert(index, self._counts[index - 1])
        return index

    def _join(self, index: int) -> None:
        """Merge the run at `index` with the one before it when they are equal."""
        if 0 < index < len(self._starts) and self._counts[index] == self._counts[index - 1]:
            del self._starts[index]
            del self._counts[index]
