# SPDX-License-Identifier: Apache-2.0
"""Lowest free number first: mem_ids and token ids (driver specification 7)."""

from __future__ import annotations

import heapq


class LowestFree:
    """Hands out the lowest free number of `first..last`; freed numbers are reused at once."""

    __slots__ = ("_freed", "_next", "last")

    def __init__(self, first: int, last: int) -> None:
        self.last = last
        self._next = first
        self._freed: list[int] = []

    def take(self, first: int = 0, last: int | None = None) -> int | None:
        """The lowest free number within the given narrower limits, or None when there is none."""
        last = self.last if last is None else min(last, self.last)
        while self._next < first and self._next <= self.last:
            heapq.heappush(self._freed, self._next)
            self._next += 1
        if self._freed and self._freed[0] < first:
            number = min((n for n in self._freed if n >= first), default=self._next)
        else:
            number = self._freed[0] if self._freed else self._next
        if number > last:
            return None
        if number == self._next:
            self._next += 1
        elif number == self._freed[0]:
            heapq.heappop(self._freed)
        else:
            self._freed.remove(number)
            heapq.heapify(self._freed)
        return number

    def give(self, number: int) -> None:
        """Make a taken number free again."""
        heapq.heappush(self._freed, number)
