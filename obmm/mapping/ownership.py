# SPDX-License-Identifier: Apache-2.0
"""Access rights of a mapping, range by range (driver specification 9.7 and 16)."""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterator

from obmm.driver.abi import MemAccess


class Right(enum.IntEnum):
    """What this process may do with a page: nothing, load, or load and store.  Ordered: a right includes the lower ones.

    >>> obmm.Right.READ < obmm.Right.WRITE, obmm.Right.WRITE.letter, obmm.Right.WRITE.access.name
    (True, 'W', 'READWRITE')
    """

    NONE = 0
    READ = 1
    WRITE = 2

    @property
    def access(self) -> MemAccess:
        """The driver's word for it in UPDATE_RANGE."""
        return _ACCESS[self]

    @property
    def letter(self) -> str:
        """N, R or W, as the driver specification writes it."""
        return "NRW"[self]


_ACCESS = {Right.NONE: MemAccess.NO_ACCESS, Right.READ: MemAccess.READONLY, Right.WRITE: MemAccess.READWRITE}


class RightsMap:
    """The right of every byte in [start, stop), as runs.  Not thread-safe: its mapping locks."""

    __slots__ = ("_runs", "_stop")

    def __init__(self, start: int, stop: int, right: Right) -> None:
        self._runs = ([start], [right])  # first byte of each run, its right; replaced as one, never changed
        self._stop = stop

    def set(self, start: int, stop: int, right: Right) -> None:
        """Give [start, stop) the right `right`."""
        runs = [(s, r) for s, _, r in self.runs(self._runs[0][0], start)]
        runs.append((start, right))
        runs += [(s, r) for s, _, r in self.runs(stop, self._stop)]
        merged = [run for i, run in enumerate(runs) if i == 0 or runs[i - 1][1] != run[1]]
        self._runs = ([s for s, _ in merged], [r for _, r in merged])

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, Right]]:
        """(start, stop, right) of each run inside [start, stop), in order."""
        bounds, rights = self._runs
        index = max(bisect_right(bounds, start) - 1, 0)
        while start < stop:
            end = min(bounds[index + 1] if index + 1 < len(bounds) else self._stop, stop)
            yield start, end, rights[index]
            start, index = end, index + 1

    def weakest(self, start: int, stop: int) -> Right:
        """The least right in [start, stop)."""
        rights = self._runs[1]
        if len(rights) == 1:
            return rights[0]
        return min((right for _, _, right in self.runs(start, stop)), default=Right.NONE)

    def strongest(self, start: int, stop: int) -> Right:
        """The greatest right in [start, stop)."""
        rights = self._runs[1]
        if len(rights) == 1:
            return rights[0]
        return max((right for _, _, right in self.runs(start, stop)), default=Right.NONE)

    def __repr__(self) -> str:
        pieces = ", ".join(
            f"{start:#x}-{stop:#x} {right.letter}" for start, stop, right in self.runs(self._runs[0][0], self._stop)
        )
        return f"<{pieces}>"
