# SPDX-License-Identifier: Apache-2.0
"""Lowest free number first: mem_ids and token ids (driver specification 7)."""

from __future__ import annotations

import heapq


class LowestFree:
    """Hands out the lowest free number of `first..last`; freed numbers are reused at once."""

    def __init__(self, first: int, last: int) -> None:
        self._next = first
        self._last = last
        self._freed: list[int] = []

    def take(self) -> int | None:
        """The lowest free number, or None when there is none."""
        if self._freed:
            return heapq.heappop(self._freed)
        if self._next > self._last:
            return None
        self._next += 1
        return self._next - 1

    def give(self, number: int) -> None:
        """Make a taken number free again."""
        heapq.heappush(self._freed, number)
