# SPDX-License-Identifier: Apache-2.0
"""Payloads of the frames (docs/exchange-protocol.md, section 4): packing and strict parsing.

``parse`` takes any frame and returns its message, or raises ProtocolError with
reason PAYLOAD.  Everything is little-endian, without holes; lengths inside a
payload must add up to the payload's length exactly.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, get_args

from obmm.errors import ObmmArgumentError
from obmm.exchange.call_messages import REGION_NAME, Call, Ping, Pong, Reply, Status, StatusPage
from obmm.exchange.errors import ProtocolError, Refusal
from obmm.exchange.frames import Frame, FrameType, pack_frame
from obmm.exchange.secrets import Opaque
from obmm.handle import Handle

ANY_EID = bytes(16)
_CLIENT_NAME = re.compile(r"[!-~]{0,64}", re.ASCII)


class Mode(enum.IntEnum):
    """How a session is protected. One side never follows the other to a weaker one."""

    PLAIN = 0
    KEY = 1
    TLS = 2


class RevokeReason(enum.IntEnum):
    """Why the owner takes a region back."""

    WITHDRAWN = 1
    CLOSING = 2


def _bad(kind: FrameType, problem: str) -> ProtocolError:
    return ProtocolError(Refusal.PAYLOAD, f"{kind.name}: {problem}")


def _name(kind: FrameType, raw: memoryview) -> str:
    text = bytes(raw).decode("ascii", "replace")
    if not REGION_NAME.fullmatch(text):
        raise _bad(kind, "the region name is not 1..128 characters of A-Z a-z 0-9 . _ : / @ + -")
    return text


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first frame: mode, nonce, name."""

    mode: Mode
    nonce: bytes
    client: str = ""
    KIND: ClassVar[FrameType] = FrameType.HELLO
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<B7x16sB")

    def pack(self) -> bytes:
        name = self.client.encode("ascii")
        return self._LAYOUT.pack(self.mode, self.nonce, len(name)) + name

    @classmethod
    def unpack(cls, data: memoryview) -> Hello:
        mode, nonce, size = cls._LAYOUT.unpack_from(data)
        name = bytes(data[cls._LAYOUT.size :]).decode("ascii", "replace")
        if any(data[1:8]):
            raise _bad(cls.KIND, "reserved bytes are set")
        if mode not in Mode._value2member_map_:
            raise _bad(cls.KIND, f"mode {mode} is unknown")
        if len(name) != size or not _CLIENT_NAME.fullmatch(name):
            raise _bad(cls.KIND, "the client name is not what its length says, or not printable ASCII")
        return cls(Mode(mode), nonce, name)


@dataclass(frozen=True, slots=True)
class Challenge:
    """The server's nonce."""

    nonce: bytes
    KIND: ClassVar[FrameType] = FrameType.CHALLENGE

    def pack(self) -> bytes:
        return self.nonce

    @classmethod
    def unpack(cls, data: memoryview) -> Challenge:
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Proof:
    """HMAC of both nonces under the shared key."""

    proof: Opaque
    KIND: ClassVar[FrameType] = FrameType.PROOF

    def pack(self) -> bytes:
        return bytes(self.proof)

    @classmethod
    def unpack(cls, data: memoryview) -> Proof:
        return cls(Opaque(data))


@dataclass(frozen=True, slots=True)
class Welcome:
    """Server instance (random per start), lease term, how long a client may be silent, number of regions."""

    instance: bytes
    term_ms: int
    idle_ms: int
    regions: int
    KIND: ClassVar[FrameType] = FrameType.WELCOME
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<16sIIII")

    def pack(self) -> bytes:
        return self._LAYOUT.pack(self.instance, self.term_ms, self.idle_ms, self.regions, 0)

    @classmethod
    def unpack(cls, data: memoryview) -> Welcome:
        instance, term, idle, regions, reserved = cls._LAYOUT.unpack(data)
        if reserved:
            raise _bad(cls.KIND, "reserved bytes are set")
        if not term or not idle:
            raise _bad(cls.KIND, "a lease term or silence of zero")
        return cls(instance, term, idle, regions)


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """A refusal: its code and a line of text."""

    code: Refusal
    text: str
    KIND: ClassVar[FrameType] = FrameType.ERROR
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HH")

    def pack(self) -> bytes:
        text = self.text.encode("ascii", "replace")[:512]
        return self._LAYOUT.pack(self.code.on_wire, len(text)) + text

    @classmethod
    def unpack(cls, data: memoryview) -> ErrorMessage:
        code, size = cls._LAYOUT.unpack_from(data)
        raw = bytes(data[cls._LAYOUT.size :])
        if len(raw) != size:
            raise _bad(cls.KIND, "the text is not what its length says")
        if code not in Refusal._value2member_map_ or Refusal(code).on_wire != code:
            raise _bad(cls.KIND, f"code {code} is unknown")
        # A peer's text ends up in logs and terminals: printable ASCII or nothing.
        text = "".join(chr(c) if 32 <= c < 127 else "?" for c in raw)
        return cls(Refusal(code), text)


@dataclass(frozen=True, slots=True)
class List:
    """Ask for the published regions from number ``first`` on."""

    first: int = 0
    KIND: ClassVar[FrameType] = FrameType.LIST
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<I")

    def pack(self) -> bytes:
        return self._LAYOUT.pack(self.first)

    @classmethod
    def unpack(cls, data: memoryview) -> List:
        return cls(*cls._LAYOUT.unpack(data))


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """One line of a listing: nothing in it opens the memory.

    `name`, `length` of the region in bytes, `generation` of its export, `manifest_bytes`, and the handle's `flags`.
    `Peer.list` gives them.
    """

    name: str
    length: int
    generation: int
    manifest_bytes: int
    flags: int
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<QQIHBx")


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of the list of regions."""

    total: int
    entries: tuple[RegionEntry, ...]
    KIND: ClassVar[FrameType] = FrameType.LISTED
    PER_PAGE: ClassVar[int] = 500
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<IHH")

    def pack(self) -> bytes:
        parts = [self._LAYOUT.pack(self.total, len(self.entries), 0)]
        for entry in self.entries:
            name = entry.name.encode("ascii")
            parts.append(
                RegionEntry.LAYOUT.pack(entry.length, entry.generation, entry.manifest_bytes, entry.flags, len(name))
            )
            parts.append(name)
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: memoryview) -> Listed:
        total, count, reserved = cls._LAYOUT.unpack_from(data)
        if reserved:
            raise _bad(cls.KIND, "reserved bytes are set")
        at = cls._LAYOUT.size
        entries = []
        for _ in range(count):
            if len(data) - at < RegionEntry.LAYOUT.size:
                raise _bad(cls.KIND, "the entries are cut short")
            length, generation, manifest, flags, size = RegionEntry.LAYOUT.unpack_from(data, at)
            if data[at + RegionEntry.LAYOUT.size - 1]:
                raise _bad(cls.KIND, "reserved bytes are set")
            at += RegionEntry.LAYOUT.size
            entries.append(RegionEntry(_name(cls.KIND, data[at : at + size]), length, generation, manifest, flags))
            if len(entries[-1].name) != size:
                raise _bad(cls.KIND, "the entries are cut short")
            at += size
        if at != len(data):
            raise _bad(cls.KIND, "bytes behind the last entry")
        return cls(total, tuple(entries))


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask for a lease on a region.

    The client chooses the lease's id at random, so that it can ask again, or release, when the answer got lost.
    """

    lease: bytes
    name: str
    importer_eid: bytes = ANY_EID
    KIND: ClassVar[FrameType] = FrameType.FETCH
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<16s16sB")

    def pack(self) -> bytes:
        name = self.name.encode("ascii")
        return self._LAYOUT.pack(self.lease, self.importer_eid, len(name)) + name

    @classmethod
    def unpack(cls, data: memoryview) -> Fetch:
        lease, eid, size = cls._LAYOUT.unpack_from(data)
        if len(data) != cls._LAYOUT.size + size:
            raise _bad(cls.KIND, "the region name is not what its length says")
        return cls(lease, _name(cls.KIND, data[cls._LAYOUT.size :]), eid)


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease: its id, its term, the 80-byte handle and the manifest's JSON."""

    lease: bytes
    term_ms: int
    handle: Handle
    manifest: bytes
    KIND: ClassVar[FrameType] = FrameType.GRANT
    _HEAD: ClassVar[struct.Struct] = struct.Struct("<16sI")
    _SIZE: ClassVar[struct.Struct] = struct.Struct("<I")

    def pack(self) -> Opaque:
        out = Opaque(self._HEAD.pack(self.lease, self.term_ms))
        out += self.handle.pack()
        out += self._SIZE.pack(len(self.manifest))
        out += self.manifest
        return out

    @classmethod
    def unpack(cls, data: memoryview) -> Grant:
        lease, term = cls._HEAD.unpack_from(data)
        (size,) = cls._SIZE.unpack_from(data, 100)
        if len(data) != 104 + size:
            raise _bad(cls.KIND, "the manifest is not what its length says")
        if not term:
            raise _bad(cls.KIND, "a lease term of zero")
        try:
            handle = Handle.unpack(data[20:100])
        except ObmmArgumentError as error:
            # `from None`, and the text only: the frames of the cause hold the handle's fields.
            problem = error.strerror or "not a handle"
            error.__traceback__ = None
        else:
            return cls(lease, term, handle, bytes(data[104:]))
        raise _bad(cls.KIND, problem)


@dataclass(frozen=True, slots=True)
class Renew:
    """The client still uses a lease."""

    lease: bytes
    generation: int
    KIND: ClassVar[FrameType] = FrameType.RENEW
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<16sQ")

    def pack(self) -> bytes:
        return self._LAYOUT.pack(self.lease, self.generation)

    @classmethod
    def unpack(cls, data: memoryview) -> Renew:
        return cls(*cls._LAYOUT.unpack(data))


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease lives on, for `term_ms` milliseconds."""

    lease: bytes
    term_ms: int
    KIND: ClassVar[FrameType] = FrameType.RENEWED
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<16sI")

    def pack(self) -> bytes:
        return self._LAYOUT.pack(self.lease, self.term_ms)

    @classmethod
    def unpack(cls, data: memoryview) -> Renewed:
        lease, term = cls._LAYOUT.unpack(data)
        if not term:
            raise _bad(cls.KIND, "a lease term of zero")
        return cls(lease, term)


@dataclass(frozen=True, slots=True)
class Release:
    """The client has removed its import."""

    lease: bytes
    KIND: ClassVar[FrameType] = FrameType.RELEASE

    def pack(self) -> bytes:
        return self.lease

    @classmethod
    def unpack(cls, data: memoryview) -> Release:
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Released:
    """The owner has taken note of a release."""

    lease: bytes
    KIND: ClassVar[FrameType] = FrameType.RELEASED

    def pack(self) -> bytes:
        return self.lease

    @classmethod
    def unpack(cls, data: memoryview) -> Released:
        return cls(bytes(data))


@dataclass(frozen=True, slots=True)
class Revoked:
    """Drop the mappings and release within ``deadline_ms``: the memory goes away."""

    lease: bytes
    deadline_ms: int
    reason: RevokeReason
    KIND: ClassVar[FrameType] = FrameType.REVOKED
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<16sIB3x")

    def pack(self) -> bytes:
        return self._LAYOUT.pack(self.lease, self.deadline_ms, self.reason)

    @classmethod
    def unpack(cls, data: memoryview) -> Revoked:
        lease, deadline, reason = cls._LAYOUT.unpack(data)
        if any(data[21:24]):
            raise _bad(cls.KIND, "reserved bytes are set")
        if reason not in RevokeReason._value2member_map_:
            raise _bad(cls.KIND, f"reason {reason} is unknown")
        return cls(lease, deadline, RevokeReason(reason))


Message: TypeAlias = (
    Hello
    | Challenge
    | Proof
    | Welcome
    | ErrorMessage
    | Ping
    | Pong
    | List
    | Listed
    | Fetch
    | Grant
    | Renew
    | Renewed
    | Release
    | Released
    | Revoked
    | Status
    | StatusPage
    | Call
    | Reply
)

_PARSERS: dict[FrameType, Callable[[memoryview], Message]] = {kind.KIND: kind.unpack for kind in get_args(Message)}


def parse(frame: Frame) -> Message:
    """The message in a frame (any but TAG, which belongs to the session)."""
    return _PARSERS[frame.type](frame.payload)


def pack(message: Message, request: int = 0) -> Frame:
    """A message as the frame that carries it."""
    return pack_frame(message.KIND, message.pack(), request)
