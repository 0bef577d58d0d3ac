# SPDX-License-Identifier: Apache-2.0
"""Incoherent caches: every host has private copies of what it maps cacheable (22.3 rule 1).

A cacheable mapping maps the host's copy. Lines travel between copy and memory only by the operations of
driver specification 9.8, when a right is acquired on a page that is not cached, and by early eviction at
random. A program that forgets to release ownership reads stale data here as on the hardware.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..topology import PAGE
from .calls import Action, Backing
from .intervals import IntervalSet
from .mapping import map_pieces, memory_pieces
from .memory import Memory
from .ownership import INVAL, WB_ONLY, weight
from .vma import READ, WRITE, Vma

if TYPE_CHECKING:
    from .host import Host
    from .region import Region

LINE = 64
CHUNK = 1 << 20
EVICTION_RATE = 0.25
"""Chance that one driver call of the host is accompanied by the eviction of a page."""


class StrictCaches:
    """The caches of one host."""

    def __init__(self, host: Host, seed: int) -> None:
        self._host = host
        self._random = random.Random(f"{seed} {host.name}")
        self._copies: dict[Region, _Copy] = {}
        self.rate = EVICTION_RATE

    def map_actions(self, vma: Vma, start: int, end: int) -> list[Action]:
        """The client's mmap calls that make [start, end) of `vma` real."""
        offset = vma.offset + start - vma.start
        pieces = memory_pieces(self._host, vma.region, offset, end - start)
        if vma.cacheable:
            self.acquire(vma)
            pieces = self._copied(self._copy(vma.region), offset, pieces)
        return map_pieces(start, vma.rights, pieces)

    def acquire(self, vma: Vma) -> None:
        """Rights appear on a piece: pages that are not cached are read from memory."""
        if vma.cacheable and weight(vma.rights)[0]:
            self._fill(vma.region, vma.offset, vma.offset + vma.end - vma.start)

    def flush(self, region: Region, offset: int, length: int, operation: int) -> None:
        """Write back dirty lines, drop lines, or both; what somebody may still read is read again."""
        copy = self._copies.get(region)
        if copy is None:
            return
        end = offset + length
        if operation & WB_ONLY:
            self._write_back(copy, region, offset, end)
        if operation & INVAL:
            copy.cached.discard(offset, end)
            for low, high in self._readable(region, offset, end):
                self._fill(region, low, high)

    def drop(self, region: Region, offset: int, length: int) -> None:
        """What is behind a part of `region` has changed: no line of it is worth keeping."""
        copy = self._copies.get(region)
        if copy is not None:
            copy.cached.discard(offset, offset + length)

    def evict(self, pages: int = 1) -> None:
        """`pages` random cached pages lose their lines early, dirty ones by write-back."""
        for _ in range(pages):
            known = [(region, copy, part) for region, copy in self._copies.items() for part in copy.cached]
            if not known:
                return
            region, copy, (low, high) = self._random.choice(known)
            page = self._random.randrange(low // PAGE, high // PAGE) * PAGE
            self._write_back(copy, region, page, page + PAGE, self._random)
            if not self._written(region, page):
                copy.cached.discard(page, page + PAGE)
                if self._readable(region, page, page + PAGE):
                    self._fill(region, page, page + PAGE)

    def tick(self) -> None:
        """A driver call on this host: time for an eviction now and then."""
        if self._random.random() < self.rate:
            self.evict()

    def forget(self, region: Region) -> None:
        """The region is gone, or what is behind it: its copies are unreachable."""
        copy = self._copies.pop(region, None)
        if copy is not None:
            copy.lines.destroy()
            copy.clean.destroy()

    def close(self) -> None:
        """Destroy all copies."""
        for region in list(self._copies):
            self.forget(region)

    def _copy(self, region: Region) -> _Copy:
        copy = self._copies.get(region)
        if copy is None:
            copy = self._copies[region] = _Copy(f"obmm-{self._host.name}-{region.mem_id}", region.size)
        return copy

    def _copied(self, copy: _Copy, offset: int, pieces: Iterator[tuple[Backing, int]]) -> Iterator[tuple[Backing, int]]:
        """The copy in place of memory; where no memory answers there is nothing to copy."""
        for backing, length in pieces:
            yield (backing if backing.fd == self._host.fabric.hole.fd else copy.lines.backing(offset)), length
            offset += length

    def _fill(self, region: Region, offset: int, end: int) -> None:
        copy = self._copy(region)
        for low, high in copy.cached.missing(offset, end):
            for backing, at, length in self._memory(region, low, high):
                for start in range(0, length, CHUNK):
                    size = min(CHUNK, length - start)
                    data = os.pread(backing.fd, size, backing.offset + start)
                    if copy.used or data.count(0) != len(data):
                        os.pwrite(copy.lines.fd, data, at + start)
                        os.pwrite(copy.clean.fd, data, at + start)
                        copy.used = True
            copy.cached.add(low, high)

    def _write_back(
        self, copy: _Copy, region: Region, offset: int, end: int, some: random.Random | None = None
    ) -> None:
        """Lines that differ from what was read go to memory; with `some`, each only perhaps."""
        for low, high in copy.cached.within(offset, end):
            for backing, at, length in self._memory(region, low, high):
                for start in range(0, length, PAGE):
                    now = os.pread(copy.lines.fd, PAGE, at + start)
                    then = os.pread(copy.clean.fd, PAGE, at + start)
                    if now == then:
                        continue
                    for line in range(0, PAGE, LINE):
                        dirty = now[line : line + LINE]
                        if dirty != then[line : line + LINE] and (some is None or some.random() < 0.5):
                            os.pwrite(backing.fd, dirty, backing.offset + start + line)
                            os.pwrite(copy.clean.fd, dirty, at + start + line)

    def _memory(self, region: Region, offset: int, end: int) -> Iterator[tuple[Backing, int, int]]:
        """(backing, offset in the region, length) of what answers; holes are left out."""
        for backing, length in memory_pieces(self._host, region, offset, end - offset):
            if backing.fd != self._host.fabric.hole.fd:
                yield backing, offset, length
            offset += length

    def _readable(self, region: Region, offset: int, end: int) -> list[tuple[int, int]]:
        """Parts of [offset, end) on which some cacheable mapping of this host has a right."""
        return self._with_right(region, offset, end, READ)

    def _written(self, region: Region, offset: int) -> bool:
        return bool(self._with_right(region, offset, offset + PAGE, WRITE))

    def _with_right(self, region: Region, offset: int, end: int, right: int) -> list[tuple[int, int]]:
        if region.ownership is None:
            return []
        parts = []
        for first, last, readers, writers in region.ownership.runs():
            low, high = max(first * region.unit, offset), min(last * region.unit, end)
            if low < high and (writers if right == WRITE else readers):
                parts.append((low, high))
        return parts


class _Copy:
    """One region in one host's caches: the lines as programs see them, and as they were read."""

    __slots__ = ("cached", "clean", "lines", "used")

    def __init__(self, name: str, size: int) -> None:
        self.lines = Memory(f"{name}-lines", size)
        self.clean = Memory(f"{name}-clean", size)
        self.cached = IntervalSet()
        self.used = False
        """Anything but zero was ever written to it."""
