# SPDX-License-Identifier: Apache-2.0
"""Frames: the unit of the wire (docs/exchange-protocol.md, section 2).

A frame is a 16-byte header and a payload.  The header is checked as soon as
its 16 bytes are there, before anything is reserved for the payload, so that a
peer never makes us hold more than the largest payload of the type it names.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from obmm.errors import other_version
from obmm.exchange.errors import ProtocolError, Refusal
from obmm.exchange.secrets import Opaque

MAGIC = b"OBMX"
VERSION = 1
HEADER = struct.Struct("<4sBBHII")  # magic, version, type, reserved, request, payload length
MAX_MANIFEST = 64 * 1024
MAX_PAYLOAD = 128 * 1024
MAX_CALL = 64 * 1024


class FrameType(enum.IntEnum):
    """The kinds of frames (docs/exchange-protocol.md)."""

    HELLO = 0x01
    CHALLENGE = 0x02
    PROOF = 0x03
    WELCOME = 0x04
    TAG = 0x05
    ERROR = 0x06
    PING = 0x07
    PONG = 0x08
    LIST = 0x10
    LISTED = 0x11
    FETCH = 0x12
    GRANT = 0x13
    RENEW = 0x14
    RENEWED = 0x15
    RELEASE = 0x16
    RELEASED = 0x17
    REVOKED = 0x18
    STATUS = 0x20
    STATUS_PAGE = 0x21
    CALL = 0x30
    REPLY = 0x31


# Smallest and largest payload of each type; nothing outside is ever buffered.
PAYLOAD_BOUNDS: dict[FrameType, tuple[int, int]] = {
    FrameType.HELLO: (25, 25 + 64),
    FrameType.CHALLENGE: (16, 16),
    FrameType.PROOF: (32, 32),
    FrameType.WELCOME: (32, 32),
    FrameType.TAG: (48, 48),
    FrameType.ERROR: (4, 4 + 512),
    FrameType.PING: (0, 0),
    FrameType.PONG: (0, 0),
    FrameType.LIST: (4, 4),
    FrameType.LISTED: (8, MAX_PAYLOAD),
    FrameType.FETCH: (34, 33 + 128),
    FrameType.GRANT: (104, 104 + MAX_MANIFEST),
    FrameType.RENEW: (24, 24),
    FrameType.RENEWED: (20, 20),
    FrameType.RELEASE: (16, 16),
    FrameType.RELEASED: (16, 16),
    FrameType.REVOKED: (24, 24),
    FrameType.STATUS: (4, 4),
    FrameType.STATUS_PAGE: (8, MAX_PAYLOAD),
    FrameType.CALL: (2, MAX_CALL),
    FrameType.REPLY: (0, MAX_PAYLOAD),
}

SENT_BY_CLIENT = frozenset(
    {
        FrameType.HELLO,
        FrameType.PROOF,
        FrameType.TAG,
        FrameType.PING,
        FrameType.LIST,
        FrameType.FETCH,
        FrameType.RENEW,
        FrameType.RELEASE,
        FrameType.STATUS,
        FrameType.CALL,
    }
)
# Before the handshake is over: an unauthenticated peer must not make the server hold a call.
SENT_BY_STRANGERS = SENT_BY_CLIENT - {FrameType.CALL}
SENT_BY_SERVER = frozenset(FrameType) - (SENT_BY_CLIENT - {FrameType.PROOF, FrameType.TAG})


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; ``raw`` is all of it (header and payload) as it stands on the wire."""

    type: FrameType
    request: int
    raw: Opaque

    @property
    def payload(self) -> memoryview:
        return memoryview(self.raw)[HEADER.size :]

    def __repr__(self) -> str:
        return f"<Frame {self.type.name} request={self.request} payload={len(self.raw) - HEADER.size} bytes>"


def pack_frame(kind: FrameType, payload: bytes | bytearray = b"", request: int = 0) -> Frame:
    """A frame ready to send; the payload is copied."""
    low, high = PAYLOAD_BOUNDS[kind]
    if not low <= len(payload) <= high:
        raise ProtocolError(
            Refusal.OVERSIZE, f"a {kind.name} payload of {len(payload)} bytes; {low}..{high} are allowed"
        )
    raw = Opaque(HEADER.pack(MAGIC, VERSION, kind, 0, request, len(payload)))
    raw += payload
    return Frame(kind, request, raw)


class FrameReader:
    """Cuts a byte stream into frames, whatever the sizes of the chunks.

    ``expected`` are the types that the other side may send at all.
    """

    def __init__(self, expected: frozenset[FrameType]) -> None:
        self._expected = expected
        self._buffer = Opaque()

    def expect(self, expected: frozenset[FrameType]) -> None:
        """From the next frame on the other side may send these types."""
        self._expected = expected

    @property
    def partial(self) -> bool:
        """True in the middle of a frame."""
        return bool(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Take ``data`` in and yield the frames that are complete.

        Raises ProtocolError at the first thing wrong; the stream is then of
        no further use, since nothing says where the next frame starts.
        """
        self._buffer += data
        while True:
            frame = self._cut()
            if frame is None:
                return
            yield frame

    def end(self) -> None:
        """The stream ended: an error in the middle of a frame."""
        if self._buffer:
            raise ProtocolError(Refusal.TRUNCATED, f"the stream ended {len(self._buffer)} bytes into a frame")

    def _cut(self) -> Frame | None:
        buffer = self._buffer
        # A wrong magic or version is refused at its first byte, not at the sixteenth: an
        # HTTP or TLS client gets its answer although it never sends a whole header of ours.
        if not MAGIC.startswith(buffer[:4]):
            if buffer[0] in (0x15, 0x16):
                raise ProtocolError(Refusal.MAGIC, "the peer speaks TLS; this side does not")
            raise ProtocolError(Refusal.MAGIC, "the peer does not speak the obmm exchange protocol (no OBMX magic)")
        if len(buffer) > 4 and buffer[4] != VERSION:
            raise ProtocolError(Refusal.VERSION, other_version("the peer's protocol", buffer[4], VERSION))
        if len(buffer) < HEADER.size:
            return None
        _, _, number, reserved, request, length = HEADER.unpack_from(buffer)
        try:
            kind = FrameType(number)
        except ValueError:
            raise ProtocolError(Refusal.TYPE, f"frame type {number:#04x} is unknown") from None
        if kind not in self._expected:
            raise ProtocolError(Refusal.TYPE, f"a {kind.name} frame is never sent in this direction")
        if reserved:
            raise ProtocolError(Refusal.RESERVED, "reserved header bits are set")
        low, high = PAYLOAD_BOUNDS[kind]
        if length > high:
            raise ProtocolError(
                Refusal.OVERSIZE, f"a {kind.name} payload of {length} bytes; at most {high} are allowed"
            )
        if length < low:
            raise ProtocolError(
                Refusal.TRUNCATED, f"a {kind.name} payload of {length} bytes; at least {low} are needed"
            )
        end = HEADER.size + length
        if len(buffer) < end:
            return None
        raw = Opaque(memoryview(buffer)[:end])
        del buffer[:end]
        return Frame(kind, request, raw)
