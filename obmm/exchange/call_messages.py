# SPDX-License-Identifier: Apache-2.0
"""Payloads of the frames that are about no lease: are you there, calls, the server's state (docs/exchange-protocol.md, section 4)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import ClassVar

from obmm.exchange.errors import ProtocolError, Refusal
from obmm.exchange.frames import MAX_CALL, FrameType

REGION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Ping:
    """Is the other side alive?"""

    KIND: ClassVar[FrameType] = FrameType.PING

    def pack(self) -> bytes:
        return b""

    @classmethod
    def unpack(cls, data: memoryview) -> Ping:
        return cls()


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping."""

    KIND: ClassVar[FrameType] = FrameType.PONG

    def pack(self) -> bytes:
        return b""

    @classmethod
    def unpack(cls, data: memoryview) -> Pong:
        return cls()


@dataclass(frozen=True, slots=True)
class Call:
    """Ask something of a handler beside regions and leases; what `body` means is between the two."""

    name: str
    body: bytes
    KIND: ClassVar[FrameType] = FrameType.CALL
    MOST: ClassVar[int] = MAX_CALL - 129  # bytes of a body, whatever the name

    def pack(self) -> bytes:
        name = self.name.encode("ascii")
        return bytes((len(name),)) + name + self.body

    @classmethod
    def unpack(cls, data: memoryview) -> Call:
        end = 1 + data[0]
        if len(data) < end:
            raise ProtocolError(Refusal.PAYLOAD, "CALL: the name is not what its length says")
        name = bytes(data[1:end]).decode("ascii", "replace")
        if not REGION_NAME.fullmatch(name):
            raise ProtocolError(Refusal.PAYLOAD, "CALL: the name is not one that a region may have")
        return cls(name, bytes(data[end:]))


@dataclass(frozen=True, slots=True)
class Reply:
    """What the handler answered."""

    body: bytes
    KIND: ClassVar[FrameType] = FrameType.REPLY

    def pack(self) -> bytes:
        return self.body

    @classmethod
    def unpack(cls, data: memoryview) -> Reply:
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Status:
    """Ask for the server's state, leases from number ``first`` on."""

    first: int = 0
    KIND: ClassVar[FrameType] = FrameType.STATUS
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<I")

    def pack(self) -> bytes:
        return self._LAYOUT.pack(self.first)

    @classmethod
    def unpack(cls, data: memoryview) -> Status:
        return cls(*cls._LAYOUT.unpack(data))


@dataclass(frozen=True, slots=True)
class StatusPage:
    """``next`` is the number to ask for next, 0 at the end; ``json`` is one object (section 4.19)."""

    next: int
    json: bytes
    KIND: ClassVar[FrameType] = FrameType.STATUS_PAGE
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<II")

    def pack(self) -> bytes:
        return self._LAYOUT.pack(self.next, len(self.json)) + self.json

    @classmethod
    def unpack(cls, data: memoryview) -> StatusPage:
        following, size = cls._LAYOUT.unpack_from(data)
        if len(data) != cls._LAYOUT.size + size:
            raise ProtocolError(Refusal.PAYLOAD, f"{cls.KIND.name}: the text is not what its length says")
        return cls(following, bytes(data[cls._LAYOUT.size :]))
