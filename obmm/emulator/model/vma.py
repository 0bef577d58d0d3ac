# SPDX-License-Identifier: Apache-2.0
"""One process's mappings of regions, in address order (driver specification 9.4, 9.5)."""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .files import OpenFile
    from .region import Region

READ, WRITE, EXEC = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC


class Vma:
    """A piece of a mapping. Pieces split and never merge.

    `prot` are the VMA's flags, what the maps file shows; `rights` what its page tables give: they differ
    for executable mappings only (9.3, Q14). `may` are the rights that mprotect could ask for.
    """

    __slots__ = ("cacheable", "end", "file", "may", "offset", "prot", "region", "rights", "start")

    def __init__(
        self,
        start: int,
        end: int,
        offset: int,
        region: Region,
        file: OpenFile,
        prot: int,
        rights: int,
        cacheable: bool,
    ) -> None:
        self.start = start
        self.end = end
        self.offset = offset
        self.region = region
        self.file = file
        self.prot = prot
        self.rights = rights
        self.may = READ | WRITE | EXEC
        self.cacheable = cacheable

    @property
    def mode(self) -> Literal["CC", "NC"]:
        """The mapping mode that this piece stands for."""
        return "CC" if self.cacheable else "NC"

    def split(self, address: int) -> Vma:
        """Cut at `address`: this piece keeps the lower part, the new one is returned."""
        upper = Vma(
            address,
            self.end,
            self.offset + address - self.start,
            self.region,
            self.file,
            self.prot,
            self.rights,
            self.cacheable,
        )
        upper.may = self.may
        self.end = address
        self.file.get()
        return upper


class VmaList:
    """Pieces ordered by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[Vma] = []

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[Vma]:
        return iter(self._pieces)

    def add(self, vma: Vma) -> None:
        index = bisect_left(self._starts, vma.start)
        self._starts.insert(index, vma.start)
        self._pieces.insert(index, vma)

    def remove(self, vma: Vma) -> None:
        index = bisect_left(self._starts, vma.start)
        del self._starts[index]
        del self._pieces[index]

    def overlapping(self, start: int, end: int) -> list[Vma]:
        """Pieces that touch [start, end), in order."""
        first = bisect_right(self._starts, start)
        if first and self._pieces[first - 1].end > start:
            first -= 1
        last = bisect_left(self._starts, end, first)
        return self._pieces[first:last]
