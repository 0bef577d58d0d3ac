# SPDX-License-Identifier: Apache-2.0
"""The sequence lock in a region's header (Engram specification 5.3): odd while content is written, even when complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from obmm._native import lib
from obmm.header import RegionHeader, RegionState


class Words(Protocol):
    """Guarded words of a region, at region offsets: a `Span`, or memory that is no region."""

    def load(self, offset: int, width: int) -> int: ...
    def store(self, offset: int, width: int, word: int) -> None: ...


class ContentVersion:
    """Moves the content version of the header at the start of `span`.

    `flush` writes the header's granule back; on non-cacheable spans the barriers between the stores are enough.
    """

    def __init__(self, span: Words, flush: Callable[[], None]) -> None:
        self._span = span
        self._flush = flush

    def begin(self) -> None:
        """Odd, state loading; nothing to do while it is odd already."""
        version = self._read()
        if version % 2 == 0:
            self._store(RegionHeader.CONTENT_VERSION_OFFSET, 8, version + 1)
            self._store(RegionHeader.STATE_OFFSET, 4, RegionState.LOADING)
            self._flush()

    def end(self) -> None:
        """Even, state ready."""
        version = self._read()
        self._store(RegionHeader.STATE_OFFSET, 4, RegionState.READY)
        self._store(RegionHeader.CONTENT_VERSION_OFFSET, 8, version + 1)
        self._flush()

    def _read(self) -> int:
        return self._span.load(RegionHeader.CONTENT_VERSION_OFFSET, 8)

    def _store(self, offset: int, width: int, value: int) -> None:
        self._span.store(offset, width, value)
        lib.obmm_fence_store()
