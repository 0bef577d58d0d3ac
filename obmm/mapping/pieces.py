# SPDX-License-Identifier: Apache-2.0
"""Pieces at consecutive addresses: payload offsets, refusals, closing, and what the rooms above may ask."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from obmm.arguments import whole
from obmm.closing import Closing
from obmm.driver.abi import Cache
from obmm.driver.modelled import ModelledFabric
from obmm.errors import ClosedError, ObmmArgumentError, OwnershipError, RemoteMemoryError
from obmm.mapping.faults import fault_elsewhere, remote_fault
from obmm.mapping.header import MappedHeader
from obmm.mapping.ownership import Right
from obmm.mapping.piece import Piece
from obmm.mapping.span import SpanFault, SpanShut

_READ, _WRITE = Right.READ, Right.WRITE

Part = tuple[Piece, int, int]
"""A piece, and region bytes [low, high) of it."""


class Pieces(Closing):
    """Payload bytes [`start`, `stop`) of pieces that lie side by side.  Offsets are in bytes."""

    def __init__(self, pieces: Sequence[Piece], start: int, stop: int) -> None:
        """Over `pieces` at consecutive addresses, the payload of the first one beginning at offset `start`."""
        first = pieces[0]
        self._pieces = tuple(pieces)
        self._payload = first.payload + first.start - start  # the address of payload offset 0
        self._nc = first.nc
        self.region = first.region
        self.cache: Cache = first.cache
        self.granularity = max(piece.granularity for piece in pieces)
        self.writable = all(piece.writable for piece in pieces)
        self.start, self.stop = start, stop

    # --- description -------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Payload bytes."""
        return self.stop - self.start

    @property
    def address(self) -> int:
        """Where payload offset `start` lies in this process.  Access through it is unguarded."""
        self._check_open()
        return self._payload + self.start

    @property
    def closed(self) -> bool:
        """True once unmapped, or in a forked child."""
        return not all(piece.open for piece in self._pieces)

    @property
    def readonly(self) -> bool:
        """True when it can never be written through."""
        return not self.writable

    @property
    def right(self) -> Right:
        """The least right over all of it."""
        return min(piece.floor for piece in self._pieces)

    @property
    def views(self) -> tuple[str, ...]:
        """The live views, each in words."""
        return tuple(dict.fromkeys(what for piece in self._pieces for what in piece.views.over(piece.low, piece.high)))

    def __bool__(self) -> bool:
        return not self.closed

    # --- inside: which bytes, and whether they may be touched --------------------------------------------------------

    @property
    def _mapped(self) -> tuple[int, int]:
        """Payload offsets of all mapped bytes, a header in front and what rounding added included."""
        return self._pieces[0].base - self._payload, self._pieces[-1].end - self._payload

    def _parts(self, offset: int, size: int) -> list[Part]:
        """Where mapped bytes [offset, offset + size) lie: at least one part, of no bytes if `size` is 0."""
        at = self._payload + offset
        end = at + size
        found = []
        for piece in self._pieces:
            if piece.end > at or piece is self._pieces[-1]:
                shift = piece.low - piece.base
                found.append((piece, at + shift, min(end, piece.end) + shift))
                at = min(end, piece.end)
                if at == end:
                    break
        return found

    def _checked(self, offset: int, size: int, needed: Right) -> list[Part]:
        """The parts of payload bytes [offset, offset + size), all of them with at least the right `needed`."""
        if type(offset) is not int:
            offset = whole("ACCESS", "offset", offset)
        if offset < self.start or size < 0 or offset + size > self.stop:
            self._check_open()
            raise ObmmArgumentError.because(
                "ACCESS",
                errno.EINVAL,
                f"[{offset}, {offset + size}) is outside the mapped payload [{self.start}, {self.stop})",
                "offsets count from the payload, in bytes",
            )
        parts = self._parts(offset, size)
        for piece, low, high in parts:
            piece.refuse_unusable(self)
            if piece.floor < needed and piece.rights.weakest(low, high) < needed:
                raise self._no_right(needed, offset, size)
        return parts

    def _word(self, what: str, offset: int, width: int, needed: Right) -> tuple[Piece, int]:
        """Where an aligned word lies, which never straddles two pieces."""
        parts = self._checked(offset, width, needed)
        if offset % width:
            raise ObmmArgumentError.because(
                "ACCESS",
                errno.EINVAL,
                f"{what} of {width} bytes at offset {offset} is not naturally aligned",
                f"a multiple of {width}",
                "16",
            )
        return parts[0][:2]

    def _guarded(self, what: str, piece: Piece, access: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return access(*arguments)
        except (SpanFault, SpanShut) as failure:
            raise piece.failed(what, failure, self, self._payload) from None

    def _fault_at(self, what: str, address: int, kind: str, code: int) -> RemoteMemoryError:
        for piece in self._pieces:
            if piece.base <= address < piece.end:
                offset = address - self._payload
                return remote_fault(what, self, offset, kind, code, piece.region.peer, operation="GATHER")
        return fault_elsewhere(what, kind, code, operation="GATHER")

    def _no_right(self, needed: Right, offset: int, size: int) -> OwnershipError:
        what = "loaded" if needed is _READ else "stored to"
        if needed is _WRITE and not self.writable:
            fix = "map the region with access 'rw'"
        else:
            fix = f"acquire({'r' if needed is _READ else 'w'!r}) first, or use a reading()/writing() phase"
        return OwnershipError(
            errno.EACCES,
            f"[{offset}, {offset + size}) of {self} cannot be {what}: it would be a SIGSEGV [9.9]; fix: {fix}",
        )

    def _is_closed(self) -> ClosedError:
        return next((piece for piece in self._pieces if not piece.open), self._pieces[0]).closed_error(self)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """With the rights and the views of every piece as they are."""
        with ExitStack() as locks:
            for piece in self._pieces:
                locks.enter_context(piece.lock)
            yield

    # --- inside: closing ---------------------------------------------------------------------------------------------

    def _refuse_if_busy(self) -> None:
        for piece in self._pieces:
            piece.refuse_views("close", piece.low, piece.high)

    def _die(self) -> None:
        super()._die()
        for piece in self._pieces:
            piece.die()


# --- for the rooms above ---------------------------------------------------------------------------------------------


def gates_of(memory: Pieces) -> list[Any]:
    """``struct obmm_gate *`` of every piece: native code enters them around its accesses."""
    return [piece.gate for piece in memory._pieces]


def fabric_played(memory: Pieces) -> ModelledFabric | None:
    """The modelled fabric whose time guarded accesses take, if there is one."""
    return memory._pieces[0].fabric


def readable(memory: Pieces) -> Callable[[], None]:
    """A function that raises unless all of `memory` can be loaded now: closed, no right, lease lost.

    It is called before every gather, so that what is as it should be costs one look per piece.
    """
    pieces = memory._pieces

    def check() -> None:
        for piece in pieces:
            lease = piece.lease
            if not piece.floor or not piece.open or (lease is not None and not lease.usable):
                memory._checked(memory.start, memory.nbytes, _READ)

    return check


def header_of(memory: Pieces) -> MappedHeader | None:
    """The region header that is mapped in front of the payload, if there is one."""
    first = memory._pieces[0]
    return MappedHeader(first) if first.low == 0 and first.region.data_offset > 0 else None


def fault_at(memory: Pieces, what: str, address: int, kind: str, code: int) -> RemoteMemoryError:
    """The error for a fault of a gather at `address`."""
    return memory._fault_at(what, address, kind, code)
