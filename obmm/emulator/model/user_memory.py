# SPDX-License-Identifier: Apache-2.0
"""A client's own memory as EXPORT_PID sees it: what is mapped, writable, hugetlb, and on which node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..topology import PAGE, PMD

_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ([a-z-]{4}) ", re.MULTILINE)
"""First line of a mapping: start, end, permissions."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Equal pages [start, end)."""

    start: int
    end: int
    hugetlb: bool
    writable: bool = True
    node: int = 0


class UserPages:
    """The account of one process: what was declared, else what the kernel tells about the real process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._declared: list[Extent] = []

    def declare(self, extent: Extent) -> None:
        """From now on the model knows these pages; what it knew there is forgotten.

        For callers whose machine has no huge pages, and for tests.
        """
        self.forget(extent.start, extent.end)
        self._declared.append(extent)
        self._declared.sort(key=lambda e: e.start)

    def forget(self, start: int, end: int) -> None:
        """These addresses were unmapped or mapped anew."""
        kept: list[Extent] = []
        for one in self._declared:
            if one.end <= start or end <= one.start:
                kept.append(one)
                continue
            if one.start < start:
                kept.append(Extent(one.start, start, one.hugetlb, one.writable, one.node))
            if end < one.end:
                kept.append(Extent(end, one.end, one.hugetlb, one.writable, one.node))
        self._declared = kept

    def extents(self, start: int, end: int) -> list[Extent]:
        """Mapped pages from `start` on, without a hole, as far as `end`."""
        found: list[Extent] = []
        kernel: list[Extent] | None = None
        while start < end:
            one = _covering(self._declared, start)
            stop = one.end if one else min((e.start for e in self._declared if e.start > start), default=end)
            if one is None:
                kernel = list(kernel_extents(self._pid)) if kernel is None else kernel
                one = _covering(kernel, start)
                if one is None:
                    break
                stop = min(stop, one.end)
            stop = min(stop, end)
            found.append(Extent(start, stop, one.hugetlb, one.writable, one.node))
            start = stop
        return found


def _covering(extents: list[Extent], address: int) -> Extent | None:
    return next((one for one in extents if one.start <= address < one.end), None)


def kernel_extents(pid: int) -> Iterator[Extent]:
    """The mappings of the real process `pid`, in address order.

    None when it cannot be looked at, and none of a kernel thread or a zombie: their text is empty.
    """
    try:
        text = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    heads = list(_HEAD.finditer(text))
    for index, head in enumerate(heads):
        after = heads[index + 1].start() if index + 1 < len(heads) else len(text)
        flags = re.search(r"^VmFlags:(.*)$", text[head.end() : after], re.MULTILINE)
        hugetlb = flags is not None and "ht" in flags[1].split()
        yield Extent(int(head[1], 16), int(head[2], 16), hugetlb, "w" in head[3])


def page_floor(address: int) -> int:
    """The page that contains `address`."""
    return address // PAGE * PAGE


class UserPins:
    """Physical addresses of pinned pages. The same pages pinned twice have the same addresses."""

    BASE = 1 << 51

    def __init__(self) -> None:
        self._next = self.BASE
        self._pages: dict[tuple[int, int], int] = {}
        self._owners: dict[int, tuple[int, int]] = {}
        self._uses: dict[int, int] = {}

    def take(self, pid: int, extents: list[Extent]) -> list[tuple[int, int]]:
        """Pin `extents` of process `pid`: physical pieces (pa, length), cut at the huge pages."""
        pieces: list[tuple[int, int]] = []
        for extent in extents:
            start = extent.start
            while start < extent.end:
                page = start // PMD
                end = min(extent.end, (page + 1) * PMD)
                key = pid, page
                base = self._pages.get(key)
                if base is None:
                    base = self._pages[key] = self._next
                    self._owners[base] = key
                    self._uses[base] = 0
                    self._next += PMD
                self._uses[base] += 1
                pieces.append((base + start % PMD, end - start))
                start = end
        return pieces

    def give(self, pieces: list[tuple[int, int]]) -> None:
        """Unpin what `take` returned."""
        for pa, _ in pieces:
            base = pa // PMD * PMD
            self._uses[base] -= 1
            if not self._uses[base]:
                del self._pages[self._owners.pop(base)], self._uses[base]
