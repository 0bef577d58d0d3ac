# SPDX-License-Identifier: Apache-2.0
"""The 80-byte handle: everything an importer must know (docs/exchange-protocol.md, section 7)."""

from __future__ import annotations

import enum
import errno
import struct
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from obmm.arguments import U64, whole, wrong_type
from obmm.errors import ObmmArgumentError, other_version

ANY_EID = bytes(16)


class HandleFlag(enum.IntFlag):
    """Byte 70 of the handle.  CC and NC together are refused; neither means that the importer chooses.

    >>> obmm.HandleFlag.CC | obmm.HandleFlag.READ_ONLY
    <HandleFlag.CC|READ_ONLY: 5>
    """

    CC = 1
    NC = 2
    READ_ONLY = 4
    HEADER = 8


_KNOWN_FLAGS = 0xF
_NO_FLAGS = HandleFlag(0)


def _bad(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("HANDLE", errno.EINVAL, problem, fix, "docs/exchange-protocol.md, 7")


class Secret(int):
    """A number that does not print itself: tracebacks with locals show ``***``.  `int(secret)` is the number."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "***"


def _secret(value: int) -> int:
    """What is not a whole number is refused elsewhere."""
    return Secret(value) if isinstance(value, int) else value


@dataclass(frozen=True, slots=True, init=False)
class Handle:
    """A bearer capability for one export: its holder can ask a fabric for that memory.

    `length` is the whole region in bytes, header included.  `owner_cna` and `owner_eid` name the exporter's
    controller (they become dcna and deid of the import), `peer_eid` the importer it is meant for (all zero: any).
    `generation` is chosen at export, never zero, and stands in the region header too.  `uba` and `tokenid` are
    secret: ``repr`` hides them, and they are `Secret` numbers.
    `mem_id` is the owner's number for the region, `pxm_numa` its NUMA node and `base_dist` its distance (hints), `flags` a
    `HandleFlag`.  ObmmArgumentError for a value that does not fit into the 80 bytes.

    >>> with a.export_region("2MiB") as region:
    ...     handle = region.handle()
    >>> obmm.Handle.unpack(handle.pack()) == handle, handle.for_peer(obmm.eid(0x13)).peer_eid[0]
    (True, 19)
    >>> handle.tokenid                                 # never in a log
    ***
    """

    mem_id: int
    length: int
    uba: int = field(repr=False)
    tokenid: int = field(repr=False)
    owner_cna: int
    owner_eid: bytes
    peer_eid: bytes = ANY_EID
    pxm_numa: int = 0
    base_dist: int = 0
    flags: HandleFlag = HandleFlag(0)
    generation: int = 0

    SIZE: ClassVar[int] = 80
    VERSION: ClassVar[int] = 1
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<QQQII16s16siBBHQ")

    def __init__(
        self,
        mem_id: int,
        length: int,
        uba: int,
        tokenid: int,
        owner_cna: int,
        owner_eid: bytes,
        peer_eid: bytes = ANY_EID,
        pxm_numa: int = 0,
        base_dist: int = 0,
        flags: HandleFlag = _NO_FLAGS,
        generation: int = 0,
    ) -> None:
        # first of all: whatever is refused below, this frame's locals do not show them
        uba, tokenid = _secret(uba), _secret(tokenid)
        given = (mem_id, length, uba, tokenid, owner_cna, owner_eid, peer_eid, pxm_numa, base_dist, flags, generation)
        for each, value in zip(fields(self), given, strict=True):
            object.__setattr__(self, each.name, value)
        self._check()

    def _check(self) -> None:
        for name, value, top in (
            ("mem_id", self.mem_id, U64),
            ("length", self.length, U64),
            ("uba", self.uba, U64),
            ("tokenid", self.tokenid, 0xFFFFFFFF),
            ("owner_cna", self.owner_cna, 0xFFFFFFFF),
            ("base_dist", self.base_dist, 0xFF),
            ("generation", self.generation, U64),
        ):
            if not isinstance(value, int) or not 0 <= value <= top:
                shown = "its value" if name in ("uba", "tokenid") else repr(value)
                raise _bad(f"{name}: {shown} is outside 0..{top:#x}", "take the handle from `region.handle()`")
        for name in ("pxm_numa", "flags"):
            if not isinstance(getattr(self, name), int):
                raise wrong_type("HANDLE", name, getattr(self, name), "take the handle from `region.handle()`")
        if not -(1 << 31) <= self.pxm_numa < 1 << 31:
            raise _bad(f"pxm_numa={self.pxm_numa} does not fit 32 bits", "use the owner's NUMA node")
        for name, eid in (("owner_eid", self.owner_eid), ("peer_eid", self.peer_eid)):
            if not isinstance(eid, bytes) or len(eid) != 16:
                size = len(eid) if isinstance(eid, bytes | bytearray | memoryview) else type(eid).__name__
                raise _bad(f"{name} is {size}, an EID is 16 raw bytes", "use `obmm.eid(number)` for the 16-byte form")
        if int(self.flags) & ~_KNOWN_FLAGS:
            raise _bad(f"flags={int(self.flags):#x} has reserved bits set", "only bits 0 to 3 are defined")
        if self.flags & HandleFlag.CC and self.flags & HandleFlag.NC:
            raise _bad("flags ask for CC and NC at once", "set one of them, or neither to let the importer choose")
        if self.length == 0:
            raise _bad("length=0", "take the handle from `region.handle()`")
        if self.generation == 0:
            raise _bad(
                "generation=0: a handle without it cannot be told from a stale one",
                "take it from `region.handle()`",
            )

    def pack(self) -> bytes:
        """The 80 bytes, little-endian, of docs/exchange-protocol.md, section 7."""
        return self._LAYOUT.pack(
            self.mem_id,
            self.length,
            self.uba,
            self.tokenid,
            self.owner_cna,
            self.owner_eid,
            self.peer_eid,
            self.pxm_numa,
            self.base_dist,
            self.VERSION,
            int(self.flags),
            self.generation,
        )

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Handle:
        """The handle in the 80 bytes `data`; ObmmArgumentError for a wrong size, version, reserved bit or zero
        generation.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise wrong_type("HANDLE", "data", data, "the 80 bytes of `handle.pack()`")
        data = memoryview(data)  # whose repr, unlike that of bytes, shows nothing
        if data.nbytes != cls.SIZE:
            raise _bad(
                f"{data.nbytes} bytes, a handle has {cls.SIZE}",
                "transport exactly the bytes of `handle.pack()`",
            )
        mem_id, length, uba, tokenid, cna, owner, peer, pxm, dist, version, flags, generation = _unpacked(data)
        if version != cls.VERSION:
            raise _bad(
                other_version("the handle", version, cls.VERSION),
                "use the same obmm release on both nodes",
            )
        if flags & ~_KNOWN_FLAGS:
            raise _bad(f"flags={flags:#x} has reserved bits set", "only bits 0 to 3 are defined")
        return cls(mem_id, length, uba, tokenid, cna, owner, peer, pxm, dist, HandleFlag(flags), generation)

    def for_peer(self, eid: bytes) -> Handle:
        """The same handle, marked as meant for the importer with this `eid`, 16 bytes (advice, not a boundary)."""
        return replace(self, peer_eid=eid)


def _unpacked(data: memoryview) -> tuple[Any, ...]:
    """The fields, the secret ones wrapped before any name is bound to them."""
    return tuple(Secret(value) if place in (2, 3) else value for place, value in enumerate(Handle._LAYOUT.unpack(data)))


def eid(number: int) -> bytes:
    r"""The 16-byte form of an EID number: little-endian in bytes 0 to 3, the rest zero (driver specification 13.1).

    `number`: 0 to 2**32 - 1, else ObmmArgumentError.

    >>> obmm.eid(0x1234)[:3]
    b'4\x12\x00'
    """
    number = whole("HANDLE", "EID", number)
    if not 0 < number < 1 << 32:
        raise _bad(f"EID {number} is outside 1..2^32-1", "use the number in the controller's `eid` file")
    return number.to_bytes(16, "little")


assert Handle._LAYOUT.size == Handle.SIZE
