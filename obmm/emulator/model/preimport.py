# SPDX-License-Identifier: Apache-2.0
"""Preimports: ranges hot-plugged in advance, isolated, from which imports release blocks."""

from __future__ import annotations

from ..topology import MEMORY_BLOCK


class Preimport:
    """A declared range. Made known before it is hot-plugged: `creating` until that has succeeded."""

    __slots__ = ("_used", "base_dist", "creating", "dcna", "deid", "end", "node", "scna", "seid", "start", "users")

    def __init__(self, start: int, length: int, scna: int, dcna: int, seid: bytes, deid: bytes, base_dist: int) -> None:
        self.start = start
        self.end = start + length
        self.scna = scna
        self.dcna = dcna
        self.seid = seid
        self.deid = deid
        self.base_dist = base_dist
        self.node = -1
        self.creating = True
        self.users = 0
        self._used = 0

    def blocks_in_use(self, start: int, length: int) -> bool:
        """Whether an import holds any memory block that [start, start + length) touches (rule I21)."""
        return bool(self._used & self._mask(start, length))

    def hold(self, start: int, length: int) -> None:
        """An import takes the blocks it touches."""
        self._used |= self._mask(start, length)
        self.users += 1

    def release(self, start: int, length: int) -> None:
        """An import gives its blocks back."""
        self._used &= ~self._mask(start, length)
        self.users -= 1

    def _mask(self, start: int, length: int) -> int:
        first = (start - self.start) // MEMORY_BLOCK
        last = -(-(start + length - self.start) // MEMORY_BLOCK)
        return (1 << last) - (1 << first)
