# SPDX-License-Identifier: Apache-2.0
"""Deadlines for thousands of things, one heap, no threads."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """One deadline per key, on the monotonic clock.

    Moving a deadline back costs nothing: the old heap entry is looked at when it comes up, and put back.
    """

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()

    def set(self, key: K, when: float) -> None:
        self._due[key] = when
        if key not in self._queued or when < self._queued[key]:
            self._push(key, when)

    def cancel(self, key: K) -> None:
        self._due.pop(key, None)

    def timeout(self, now: float, longest: float) -> float:
        """Seconds until something may be due, at most ``longest``."""
        return max(0.0, min(longest, self._heap[0][0] - now)) if self._heap else longest

    def pop_due(self, now: float) -> Iterator[K]:
        """Yield and forget the keys whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now:
            queued, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued:
                continue  # a newer entry of this key stands elsewhere in the heap
            del self._queued[key]
            when = self._due.get(key)
            if when is None:
                continue
            if when > now:
                self._push(key, when)
                continue
            del self._due[key]
            yield key

    def _push(self, key: K, when: float) -> None:
        self._queued[key] = when
        heapq.heappush(self._heap, (when, next(self._order), key))
