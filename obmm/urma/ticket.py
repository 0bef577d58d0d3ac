# SPDX-License-Identifier: Apache-2.0
"""The 128 bytes by which a segment is handed to a peer (URMA specification 8.1)."""

from __future__ import annotations

import errno
import ipaddress
import struct
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from obmm._native import ffi, lib
from obmm.urma.abi import ATTR_HAS_USER_INFO, MODE_RM
from obmm.urma.errors import UrmaTicketError

_WIRE: Final = struct.Struct("<8sHHI16sIIQQIIIIIIII16sIHHQII")
_STANDIN, _TARGET = 1, 2
_PROFILES: Final = {"A": 1, "C": 2}


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a reader needs of a segment and of the queue that its requests name.  Made by `Segment.ticket`, as bytes.

    A bearer capability: `token` and `target_token` are secrets and never shown.  EIDs are 16 raw bytes; `generation` is
    new for every registration; `length` in bytes.
    """

    standin: bool
    eid: bytes
    uasid: int
    token_id: int
    va: int
    length: int
    attr: int
    token: int = field(repr=False)
    target_type: int
    target_id: int
    target_uasid: int
    tp_type: int
    order_type: int
    target_eid: bytes
    target_token: int = field(repr=False)
    profile: str
    generation: int

    BYTES: ClassVar[int] = 128
    MAGIC: ClassVar[bytes] = b"OBMMURMA"
    VERSION: ClassVar[int] = 1

    def pack(self) -> bytes:
        """The 128 bytes."""
        flags = (_STANDIN if self.standin else 0) | _TARGET
        body = _WIRE.pack(
            self.MAGIC,
            self.VERSION,
            self.BYTES,
            flags,
            self.eid,
            self.uasid,
            self.token_id,
            self.va,
            self.length,
            self.attr,
            self.token,
            self.target_type,
            self.target_id,
            self.target_uasid,
            MODE_RM,
            self.tp_type,
            self.order_type,
            self.target_eid,
            self.target_token,
            _PROFILES[self.profile],
            0,
            self.generation,
            0,
            0,
        )
        return body[:120] + struct.pack("<II", _crc(body[:120]), 0)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Self:
        """The ticket in the 128 bytes `data`; UrmaTicketError with the reason for anything else."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise _bad(f"{type(data).__name__} instead of bytes")
        raw = bytes(data)
        if len(raw) != cls.BYTES:
            raise _bad(f"{len(raw)} bytes, a ticket has {cls.BYTES}")
        (magic, version, size, flags, eid, uasid, token_id, va, length, attr, token, target_type, target_id) = (
            found := _WIRE.unpack(raw)
        )[:13]
        (target_uasid, mode, tp_type, order, target_eid, target_token, profile, spare, generation, crc, zero) = found[
            13:
        ]
        if magic != cls.MAGIC:
            raise _bad("it does not begin with OBMMURMA")
        if version != cls.VERSION:
            newer = "made by a newer obmm: upgrade this side" if version > cls.VERSION else "no such version exists"
            raise _bad(f"version {version}: {newer}")
        if size != cls.BYTES:
            raise _bad(f"it says that it has {size} bytes")
        if crc != _crc(raw[:120]):
            raise _bad("its checksum does not match: it was damaged on the way")
        if flags & ~(_STANDIN | _TARGET):
            raise _bad(f"unknown flags {flags:#x}")
        if not flags & _TARGET:
            raise _bad("it names no target queue")
        if spare or zero:
            raise _bad("spare bytes are not zero")
        if not length or va + length > 1 << 64:
            raise _bad(f"a segment of {length} bytes that no address space holds")
        if attr & ATTR_HAS_USER_INFO:
            raise _bad("its segment has information behind the structure, which this side would not understand")
        if mode != MODE_RM:
            raise _bad(f"transport mode {mode}; one-sided requests go in mode RM here")
        if target_type not in (0, 1) or tp_type not in (0, 1):
            raise _bad(f"target type {target_type}, transport {tp_type}")
        names = {number: name for name, number in _PROFILES.items()}
        if profile not in names:
            raise _bad(f"ABI profile {profile}")
        if not generation:
            raise _bad("generation 0")
        return cls(
            bool(flags & _STANDIN), eid, uasid, token_id, va, length, attr, token, target_type, target_id, target_uasid,
            tp_type, order, target_eid, target_token, names[profile], generation,
        )  # fmt: skip


def show_eid(eid: bytes) -> str:
    """Eight groups of four hexadecimal digits."""
    return ipaddress.IPv6Address(eid).exploded


def _crc(data: bytes) -> int:
    return int(lib.obmm_crc32c(0, ffi.from_buffer(data), len(data)))


def _bad(problem: str) -> UrmaTicketError:
    hint = "take the bytes that Segment.ticket() of the same version returned"
    return UrmaTicketError(
        errno.EINVAL,
        f"urma.attach: no usable ticket: {problem}; fix: {hint}",
        errno=errno.EINVAL,
        operation="attach",
        name="EINVAL",
        hint=hint,
    )
