# SPDX-License-Identifier: Apache-2.0
"""The region header through a mapping that begins with it: guarded words, the sequence lock, what gathers watch."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from obmm.driver.abi import CacheOp
from obmm.errors import OwnershipError
from obmm.mapping.ownership import Right
from obmm.mapping.piece import Piece
from obmm.mapping.publishing import PublishedHeader
from obmm.mapping.span import SpanFault, SpanShut
from obmm.region.header import RegionHeader


class MappedHeader(PublishedHeader):
    """The header in front of the payload of `piece`, which must start with the region."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(_Words(piece), lambda: _write_back(piece))
        self._piece = piece
        self.version_address = piece.base + RegionHeader.CONTENT_VERSION_OFFSET
        self.heartbeat_address = piece.base + RegionHeader.HEARTBEAT_OFFSET

    @contextmanager
    def being_published(self) -> Iterator[None]:
        """Within, the version is odd; afterwards it is even, and the right to the header's granule is R."""
        piece = self._piece
        if not piece.nc:
            piece.change(piece.low, piece.header_end, Right.WRITE)
        self.begin()
        yield
        self.end()
        if not piece.nc:
            piece.update(piece.low, piece.header_end, Right.READ, CacheOp.INFER)

    def drop_cached(self) -> None:
        """Reader side: the next load of a word comes from memory, not from a cache."""
        self._piece.drop_cached_header()

    def watch(self) -> Any:
        """``struct obmm_recheck *``, for gathers: `drop_cached` and `version` without Python."""
        return self._piece.watch_header()


class _Words:
    """Guarded words of the header, whose faults are errors."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece

    def load(self, offset: int, width: int) -> int:
        self._refuse_without(Right.READ)
        try:
            return self._piece.span.load(offset, width)
        except (SpanFault, SpanShut) as failure:
            raise self._piece.failed("header load", failure) from None

    def store(self, offset: int, width: int, word: int) -> None:
        self._refuse_without(Right.WRITE)
        try:
            self._piece.span.store(offset, width, word)
        except (SpanFault, SpanShut) as failure:
            raise self._piece.failed("header store", failure) from None

    def _refuse_without(self, needed: Right) -> None:
        piece = self._piece
        piece.refuse_unusable(piece)
        if piece.rights.weakest(piece.low, piece.header_end) < needed:
            raise OwnershipError(
                errno.EACCES,
                f"the header of {piece} needs the right {needed.letter}: it would be a SIGSEGV [9.9]; fix: "
                f"acquire({'r' if needed is Right.READ else 'w'!r}) first",
            )


def _write_back(piece: Piece) -> None:
    if not piece.nc:
        piece.update(piece.low, piece.header_end, Right.WRITE, CacheOp.WB_ONLY)
