# SPDX-License-Identifier: Apache-2.0
"""Questions to the directory and its answers, as bodies of calls (docs/blocks.md, "The directory's protocol").

Everything is little-endian, without holes.  A question is a head and items of one size; what does not add up exactly is
refused.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from obmm.blocks.keys import HASH_BYTES
from obmm.exchange.errors import Refusal, RequestRefusedError

VERSION = 1
HEAD = struct.Struct("<BBHI16sQ")  # operation, version, zero, argument, user, serial
PLACE = struct.Struct("<16sQII")  # hash, generation, slot, length: struct obmm_block_place
GRANT = struct.Struct("<QII")  # generation, slot, zero
_PLACE = np.dtype([("hash", "V16"), ("generation", "<u8"), ("slot", "<u4"), ("length", "<u4")])
_GRANT = np.dtype([("generation", "<u8"), ("slot", "<u4"), ("zero", "<u4")])
COUNT = struct.Struct("<II")
OPENED = struct.Struct("<QII")  # incarnation, term in milliseconds, slots
NEWS = struct.Struct("<QII")  # sequence, whether some were lost, number
MOST_ITEMS = 1024
MOST_NEWS = 4096
NOWHERE = bytes(PLACE.size)


class Op(enum.IntEnum):
    """What is asked; the argument of the head is a count where one is needed."""

    OPEN = 1
    RESERVE = 2
    COMMIT = 3
    LOOKUP = 4
    PIN = 5
    UNPIN = 6
    DELETE = 7
    RENEW = 8
    GIVE_BACK = 9
    CLOSE = 10
    EVICT = 11
    STATUS = 12
    BAD = 13


class Answer(enum.IntEnum):
    """First byte of every answer."""

    OK = 0
    UNKNOWN_USER = 1


class Committed(enum.IntEnum):
    """What became of a block that was committed."""

    STORED = 0
    EXISTED = 1  # somebody else was first: the place is theirs, the slot went back
    GONE = 2  # the reservation has ended


_ITEMS = {
    Op.COMMIT: PLACE.size,
    Op.BAD: PLACE.size,
    Op.GIVE_BACK: GRANT.size,
    Op.LOOKUP: HASH_BYTES,
    Op.PIN: HASH_BYTES,
    Op.UNPIN: HASH_BYTES,
    Op.DELETE: HASH_BYTES,
    Op.RENEW: HASH_BYTES,  # used lately
}


@dataclass(frozen=True, slots=True)
class Question:
    """One call's body, parsed.  `serial` counts a user's questions: one that comes again has the same."""

    op: Op
    user: bytes
    serial: int
    argument: int = 0
    items: tuple[bytes, ...] = field(default=())
    text: str = ""
    fingerprint: int = 0

    def pack(self) -> bytes:
        head = HEAD.pack(self.op, VERSION, 0, self.argument, self.user, self.serial)
        if self.op is Op.OPEN:
            return head + self.fingerprint.to_bytes(8, "little") + self.text.encode()
        if self.op is Op.EVICT:
            return head + self.text.encode()
        return head + b"".join(self.items)

    @classmethod
    def unpack(cls, body: bytes) -> Question:
        """RequestRefusedError, with a sentence for the caller, for anything that is not a question."""
        if len(body) < HEAD.size:
            raise _bad(f"a question of {len(body)} bytes")
        number, version, zero, argument, user, serial = HEAD.unpack_from(body)
        if version != VERSION:
            raise RequestRefusedError(
                Refusal.VERSION,
                f"the owner's directory speaks version {VERSION}, not {version}: run the same version of obmm on both nodes",
            )
        if number not in Op._value2member_map_ or zero:
            raise _bad(f"operation {number}")
        op, rest = Op(number), body[HEAD.size :]
        if op is Op.OPEN:
            if not 8 <= len(rest) <= 8 + 64:
                raise _bad("a tenant's name beyond 64 bytes")
            return cls(op, user, serial, argument, (), _text(rest[8:]), int.from_bytes(rest[:8], "little"))
        if op is Op.EVICT:
            return cls(op, user, serial, argument, (), _text(rest[:64]))
        size = _ITEMS.get(op, 0)
        if (rest and not size) or (size and len(rest) % size) or len(rest) > size * MOST_ITEMS:
            raise _bad(f"{op.name} with {len(rest)} bytes of items")
        return cls(op, user, serial, argument, tuple(split(rest, size)))


def split(data: bytes, size: int) -> list[bytes]:
    """The whole pieces of `size` bytes.  By NumPy: a slice for each costs five times as much, and batches have a thousand."""
    count = len(data) // size if size else 0
    pieces: list[bytes] = np.frombuffer(data, f"V{size}", count).tolist() if count else []
    return pieces


def hashes_of(places: Sequence[bytes]) -> list[bytes]:
    """The hash in each place."""
    return _field(places, "hash")


def slots_of(places: Sequence[bytes]) -> list[int]:
    """The slot in each place."""
    return _field(places, "slot")


def _field(places: Sequence[bytes], name: str) -> list[Any]:
    values: list[Any] = np.frombuffer(b"".join(places), _PLACE)[name].tolist()
    return values


def grants_of(generations: Sequence[int], slots: Sequence[int]) -> bytes:
    """A `GRANT` for each."""
    grants = np.zeros(len(slots), _GRANT)
    grants["generation"], grants["slot"] = generations, slots
    return grants.tobytes()


def batches(items: Sequence[bytes]) -> list[Sequence[bytes]]:
    """As many of them as one question may have, at a time."""
    return [items[i : i + MOST_ITEMS] for i in range(0, len(items), MOST_ITEMS)]


def _text(raw: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in raw.decode("utf-8", "replace"))


def _bad(problem: str) -> RequestRefusedError:
    return RequestRefusedError(Refusal.PROTOCOL, f"no question to a directory of blocks: {problem}")
