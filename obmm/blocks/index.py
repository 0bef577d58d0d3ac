# SPDX-License-Identifier: Apache-2.0
"""The user's memory of positive answers: a hot lookup is a dictionary's, and costs no message."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from obmm.blocks.keys import HASH_BYTES, Key
from obmm.blocks.wire import NOWHERE

DEFAULT_ENTRIES = 1 << 18


class PlaceIndex:
    """Key -> place, as the 32 bytes that native code takes.

    A place says which use of its slot it means, so that an entry that is out of date is a miss when it is used, and
    never another block.  At most `most` entries; the oldest go first.
    """

    def __init__(self, most: int = DEFAULT_ENTRIES) -> None:
        self._most = most
        self._places: dict[Key, bytes] = {}
        self._keys: dict[bytes, Key] = {}  # by hash
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def places(self, keys: Iterable[Key]) -> list[bytes | None]:
        """What is known of each."""
        return list(map(self._places.get, keys))

    def known(self, keys: Iterable[Key]) -> list[bool]:
        """Whether each is."""
        return list(map(self._places.__contains__, keys))

    def has_all(self, keys: list[Key]) -> bool:
        """Whether all of them are known."""
        try:
            return all(map(self._places.__contains__, keys))
        except (TypeError, ValueError):
            return False  # no keys at all: who looks closer says so

    def add(self, keys: Sequence[Key], places: Sequence[bytes]) -> None:
        """Remember places; those of no block are left out."""
        with self._mutex:
            for key, place in zip(keys, places, strict=True):
                hashed = place[:HASH_BYTES]
                if hashed in self._keys:  # text and its bytes are one key: only one of them is remembered
                    self._places.pop(self._keys[hashed], None)
                if place != NOWHERE:
                    self._places[key] = place
                    self._keys[hashed] = key
            while len(self._places) > self._most:
                self._drop(next(iter(self._places)))

    def drop(self, keys: Iterable[Key]) -> None:
        with self._mutex:
            for key in keys:
                self._drop(key)

    def drop_hashes(self, hashes: Iterable[bytes]) -> int:
        """What the owner has evicted -> how many of them were known here."""
        dropped = 0
        with self._mutex:
            for each in hashes:
                key = self._keys.get(each)
                if key is not None:
                    self._drop(key)
                    dropped += 1
        return dropped

    def clear(self) -> None:
        with self._mutex:
            self._places.clear()
            self._keys.clear()

    def _drop(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self._keys.pop(place[:HASH_BYTES], None)
