# SPDX-License-Identifier: Apache-2.0
"""The words of a region header that change while it is used (Engram specification 5.3), over memory of any kind.

The content version is a sequence lock: odd while content is written, even when complete.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from obmm._native import lib
from obmm.region.header import RegionHeader, RegionState

_U64 = (1 << 64) - 1
_DIGEST = struct.Struct("=4Q")  # in words, as untorn loads and stores carry them


class Words(Protocol):
    """Guarded words of a region or of memory that is none, at offsets from the header's first byte."""

    def load(self, offset: int, width: int) -> int:
        """The `width` bytes at `offset` as a word in host order, untorn."""
        ...

    def store(self, offset: int, width: int, word: int) -> None:
        """Store `width` bytes of `word` at `offset`, untorn."""


class PublishedHeader:
    """The header that `words` begin with.  `flush` writes its granule back; where stores are seen at once it does nothing."""

    def __init__(self, words: Words, flush: Callable[[], None] = lambda: None) -> None:
        self._words = words
        self._flush = flush

    def version(self) -> int:
        """The content version now."""
        return self._words.load(RegionHeader.CONTENT_VERSION_OFFSET, 8)

    def begin(self) -> None:
        """Odd, state loading; nothing to do while it is odd already."""
        version = self.version()
        if version % 2 == 0:
            self._store(RegionHeader.CONTENT_VERSION_OFFSET, 8, version + 1)
            self._store(RegionHeader.STATE_OFFSET, 4, RegionState.LOADING)
            self._flush()

    def end(self) -> None:
        """Even, state ready."""
        version = self.version()
        self._store(RegionHeader.STATE_OFFSET, 4, RegionState.READY)
        self._store(RegionHeader.CONTENT_VERSION_OFFSET, 8, version + 1)
        self._flush()

    def describe(self, tables: int, manifest_sha256: bytes, manifest_bytes: int) -> None:
        """What the payload holds, while the version is odd."""
        for i, word in enumerate(_DIGEST.unpack(manifest_sha256)):
            self._words.store(RegionHeader.DIGEST_OFFSET + 8 * i, 8, word)
        self._words.store(RegionHeader.TABLES_OFFSET, 4, tables)
        self._words.store(RegionHeader.MANIFEST_BYTES_OFFSET, 8, manifest_bytes)

    def digest(self) -> bytes:
        """The manifest's SHA-256; zeros when it was never described."""
        return _DIGEST.pack(
            *(self._words.load(RegionHeader.DIGEST_OFFSET + i, 8) for i in range(0, RegionHeader.DIGEST_SIZE, 8))
        )

    def beat(self) -> None:
        """One more in the heartbeat counter."""
        count = self._words.load(RegionHeader.HEARTBEAT_OFFSET, 8)
        self._words.store(RegionHeader.HEARTBEAT_OFFSET, 8, count + 1 & _U64)

    def _store(self, offset: int, width: int, value: int) -> None:
        self._words.store(offset, width, value)
        lib.obmm_fence_store()
