# SPDX-License-Identifier: Apache-2.0
"""Rights over mapped memory, and the phases in which it is written and read (driver specification 9.6 to 9.8, 16)."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self

from obmm._native import lib
from obmm.arguments import whole
from obmm.closing import ending
from obmm.errors import ObmmArgumentError, OwnershipError
from obmm.mapping.header import MappedHeader
from obmm.mapping.ownership import Right
from obmm.mapping.piece import RIGHTS
from obmm.mapping.pieces import Part, Pieces

_ACQUIRED: Final = {"r": Right.READ, "w": Right.WRITE}
_READ, _WRITE = Right.READ, Right.WRITE


class Shared(Pieces):
    """Pieces that this process shares with other nodes: only the application can keep two from writing at once.

    >>> with a.export_region("4MiB") as region, region.map("none") as memory:
    ...     memory.acquire("w")                     # all of it
    ...     memory.right.letter
    ...     memory.write(0, b"first")
    ...     memory.release(keep="r")                # written back, still readable
    ...     memory.read(0, 5)
    ...     memory.release()
    ...     with memory.reading(), memory.reading():
    ...         memory.read(0, 1)
    ...     with memory.writing():
    ...         memory.write(0, b"second")
    ...     memory.publish()                        # tell readers afterwards
    ...     memory.refresh()
    ...     memory.round_out(5000, 9000)
    'W'
    5
    b'first'
    b'f'
    6
    (4096, 12288)
    """

    def acquire(self, right: str, start: int | None = None, stop: int | None = None) -> None:
        """Take the right "r" or "w" over payload bytes [start, stop) (default: everything mapped).

        Never invalidates: what makes old cache lines go away is the release that came before (rule 9.8).  The range must
        lie on borders of the granularity; `round_out` gives one that does.

        `right`: "r" or "w".  ObmmArgumentError for borders that are none.
        """
        wanted = _ACQUIRED.get(right) if isinstance(right, str) else None
        if wanted is None:
            raise ObmmArgumentError.because("UPDATE_RANGE", errno.EINVAL, f"right={right!r}", "'r' or 'w'", "O7")
        self._change(start, stop, wanted)

    def release(self, start: int | None = None, stop: int | None = None, *, keep: str = "none") -> None:
        """Give rights up: to "none", or to "r" with ``keep="r"``.  Writes back and invalidates as rule 9.8 infers.

        `start` and `stop` in bytes as for `acquire`, with the same errors.
        """
        if not isinstance(keep, str) or keep not in ("none", "r"):
            raise ObmmArgumentError.because("UPDATE_RANGE", errno.EINVAL, f"keep={keep!r}", "'none' or 'r'", "O7")
        self._change(start, stop, RIGHTS[keep])

    def round_out(self, start: int, stop: int) -> tuple[int, int]:
        """The smallest payload range on borders of the granularity that contains [start, stop).

        Its start can be negative: the header shares the first granule.
        """
        start, stop = whole("UPDATE_RANGE", "start", start), whole("UPDATE_RANGE", "stop", stop)
        lowest, highest = self._mapped
        low = (start - lowest) // self.granularity * self.granularity + lowest
        high = -(-(stop - lowest) // self.granularity) * self.granularity + lowest
        return max(low, lowest), min(high, highest)

    @contextmanager
    def reading(self, start: int | None = None, stop: int | None = None) -> Iterator[Self]:
        """A phase in which [start, stop) may be loaded: N -> R, and back to what it was.

        ObmmArgumentError as for `acquire`.
        """
        with self._phase(_READ, start, stop):
            yield self

    @contextmanager
    def writing(self, start: int | None = None, stop: int | None = None) -> Iterator[Self]:
        """A phase in which [start, stop) may be stored to: -> W, and back to what it was, written back.

        Readers elsewhere must hold nothing; `publish` tells them that the content is complete.

        ObmmArgumentError as for `acquire`.
        """
        with self._phase(_WRITE, start, stop):
            yield self

    def publish(self) -> None:
        """Make what was written ready for readers: header version odd, data written back, version even and state ready,
        and the right falls from W to R (Engram specification 5.3).  Call it before you tell a reader.

        MappingBusyError while writable views live.  On a raw region only the data is written back; on NC all of it is
        barriers.
        """
        with self._locked():
            self._check_open()
            for piece in self._pieces:
                piece.refuse_views("publish", piece.low, piece.high, writable_only=True)
            first = self._pieces[0]
            if self.region.generation is None:
                self._write_back(first.low)
            elif first.low == 0:
                with MappedHeader(first).being_published():
                    self._write_back(first.header_end)
            else:
                with (
                    self.region.map_bytes("rw", 0, self.granularity, self.cache) as head,
                    MappedHeader(head._pieces[0]).being_published(),
                ):
                    self._write_back(first.low)

    def refresh(self) -> None:
        """Drop what is cached and read anew: R -> N -> R.  MappingBusyError while views live.

        OwnershipError unless the right is R.
        """
        with self._locked():
            self._check_open()
            if self._nc:
                lib.obmm_fence_full()
                return
            for piece in self._pieces:
                piece.refuse_views("refresh", piece.low, piece.high)
                if piece.floor is _WRITE:
                    raise OwnershipError(errno.EPERM, f"{self} has unpublished writes: publish or release them first")
            for piece in self._pieces:
                piece.drop_cached()

    # --- inside: rights ----------------------------------------------------------------------------------------------

    def _granules(self, start: int | None, stop: int | None) -> list[Part]:
        """Parts of a payload range that ownership can change: mapped, and on borders of the granularity."""
        lowest, highest = self._mapped
        low = lowest if start is None else whole("UPDATE_RANGE", "start", start)
        high = highest if stop is None else whole("UPDATE_RANGE", "stop", stop)
        if low >= high or low < lowest or high > highest:
            raise ObmmArgumentError.because(
                "UPDATE_RANGE",
                errno.EFAULT,
                f"[{start}, {stop}) is empty or not inside the mapping [{lowest}, {highest})",
                "a range inside this mapping",
                "O4/O9",
            )
        if (low - lowest) % self.granularity or ((high - lowest) % self.granularity and high != highest):
            raise ObmmArgumentError.because(
                "UPDATE_RANGE",
                errno.EINVAL,
                f"[{start}, {stop}) is not on borders of {self.granularity} bytes",
                f"round explicitly: round_out gives {self.round_out(low, high)}",
                "O5",
            )
        return self._parts(low, high - low)

    def _change(self, start: int | None, stop: int | None, right: Right) -> None:
        with self._locked():
            self._check_open()
            if self._nc:
                raise ObmmArgumentError.because(
                    "UPDATE_RANGE",
                    errno.EINVAL,
                    "a non-cacheable mapping has no ownership",
                    "plain access with barriers; reading(), writing(), publish() and refresh() give them",
                    "O2",
                )
            _give(self._granules(start, stop), right)

    @contextmanager
    def _phase(self, right: Right, start: int | None, stop: int | None) -> Iterator[None]:
        before: list[tuple[Part, Right]] = []
        with self._locked():
            self._check_open()
            if self._nc:
                if right is _WRITE and not self.writable:
                    raise self._no_right(right, self.start, self.nbytes)
                lib.obmm_fence_load()
            else:
                for piece, low, high in self._granules(start, stop):
                    before += [((piece, a, b), old) for a, b, old in piece.rights.runs(low, high) if old < right]
                _give([part for part, _ in before], right)

        def leave() -> None:
            if self._nc:
                lib.obmm_fence_store()
            for (piece, low, high), old in before:
                with piece.lock:
                    if piece.open:
                        piece.change(low, high, old)

        with ending(leave, "giving the rights of the phase back"):
            yield

    def _write_back(self, low: int) -> None:
        """W -> R from region byte `low` of the first piece on, or the barrier that does as much on NC."""
        if self._nc:
            lib.obmm_fence_store()
            return
        # what the header describes is all there when the header says so: its piece comes last
        for piece in reversed(self._pieces[1:]):
            piece.write_back(piece.low)
        self._pieces[0].write_back(low)


def _give(parts: Sequence[Part], right: Right) -> None:
    """All of `parts` get the right, or none: what was changed before one is refused is taken back."""
    done: list[tuple[Part, Right]] = []
    try:
        for piece, low, high in parts:
            was = [((piece, a, b), old) for a, b, old in piece.rights.runs(low, high)]
            piece.change(low, high, right)
            done += was
    except BaseException as error:
        for (piece, low, high), old in reversed(done):
            try:
                piece.change(low, high, old)
            except Exception as refusal:
                error.add_note(f"and {piece!r} keeps the right {right.letter}: {refusal}")
        raise
