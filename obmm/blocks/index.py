# SPDX-License-Identifier: Apache-2.0
"""The user's memory of positive answers: a hot lookup is a dictionary's, and costs no message."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import islice

from obmm.blocks.keys import HASH_BYTES, Key
from obmm.blocks.wire import NOWHERE, hashes_of

DEFAULT_ENTRIES = 1 << 18
_NO_HASH = NOWHERE[:HASH_BYTES]


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
        hashes = hashes_of(places)
        several = set(hashes)
        with self._mutex:
            if len(several) == len(hashes) and _NO_HASH not in several and self._keys.keys().isdisjoint(several):
                self._keys.update(zip(hashes, keys, strict=True))
                self._places.update(zip(keys, places, strict=True))
            else:
                for key, place, hashed in zip(keys, places, hashes, strict=True):
                    self._add(key, place, hashed)
            # all at once: looking for the first entry of a dict walks over the holes of those that went before
            for key in list(islice(self._places, max(0, len(self._places) - self._most))):
                self._drop(key)

    def _add(self, key: Key, place: bytes, hashed: bytes) -> None:
        if hashed in self._keys:  # text and its bytes are one key: only one of them is remembered
            self._places.pop(self._keys[hashed], None)
        if place != NOWHERE:
            self._places[key] = place
            self._keys[hashed] = key

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
