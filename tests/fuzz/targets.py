# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed: every parser that sees bytes of another machine.

A target takes bytes and returns; it raises `Finding` when a rule is broken, and whatever a parser raises but its own
refusal is a finding too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from obmm.errors import ObmmArgumentError
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.call_messages import Ping
from obmm.exchange.errors import AuthenticationError, ProtocolError
from obmm.exchange.frames import HEADER, PAYLOAD_BOUNDS, FrameReader, FrameType, pack_frame
from obmm.exchange.keys import Key
from obmm.exchange.messages import Mode, Release, Welcome, parse
from obmm.exchange.session import ClientSession, ServerSession
from obmm.handle import Handle
from obmm.region.header import RegionHeader
from tests.exchange.make_golden import HANDLE, KEY, LEASE, MANIFEST


class Finding(AssertionError):
    """A rule is broken."""


EVERY_TYPE = frozenset(FrameType)
PARSED = [kind for kind in FrameType if kind is not FrameType.TAG]
GOLDEN_KEY = Key(KEY, "golden")
LARGEST = HEADER.size + max(high for _, high in PAYLOAD_BOUNDS.values())


def frames(data: bytes) -> None:
    """A stream, cut at a place that the first byte chooses: both ways give the same frames; messages pack to their bytes."""
    cut, stream = (data[0], data[1:]) if data else (0, b"")
    whole, pieces = _frames_of([stream]), _frames_of([stream[:cut], stream[cut:]])
    if whole != pieces:
        raise Finding("the frames depend on the chunks")


def _frames_of(chunks: list[bytes]) -> tuple[list[bytes], str]:
    reader = FrameReader(EVERY_TYPE)
    found = []
    try:
        for chunk in chunks:
            for frame in reader.feed(chunk):
                if len(frame.raw) > LARGEST:
                    raise Finding("a frame beyond the limit")
                found.append(bytes(frame.raw))
                if frame.type is not FrameType.TAG:
                    _parse(frame.type, bytes(frame.payload), frame.request)
    except ProtocolError as error:
        return found, error.reason.name
    return found, ""


def payloads(data: bytes) -> None:
    """The payload of a type that the first byte chooses."""
    if not data:
        return
    kind = PARSED[data[0] % len(PARSED)]
    low, high = PAYLOAD_BOUNDS[kind]
    if low <= len(data) - 1 <= high:
        try:
            _parse(kind, data[1:], 1)
        except ProtocolError:
            return


def _parse(kind: FrameType, payload: bytes, request: int) -> None:
    message = parse(pack_frame(kind, payload, request))
    if kind is not FrameType.ERROR and bytes(message.pack()) != payload:  # an error's text is cleaned
        raise Finding(f"{kind.name}: what was parsed packs to other bytes")


def handle(data: bytes) -> None:
    try:
        parsed = Handle.unpack(data)
    except ObmmArgumentError:
        return
    if parsed.pack() != data:
        raise Finding("the handle packs to other bytes")
    if f"{parsed.uba:x}" in repr(parsed) and parsed.uba > 0xFFFF_FFFF:
        raise Finding("the handle shows its uba")


def header(data: bytes) -> None:
    try:
        parsed = RegionHeader.unpack(data)
    except ValueError:
        return
    if parsed.pack()[40:44] != data[40:44]:
        raise Finding("the header packs to another state")


def manifest(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(document, dict):
        try:
            ArrayManifest.parse(document)
        except ObmmArgumentError:
            return


def _server() -> tuple[ClientSession, ServerSession]:
    client = ClientSession(Mode.KEY, GOLDEN_KEY, "c", nonce=bytes(16))
    server = ServerSession(Mode.KEY, [GOLDEN_KEY], nonce=bytes(15) + b"\1")
    for _ in range(2):
        list(server.receive(client.take()))
        list(client.receive(server.take()))
    server.welcome(Welcome(bytes(16), 1, 1, 0))
    list(client.receive(server.take()))
    return client, server


def session(data: bytes) -> None:
    """An attacker who changes the stream of an authenticated session: nothing but the genuine frames, in order, arrives."""
    client, server = _server()
    client.send(Ping(), 1)
    client.send(Release(LEASE), 2)
    stream = bytearray(client.take())
    genuine = [(Ping(), 1), (Release(LEASE), 2)]
    changed = _mutate(stream, data)
    got = []
    try:
        for each in server.receive(changed):
            got.append(each)
    except (ProtocolError, AuthenticationError):
        pass
    if got != genuine[: len(got)]:
        raise Finding("a frame arrived that was not sent")


def _mutate(stream: bytearray, data: bytes) -> bytearray:
    """Edits that the fuzzer's bytes spell: position, kind, value."""
    for at in range(0, len(data) - 2, 3):
        where, kind, value = data[at] % max(1, len(stream)), data[at + 1] % 4, data[at + 2]
        if kind == 0 and stream:
            stream[where] ^= value
        elif kind == 1:
            del stream[where : where + value]
        elif kind == 2:
            stream[where:where] = stream[where : where + value]
        else:
            stream[where:where] = bytes([value])
    return stream


def server_handshake(data: bytes) -> None:
    """Whatever a stranger sends, a session without the key is never ready."""
    server = ServerSession(Mode.KEY, [GOLDEN_KEY])
    with contextlib.suppress(ProtocolError, AuthenticationError):
        list(server.receive(data))
    if server.ready:
        raise Finding("a session without a proof")


def client_handshake(data: bytes) -> None:
    client = ClientSession(Mode.KEY, GOLDEN_KEY)
    with contextlib.suppress(ProtocolError, AuthenticationError):
        list(client.receive(data))
    if client.established:
        raise Finding("a session without a proof")


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "payloads": payloads,
    "handle": handle,
    "header": header,
    "manifest": manifest,
    "session": session,
    "server_handshake": server_handshake,
    "client_handshake": client_handshake,
}


def seeds() -> dict[str, list[bytes]]:
    """Good input of each target, to start from."""
    from tests.exchange import make_golden

    plain = [bytes.fromhex(each["hex"]) for each in make_golden.conversation(Mode.PLAIN)]
    keyed = [bytes.fromhex(each["hex"]) for each in make_golden.conversation(Mode.KEY)]
    numbers = {kind: index for index, kind in enumerate(PARSED)}
    document = b'{"format":"obmm-array","version":1,"dtype":[["a","<f4"],["b",[["c","|S3"]],[2]]],"shape":[3,4]}'
    return {
        "frames": [b"\x07" + b"".join(plain[:4]), *(b"\x05" + frame for frame in plain + keyed)],
        "payloads": [
            bytes([numbers[FrameType(frame[5])]]) + frame[16:] for frame in plain if FrameType(frame[5]) in numbers
        ],
        "handle": [HANDLE.pack()],
        "header": [RegionHeader(generation=5, data_bytes=4096).pack()[:200]],
        "manifest": [MANIFEST, document],
        "session": [b"", b"\x30\x00\x01", b"\x40\x02\x40"],
        "server_handshake": [keyed[0], keyed[0] + keyed[2]],
        "client_handshake": [keyed[1], keyed[1] + keyed[3]],
    }
