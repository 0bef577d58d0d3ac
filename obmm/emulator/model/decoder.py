# SPDX-License-Identifier: Apache-2.0
"""The decoder: which piece of a local window means which remote memory.

On hardware a management plane programs it (driver specification 14); IMPORT
never looks at it, only an access does (22.3 rule 2).
"""

from __future__ import annotations

import errno
from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

from ..topology import Window
from .calls import KernelError

GRANULE = 2 << 20


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """`length` bytes of the local window at `pa` mean (`dcna`, `tokenid`, `uba`)."""

    pa: int
    length: int
    dcna: int
    tokenid: int
    uba: int

    @property
    def end(self) -> int:
        return self.pa + self.length


class Decoder:
    """The table of one host, ordered by local address."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._last: dict[Window, int] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """Program one entry; ranges must not overlap."""
        if entry.length <= 0 or entry.length % GRANULE or entry.pa % GRANULE:
            raise KernelError(errno.EINVAL, "22.3", "decoder entries are multiples of 2 MiB")
        for _ in self.overlapping(entry.pa, entry.end):
            raise KernelError(errno.EEXIST, "22.3", f"the decoder already has an entry at {entry.pa:#x}")
        insort(self._entries, entry)

    def remove(self, pa: int) -> Entry:
        """Forget the entry that starts at `pa`."""
        for entry in self.overlapping(pa, pa + 1):
            if entry.pa == pa:
                self._entries.remove(entry)
                return entry
        raise KernelError(errno.ENOENT, "22.3", f"no decoder entry starts at {pa:#x}")

    def overlapping(self, start: int, end: int) -> Iterator[Entry]:
        """Entries that touch [start, end), in order."""
        index = bisect_right(self._entries, start, key=lambda entry: entry.pa)
        if index and self._entries[index - 1].end > start:
            index -= 1
        while index < len(self._entries) and self._entries[index].pa < end:
            yield self._entries[index]
            index += 1

    def free_range(self, window: Window, length: int, alignment: int = GRANULE) -> int | None:
        """An aligned address in `window` with `length` unprogrammed bytes, or None when there is none.

        Goes on behind the last one given out, so that an address is not used again at once.
        """
        last = self._last.get(window, window.base)
        for start, end in ((last, window.end), (window.base, window.end)):
            address = self._first_fit(start, end, length, alignment)
            if address is not None:
                self._last[window] = address + length
                return address
        return None

    def _first_fit(self, start: int, end: int, length: int, alignment: int) -> int | None:
        address = -(-start // alignment) * alignment
        for entry in self.overlapping(address, end):
            if entry.pa - address >= length:
                break
            address = max(address, -(-entry.end // alignment) * alignment)
        return address if address + length <= end else None
