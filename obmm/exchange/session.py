# SPDX-License-Identifier: Apache-2.0
"""One protected session, without a socket: bytes in, messages out, and the other way round.

Both sides begin with a handshake (docs/exchange-protocol.md, section 3).  With
a key, every frame behind it is followed by a TAG frame; without one the frames
are the same and the TAG frames are not there.
"""

from __future__ import annotations

import abc
import hashlib
import hmac
import os
import struct
from collections.abc import Iterator, Sequence

from obmm.exchange.errors import AuthenticationError, ProtocolError, Refusal
from obmm.exchange.frames import (
    SENT_BY_CLIENT,
    SENT_BY_SERVER,
    SENT_BY_STRANGERS,
    Frame,
    FrameReader,
    FrameType,
    pack_frame,
)
from obmm.exchange.keys import Key
from obmm.exchange.messages import Challenge, ErrorMessage, Hello, Message, Mode, Proof, Welcome, pack, parse
from obmm.exchange.secrets import Opaque

CLIENT_TO_SERVER = 1
SERVER_TO_CLIENT = 2

_LABEL_CLIENT = b"obmm exchange 1 client proof"
_LABEL_SERVER = b"obmm exchange 1 server proof"
_LABEL_SESSION = b"obmm exchange 1 session"
_TAG = struct.Struct("<B7xQ32s")
_COVERED = struct.Struct("<BQ")


class Tagger:
    """Makes and checks the TAG frames of one session.

    The tag covers direction, sequence number, and the whole frame: header and payload.  Direction and number travel
    in the TAG frame too, so that a *genuine* frame in the wrong place can be told from a forged one.
    """

    def __init__(self, session_key: Opaque, sending: int) -> None:
        self._mac = hmac.new(session_key, digestmod=hashlib.sha256)
        session_key.wipe()
        self._sending = sending
        self._next_out = 0
        self._next_in = 0

    def _compute(self, direction: int, sequence: int, raw: Opaque) -> bytes:
        mac = self._mac.copy()
        mac.update(_COVERED.pack(direction, sequence))
        mac.update(raw)
        return mac.digest()

    def tag(self, frame: Frame) -> Frame:
        """The TAG frame to send right behind ``frame``."""
        payload = _TAG.pack(self._sending, self._next_out, self._compute(self._sending, self._next_out, frame.raw))
        self._next_out += 1
        return pack_frame(FrameType.TAG, payload)

    def check(self, frame: Frame, tag: Frame) -> None:
        """Raise ProtocolError unless ``tag`` makes ``frame`` the next frame of the other side."""
        direction, sequence, given = _TAG.unpack(tag.payload)
        if not hmac.compare_digest(self._compute(direction, sequence, frame.raw), given):
            raise ProtocolError(
                Refusal.TAMPERED, f"the tag of a {frame.type.name} frame does not fit: changed on the way"
            )
        if any(tag.payload[1:8]) or tag.request:
            raise ProtocolError(Refusal.RESERVED, "reserved bytes of a TAG frame are set")
        if direction == self._sending:
            raise ProtocolError(Refusal.REFLECTED, f"a {frame.type.name} frame of our own came back")
        if sequence < self._next_in:
            raise ProtocolError(Refusal.REPLAYED, f"a {frame.type.name} frame came a second time")
        if sequence > self._next_in:
            raise ProtocolError(
                Refusal.REORDERED, f"{sequence - self._next_in} frame(s) before a {frame.type.name} frame are missing"
            )
        self._next_in += 1


class Session(abc.ABC):
    """What both sides share: frames cut from the stream, tags checked, messages parsed."""

    def __init__(self, mode: Mode, sending: int, expected: frozenset[FrameType]) -> None:
        self.mode = mode
        self.established = False
        self.key: Key | None = None
        self._sending = sending
        self._reader = FrameReader(expected)
        self._tagger: Tagger | None = None
        self._untagged: Frame | None = None
        self._out: list[Frame] = []
        self.queued = 0  # bytes that `take` will give

    @property
    def partial(self) -> bool:
        """True in the middle of a frame, or between a frame and its tag."""
        return self._reader.partial or self._untagged is not None

    def receive(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[Message, int]]:
        """Yield (message, request number) for everything complete in the stream; handshake messages are consumed.

        Nothing is read ahead: who stops iterating can go on later with ``receive(b"")``.
        Raises ProtocolError or AuthenticationError, after which the connection must be closed.
        """
        for frame in self._reader.feed(data):
            checked = self._authenticate(frame)
            if checked is None:
                continue
            message = parse(checked)
            if self.established:
                if message.KIND in _HANDSHAKE:
                    raise ProtocolError(Refusal.UNEXPECTED, f"a {message.KIND.name} frame after the handshake")
                yield message, checked.request
            elif checked.request and message.KIND in _HANDSHAKE:
                raise ProtocolError(Refusal.RESERVED, f"a {message.KIND.name} frame with a request number")
            else:
                yield from self._handshake(message, checked)

    def send(self, message: Message, request: int = 0) -> None:
        """Queue a message; `take` gives the bytes."""
        frame = pack(message, request)
        self._queue(frame)
        if self._tagger is not None:
            self._queue(self._tagger.tag(frame))

    def take(self) -> Opaque:
        """The bytes to send now."""
        out = Opaque()
        for frame in self._out:
            out += frame.raw
        self._out.clear()
        self.queued = 0
        return out

    def end(self) -> None:
        """The stream ended; ProtocolError if that was in the middle of a frame."""
        if self._untagged is not None:
            raise ProtocolError(Refusal.TRUNCATED, "the stream ended between a frame and its tag")
        self._reader.end()

    def _queue(self, frame: Frame) -> None:
        self._out.append(frame)
        self.queued += len(frame.raw)

    def _authenticate(self, frame: Frame) -> Frame | None:
        if self._tagger is None:
            if frame.type is FrameType.TAG:
                raise ProtocolError(Refusal.UNEXPECTED, "a TAG frame in a session without tags")
            return frame
        if self._untagged is None:
            if frame.type is FrameType.TAG:
                raise ProtocolError(Refusal.UNEXPECTED, "a TAG frame that follows no frame")
            self._untagged = frame
            return None
        if frame.type is not FrameType.TAG:
            raise ProtocolError(Refusal.UNTAGGED, f"a {self._untagged.type.name} frame without its tag")
        self._tagger.check(self._untagged, frame)
        checked, self._untagged = self._untagged, None
        return checked

    def _start_tags(self, key: Key, transcript: bytes) -> None:
        self._tagger = Tagger(key.derive(_LABEL_SESSION, transcript), self._sending)
        self.key = key

    @abc.abstractmethod
    def _handshake(self, message: Message, frame: Frame) -> Iterator[tuple[Message, int]]:
        """Take one step."""


_HANDSHAKE = frozenset({FrameType.HELLO, FrameType.CHALLENGE, FrameType.PROOF, FrameType.WELCOME})


def _transcript(hello: Frame, challenge: Frame) -> bytes:
    """Both frames whole: version, mode and names are covered as well as the two nonces."""
    return hashlib.sha256(hello.raw + challenge.raw).digest()


class ClientSession(Session):
    """The importer's side.  `welcome` is set once the session is established."""

    def __init__(self, mode: Mode, key: Key | None = None, client: str = "", *, nonce: bytes | None = None) -> None:
        super().__init__(mode, CLIENT_TO_SERVER, SENT_BY_SERVER)
        if (mode is Mode.KEY) != (key is not None):
            raise ValueError("a key belongs to mode KEY, and only to it")
        self.welcome: Welcome | None = None
        self._key = key
        self._transcript = b""
        self._nonce = os.urandom(16) if nonce is None else nonce
        self._hello = pack(Hello(mode, self._nonce, client))
        self._queue(self._hello)
        self._awaited = FrameType.CHALLENGE if key is not None else FrameType.WELCOME

    def _handshake(self, message: Message, frame: Frame) -> Iterator[tuple[Message, int]]:
        if isinstance(message, ErrorMessage):
            raise _refused(message)
        if message.KIND is not self._awaited:
            raise ProtocolError(
                Refusal.UNEXPECTED,
                f"the server answered with {message.KIND.name} where {self._awaited.name} was due; "
                "nothing weaker than what this side asked for is accepted",
            )
        if isinstance(message, Challenge) and self._key is not None:
            if message.nonce == self._nonce:
                raise ProtocolError(Refusal.REFLECTED, "our own challenge came back")
            self._transcript = _transcript(self._hello, frame)
            self.send(Proof(self._key.derive(_LABEL_CLIENT, self._transcript)))
            self._awaited = FrameType.PROOF
        elif isinstance(message, Proof) and self._key is not None:
            if not hmac.compare_digest(self._key.derive(_LABEL_SERVER, self._transcript), message.proof):
                raise AuthenticationError(
                    "the server could not prove that it holds the key; this is not the server you meant, "
                    "or its key file differs from yours"
                )
            self._start_tags(self._key, self._transcript)
            self._awaited = FrameType.WELCOME
        elif isinstance(message, Welcome):
            self.welcome = message
            self.established = True
        yield from ()


class ServerSession(Session):
    """The exporter's side.  The caller sends WELCOME when `ready` turns true."""

    def __init__(self, mode: Mode, keys: Sequence[Key] = (), *, nonce: bytes | None = None) -> None:
        super().__init__(mode, SERVER_TO_CLIENT, SENT_BY_STRANGERS)
        if (mode is Mode.KEY) != bool(keys):
            raise ValueError("keys belong to mode KEY, and only to it")
        self.client = ""
        self.ready = False
        self._keys = tuple(keys)
        self._nonce = os.urandom(16) if nonce is None else nonce
        self._transcript = b""

    def welcome(self, message: Welcome) -> None:
        self.send(message)
        self.established = True
        self._reader.expect(SENT_BY_CLIENT)

    def _handshake(self, message: Message, frame: Frame) -> Iterator[tuple[Message, int]]:
        if self.ready:
            raise ProtocolError(Refusal.UNEXPECTED, f"a {message.KIND.name} frame before WELCOME")
        if isinstance(message, Hello) and not self._transcript:
            if message.mode is not self.mode:
                raise ProtocolError(
                    Refusal.MODE,
                    f"the client asked for {message.mode.name} mode, this server runs {self.mode.name} mode",
                )
            self.client = message.client
            if not self._keys:
                self.ready = True
            else:
                challenge = pack(Challenge(self._nonce))
                self._transcript = _transcript(frame, challenge)
                self._queue(challenge)
        elif isinstance(message, Proof) and self._transcript:
            # Every key is tried, so that the time does not tell which one fitted.
            fitting = [
                key
                for key in self._keys
                if hmac.compare_digest(key.derive(_LABEL_CLIENT, self._transcript), message.proof)
            ]
            if not fitting:
                raise AuthenticationError("the client could not prove that it holds a key of this server")
            self._queue(pack(Proof(fitting[0].derive(_LABEL_SERVER, self._transcript))))
            self._start_tags(fitting[0], self._transcript)
            self.ready = True
        else:
            raise ProtocolError(Refusal.UNEXPECTED, f"a {message.KIND.name} frame in the handshake")
        yield from ()


def _refused(message: ErrorMessage) -> Exception:
    """The server's refusal of the whole session, before anything proved who it is."""
    if message.code is Refusal.AUTHENTICATION:
        return AuthenticationError(
            "the server does not accept this key: compare key identities on both sides, or the key was rotated"
        )
    return ProtocolError(message.code, f"the server refused the session: {message.text}")


__all__ = ["ClientSession", "ServerSession", "Session", "Tagger"]
