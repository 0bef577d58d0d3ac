# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm.errors import ObmmError
from obmm.exchange.errors import ProtocolError, Refusal
from obmm.exchange.frames import (
    HEADER,
    PAYLOAD_BOUNDS,
    SENT_BY_CLIENT,
    SENT_BY_SERVER,
    SENT_BY_STRANGERS,
    Frame,
    FrameReader,
    FrameType,
    pack_frame,
)
from obmm.exchange.messages import _PARSERS, parse

EVERYTHING = frozenset(FrameType)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(FrameType))
    low, high = PAYLOAD_BOUNDS[kind]
    return pack_frame(
        kind, draw(st.binary(min_size=low, max_size=min(high, low + 200))), draw(st.integers(0, 2**32 - 1))
    )


def refusal(data: bytes, expected: frozenset[FrameType] = EVERYTHING) -> Refusal:
    with pytest.raises(ProtocolError) as caught:
        list(FrameReader(expected).feed(data))
    return caught.value.reason


@given(st.lists(frames(), max_size=5), st.data())
def test_frames_survive_any_chunking(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(bytes(frame.raw) for frame in sent)
    reader = FrameReader(EVERYTHING)
    got = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += reader.feed(stream[:size])
        stream = stream[size:]
    reader.end()
    assert [bytes(frame.raw) for frame in got] == [bytes(frame.raw) for frame in sent]


@given(frames())
def test_one_byte_at_a_time(frame: Frame) -> None:
    reader = FrameReader(EVERYTHING)
    got = [each for byte in bytes(frame.raw) for each in reader.feed(bytes([byte]))]
    assert [(each.type, each.request, bytes(each.payload)) for each in got] == [
        (frame.type, frame.request, bytes(frame.payload))
    ]


@given(frames(), st.data())
def test_an_end_inside_a_frame_is_truncation(frame: Frame, data: st.DataObject) -> None:
    reader = FrameReader(EVERYTHING)
    assert list(reader.feed(frame.raw[: data.draw(st.integers(1, len(frame.raw) - 1))])) == []
    with pytest.raises(ProtocolError) as caught:
        reader.end()
    assert caught.value.reason is Refusal.TRUNCATED


def test_oversize_is_refused_before_the_payload_arrives() -> None:
    for kind, (_, high) in PAYLOAD_BOUNDS.items():
        assert refusal(HEADER.pack(b"OBMX", 1, kind, 0, 0, high + 1)) is Refusal.OVERSIZE
        assert refusal(HEADER.pack(b"OBMX", 1, kind, 0, 0, 0xFFFFFFFF)) is Refusal.OVERSIZE


def test_a_client_cannot_make_the_server_hold_more_than_a_small_frame() -> None:
    assert max(PAYLOAD_BOUNDS[kind][1] for kind in SENT_BY_STRANGERS) + HEADER.size == 177


def test_too_short_payloads_are_refused_at_the_header() -> None:
    for kind, (low, _) in PAYLOAD_BOUNDS.items():
        if low:
            assert refusal(HEADER.pack(b"OBMX", 1, kind, 0, 0, low - 1)) is Refusal.TRUNCATED


def test_wrong_magic_is_refused_at_its_first_byte() -> None:
    assert refusal(b"G") is Refusal.MAGIC  # GET / HTTP/1.1
    assert refusal(b"OBMY") is Refusal.MAGIC


def test_a_tls_peer_is_named() -> None:
    with pytest.raises(ProtocolError, match="TLS"):
        list(FrameReader(EVERYTHING).feed(b"\x16\x03\x01"))


def test_wrong_version_is_refused_at_its_byte_and_named() -> None:
    with pytest.raises(ProtocolError, match="is of version 2, made by a newer obmm") as caught:
        list(FrameReader(EVERYTHING).feed(b"OBMX\2"))
    assert caught.value.reason is Refusal.VERSION


def test_reserved_header_bits_are_refused() -> None:
    for bit in range(16):
        assert refusal(HEADER.pack(b"OBMX", 1, FrameType.PING, 1 << bit, 0, 0)) is Refusal.RESERVED


def test_types_are_refused_in_the_wrong_direction() -> None:
    for kind in FrameType:
        low, _ = PAYLOAD_BOUNDS[kind]
        raw = HEADER.pack(b"OBMX", 1, kind, 0, 0, low) + bytes(low)
        for expected in (SENT_BY_CLIENT, SENT_BY_SERVER, SENT_BY_STRANGERS):
            if kind not in expected:
                assert refusal(raw, expected) is Refusal.TYPE


def test_unknown_types_are_refused() -> None:
    for number in set(range(256)) - set(FrameType):
        assert refusal(HEADER.pack(b"OBMX", 1, number, 0, 0, 0)) is Refusal.TYPE


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_protocol_errors_only(data: bytes) -> None:
    try:
        for frame in FrameReader(EVERYTHING).feed(data):
            if frame.type is not FrameType.TAG:
                parse(frame)
    except ProtocolError:
        pass


@given(st.sampled_from(sorted(_PARSERS)), st.data())
def test_arbitrary_payloads_parse_or_raise_protocol_errors(kind: FrameType, data: st.DataObject) -> None:
    low, high = PAYLOAD_BOUNDS[kind]
    frame = pack_frame(kind, data.draw(st.binary(min_size=low, max_size=min(high, low + 200))))
    try:
        message = parse(frame)
    except ProtocolError as error:
        assert error.reason is Refusal.PAYLOAD
    else:
        if kind is not FrameType.ERROR:  # whose text is cleaned
            assert bytes(message.pack()) == bytes(frame.payload)


def test_header_layout() -> None:
    assert HEADER.size == struct.calcsize("<4sBBHII") == 16
    assert issubclass(ProtocolError, ObmmError)
