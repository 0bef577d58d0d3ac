# SPDX-License-Identifier: Apache-2.0
"""Physical addresses of export memory (driver specification 7, 22.3 rule 5)."""

from __future__ import annotations

from ..topology import HostSpec
from .ids import LowestFree


class Dram:
    """The segments (memseg bytes each) of every node's memory.

    Discontiguous on purpose: neighbours in a region are never neighbours in memory while every second
    slot is still free, so that a program that assumes contiguity fails here and not at a customer's.
    """

    def __init__(self, spec: HostSpec, memseg: int) -> None:
        self.memseg = memseg
        self._scatter = spec.discontiguous
        self._base: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._free: dict[int, LowestFree] = {}
        self._used: dict[int, int] = {}
        for node, (base, end) in spec.memory_ranges().items():
            start = -(-base // memseg) * memseg
            self._base[node] = start
            self._slots[node] = max(0, (end - start) // memseg)
            self._free[node] = LowestFree(0, self._slots[node] - 1)
            self._used[node] = 0

    def available(self, node: int) -> int:
        """Free segments of `node`."""
        return self._slots[node] - self._used[node]

    def take(self, node: int, count: int) -> list[tuple[int, int]]:
        """`count` segments as (pa, length); the caller has checked `available`: ValueError, and nothing taken, otherwise."""
        if count > self.available(node):
            raise ValueError(f"{count} segments of node {node}, which has {self.available(node)}")
        free = self._free[node]
        numbers = [number for number in (free.take() for _ in range(count)) if number is not None]
        self._used[node] += count
        return [(self._base[node] + self._slot(node, number) * self.memseg, self.memseg) for number in numbers]

    def give(self, node: int, segments: list[tuple[int, int]]) -> None:
        """Back to the kernel."""
        for pa, _ in segments:
            self._free[node].give(self._number(node, (pa - self._base[node]) // self.memseg))
        self._used[node] -= len(segments)

    def _slot(self, node: int, number: int) -> int:
        if not self._scatter:
            return number
        half = (self._slots[node] + 1) // 2
        return 2 * number if number < half else 2 * (number - half) + 1

    def _number(self, node: int, slot: int) -> int:
        if not self._scatter:
            return slot
        half = (self._slots[node] + 1) // 2
        return slot // 2 if slot % 2 == 0 else half + slot // 2
