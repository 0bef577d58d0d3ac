# SPDX-License-Identifier: Apache-2.0
"""Keys: what an engine calls a block, and the 16 bytes that stand for it in directory and slot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from obmm._native import ffi, lib
from obmm.arguments import listed
from obmm.blocks.errors import refused
from obmm.mapping.buffers import array_here

HASH_BYTES: int = lib.OBMM_BLAKE2B_DIGEST
MOST_KEY_BYTES = 64 << 10
Key = bytes | str


class Namespace:
    """Everything that must be the same for two engines to share a block: model, data type, layout, rank, ...

    Its facts are the key of the hash, so that another model's block is another hash and therefore a miss; the slot's
    header repeats `fingerprint`.

    >>> one = obmm.blocks.Namespace(model="m", dtype="bfloat16", block_bytes=1 << 18, rank=0)
    >>> one.hash(b"chunk 1") == one.hash("chunk 1"), len(one.hash(b""))
    (True, 16)
    >>> one.hashes(["chunk 1", b""]) == one.hash("chunk 1") + one.hash(b"")
    True
    >>> one.hash(b"chunk 1") == obmm.blocks.Namespace(model="n", dtype="bfloat16", block_bytes=1 << 18, rank=0).hash(b"chunk 1")
    False

    ObmmArgumentError for facts that are not plain values.
    """

    __slots__ = ("_native", "facts", "fingerprint")

    def __init__(self, **facts: Any) -> None:
        try:
            text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise refused(f"a namespace of {sorted(facts)}: {error}", "text, numbers, and lists of them") from None
        if not facts:
            raise refused("a namespace without facts", "at least the model's name")
        digest = hashlib.blake2b(text.encode(), digest_size=40, person=b"obmm blocks 1").digest()
        self.facts = facts
        self.fingerprint = int.from_bytes(digest[32:], "little") or 1
        self._native: Any = ffi.new("struct obmm_blake2b_key *")
        lib.obmm_blake2b_key(self._native, digest, 32)

    def hash(self, key: Key) -> bytes:
        """16 bytes for a key; text counts as its UTF-8.  ObmmArgumentError for what is not a key."""
        return self.hashes([key])

    def hashes(self, keys: Iterable[Key]) -> bytes:
        """16 bytes for each of `keys`, one behind the other: keyed BLAKE2b.  Errors as for `hash`."""
        plain = [key.encode() if isinstance(key, str) else key for key in check_keys(keys)]
        lengths, data = np.fromiter(map(len, plain), np.uint32, len(plain)), b"".join(plain)
        if int(lengths.sum(dtype=np.uint64)) != len(data):
            raise refused("a key that says another length than it has", "bytes or text")
        digests = bytearray(HASH_BYTES * len(plain))
        lib.obmm_blake2b_many(
            self._native,
            data,
            ffi.from_buffer("uint32_t[]", lengths),
            len(plain),
            ffi.from_buffer("uint8_t[]", digests),
        )
        return bytes(digests)

    def __repr__(self) -> str:
        return f"<Namespace {', '.join(f'{name}={value!r}' for name, value in self.facts.items())}>"


def check_keys(keys: Iterable[Key]) -> list[Key]:
    """The keys as a list; ObmmArgumentError for one that is neither bytes nor text, or has more than 64 KiB."""
    if isinstance(keys, np.ndarray):
        keys = array_here(keys).tolist()
    checked: list[Key] = listed("BLOCKS", "keys", keys, "keys, each of them bytes or text")
    kinds = set(map(type, checked))
    plain = kinds <= {bytes} or (kinds == {str} and all(key.isascii() for key in checked))
    if plain and max(map(len, checked), default=0) <= MOST_KEY_BYTES:
        return checked
    for index, key in enumerate(checked):
        if not isinstance(key, bytes | str) or len(key) > MOST_KEY_BYTES:
            shown = f"{len(key)} bytes" if isinstance(key, bytes | str) else type(key).__name__
            raise refused(f"keys[{index}] is {shown}", f"bytes or text of at most {MOST_KEY_BYTES} bytes")
        if isinstance(key, str):
            try:
                key.encode()
            except UnicodeEncodeError as error:
                raise refused(f"keys[{index}] is text without UTF-8: {error.reason}", "bytes, or other text") from None
    return checked
