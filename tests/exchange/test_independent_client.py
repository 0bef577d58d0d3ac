# SPDX-License-Identifier: Apache-2.0
"""A client written from docs/exchange-protocol.md alone, with nothing of the package: what a C or Rust program would do."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from obmm.exchange import Server
from tests.exchange.conftest import TOKEN, UBA, FakeRegion


class Client:
    def __init__(self, port: int, key: bytes | None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 5)
        self.session_key = b""
        self.sent = self.got = 0
        hello = self.frame(0x01, struct.pack("<B7x16sB", 1 if key else 0, os.urandom(16), 3) + b"ind")
        self.sock.sendall(hello)
        if key is not None:
            challenge, _, _ = self.read()
            transcript = hashlib.sha256(hello + challenge).digest()

            def derive(text: bytes) -> bytes:
                return hmac.digest(key, text + b"\0" + transcript, "sha256")

            self.sock.sendall(self.frame(0x03, derive(b"obmm exchange 1 client proof")))
            proof, kind, _ = self.read()
            assert kind == 0x03
            assert proof[16:] == derive(b"obmm exchange 1 server proof")
            self.session_key = derive(b"obmm exchange 1 session")
        welcome, kind, _ = self.receive()
        assert kind == 0x04
        self.instance, self.term_ms, self.idle_ms, self.regions, zero = struct.unpack("<16sIIII", welcome)
        assert zero == 0

    @staticmethod
    def frame(kind: int, payload: bytes, request: int = 0) -> bytes:
        return struct.pack("<4sBBHII", b"OBMX", 1, kind, 0, request, len(payload)) + payload

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            assert piece, "closed"
            data += piece
        return data

    def read(self) -> tuple[bytes, int, int]:
        head = self.exactly(16)
        magic, version, kind, zero, request, length = struct.unpack("<4sBBHII", head)
        assert (magic, version, zero) == (b"OBMX", 1, 0)
        assert length <= 131072
        return head + self.exactly(length), kind, request

    def receive(self) -> tuple[bytes, int, int]:
        frame, kind, request = self.read()
        if self.session_key:
            tag, tag_kind, _ = self.read()
            assert tag_kind == 0x05
            direction, sequence, value = struct.unpack("<B7xQ32s", tag[16:])
            assert (direction, sequence) == (2, self.got)
            covered = struct.pack("<BQ", direction, sequence) + frame
            assert hmac.digest(self.session_key, covered, "sha256") == value
            self.got += 1
        return frame[16:], kind, request

    def ask(self, kind: int, payload: bytes, request: int) -> tuple[bytes, int]:
        frame = self.frame(kind, payload, request)
        self.sock.sendall(frame)
        if self.session_key:
            value = hmac.digest(self.session_key, struct.pack("<BQ", 1, self.sent) + frame, "sha256")
            self.sock.sendall(self.frame(0x05, struct.pack("<B7xQ32s", 1, self.sent, value)))
            self.sent += 1
        answer, answer_kind, number = self.receive()
        assert number == request
        return answer, answer_kind


def conversation(port: int, key: bytes | None) -> None:
    client = Client(port, key)
    assert client.regions == 1

    listed, kind = client.ask(0x10, struct.pack("<I", 0), 1)
    assert kind == 0x11
    assert struct.unpack_from("<IHH", listed) == (1, 1, 0)
    length, generation, manifest_bytes, flags, size, zero = struct.unpack_from("<QQIHBB", listed, 8)
    assert listed[32 : 32 + size] == b"table"
    assert (flags, zero) == (8, 0)

    lease = os.urandom(16)
    grant, kind = client.ask(0x12, lease + bytes(16) + b"\x05table", 2)
    assert kind == 0x13
    assert grant[:16] == lease
    handle = struct.unpack("<QQQII16s16siBBHQ", grant[20:100])
    assert handle[1:4] == (length, UBA, TOKEN)
    assert handle[11] == generation
    (count,) = struct.unpack_from("<I", grant, 100)
    assert count == manifest_bytes
    assert json.loads(grant[104 : 104 + count])["format"] == "obmm-raw"

    renewed, kind = client.ask(0x14, lease + struct.pack("<Q", generation), 3)
    assert (kind, renewed[:16]) == (0x15, lease)
    assert client.ask(0x07, b"", 4) == (b"", 0x08)
    page, kind = client.ask(0x20, struct.pack("<I", 0), 5)
    assert kind == 0x21
    (following, text) = struct.unpack_from("<II", page)
    assert following == 0
    assert json.loads(page[8 : 8 + text])["server"]["leases"] == 1

    error, kind = client.ask(0x14, lease + struct.pack("<Q", generation ^ 1), 6)
    assert (kind, struct.unpack_from("<H", error)) == (0x06, (8,))
    assert client.ask(0x16, lease, 7) == (lease, 0x17)
    client.sock.close()


def test_the_page_is_enough_to_write_a_client_with_a_key(start: Callable[..., Server], key: Path) -> None:
    conversation(start({"table": FakeRegion()}).port, bytes.fromhex(key.read_text()))


def test_the_page_is_enough_to_write_a_plain_client(start: Callable[..., Server]) -> None:
    conversation(start({"table": FakeRegion()}, plain=True).port, None)
