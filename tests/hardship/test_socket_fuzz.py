# SPDX-License-Identifier: Apache-2.0
"""Garbage, truncated and oversized frames, clients that stop reading: the server lives, others do not notice."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from obmm import emulator
from obmm.emulator.protocol import Call

from .. import seeds
from ..conformance.driver import Driver
from ..conformance.replay.native_process import Nursery
from ..conformance.replay.native_system import build_probe
from ..conformance.replay.port import Account
from .raw_client import (
    CONTROL,
    HELLO,
    IOCTL,
    LARGEST_PAYLOAD,
    MAGIC,
    MEMORY,
    REQUEST,
    VERSION,
    RawClient,
    random_request,
)

ROUNDS = int(os.environ.get("OBMM_FUZZ_ROUNDS", "300"))
#: Far above what a call takes, far below what a stuck server would take.
NOTICED_S = 5.0


class Bystander:
    """A well-behaved process beside the bad ones."""

    world_operations: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        self.fabric = emulator.start(nodes=1)
        self._nursery = Nursery()
        table = {"socket": self.fabric.socket, "node": self.fabric.nodes[0]}
        self._process = self._nursery.spawn({"probe": str(build_probe(folder)), "table": table})
        self.driver = Driver(self, self._process)  # type: ignore[arg-type]
        self.mem_id, self.fd = self.driver.exported()
        self.mapping = self.driver.mapped(self.fd)

    def account(self) -> Account:
        return Account()

    def augment(self, process: object, op: str, given: object, result: dict[str, object]) -> dict[str, object]:
        return result

    def notices_nothing(self) -> None:
        """Its calls work, at once, and nothing broke inside the server."""
        started = time.monotonic()
        assert self.driver.pa_of(self.mem_id).ok
        assert self.driver.own(self.fd, self.mapping, 0x9).ok
        assert self.driver.store(self.mapping, 0, 1).ok
        assert time.monotonic() - started < NOTICED_S
        self.fabric.request("check")
        assert self.fabric.status()["internal_errors"] == 0, (self.fabric.root(0).parent.parent / "log").read_text()

    def close(self) -> None:
        self._process.kill()
        self._nursery.close()
        self.fabric.close()


@pytest.fixture(scope="module")
def bystander(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bystander]:
    """One for all tests: it has to survive every one of them."""
    bystander = Bystander(tmp_path_factory.mktemp("bystander"))
    yield bystander
    bystander.close()


def raw_connection(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5)
    connection.connect(path)
    return connection


def hangs_up(connection: socket.socket) -> bool:
    connection.settimeout(NOTICED_S)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "hello",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n" + bytes(64), id="another protocol"),
        pytest.param(HELLO.pack(MAGIC + 1, VERSION, 1, b""), id="magic"),
        pytest.param(HELLO.pack(MAGIC, VERSION + 1, 1, b""), id="version"),
        pytest.param(HELLO.pack(MAGIC, VERSION, 77, b""), id="kind"),
        pytest.param(HELLO.pack(MAGIC, VERSION, 1, b"\xff" * 64), id="node without end"),
        pytest.param(b"\0" * 72, id="zeroes"),
    ],
)
def test_wrong_hello_is_hung_up_on(bystander: Bystander, hello: bytes) -> None:
    with raw_connection(bystander.fabric.socket) as connection:
        connection.sendall(hello)
        assert hangs_up(connection)
    bystander.notices_nothing()


@pytest.mark.parametrize("sent", [0, 1, 71])
def test_hello_cut_short(bystander: Bystander, sent: int) -> None:
    with raw_connection(bystander.fabric.socket) as connection:
        connection.sendall(HELLO.pack(MAGIC, VERSION, 1, b"")[:sent])
    bystander.notices_nothing()


@pytest.mark.parametrize("size", [LARGEST_PAYLOAD + 1, 1 << 24, (1 << 32) - 1])
def test_oversized_frame_is_hung_up_on(bystander: Bystander, size: int) -> None:
    client = RawClient(bystander.fabric.socket)
    client.socket.sendall(REQUEST.pack(size, IOCTL, 0, 0, 0, 0, 0, 0, 0, 0) + bytes(64))
    assert hangs_up(client.socket)
    bystander.notices_nothing()


@pytest.mark.parametrize("sent", [1, REQUEST.size - 1, REQUEST.size, REQUEST.size + 8])
def test_frame_cut_short(bystander: Bystander, sent: int) -> None:
    client = RawClient(bystander.fabric.socket)
    client.socket.sendall((REQUEST.pack(16, IOCTL, 0, 1, 0x40107802, 0, 0, 0, 0, 0) + bytes(16))[:sent])
    client.close()
    bystander.notices_nothing()


@pytest.mark.parametrize("call", [0, max(Call) + 1, 99, 0xFFFF])
def test_unknown_call_is_hung_up_on(bystander: Bystander, call: int) -> None:
    client = RawClient(bystander.fabric.socket)
    client.send(call)
    assert hangs_up(client.socket)
    bystander.notices_nothing()


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_memory_that_was_not_asked_for(bystander: Bystander, size: int) -> None:
    client = RawClient(bystander.fabric.socket)
    client.send(MEMORY, payload=bytes(size))
    assert hangs_up(client.socket)
    bystander.notices_nothing()


@pytest.mark.parametrize("answer", [b"", b"\1", bytes(600)])
def test_memory_of_another_size_than_asked_for(bystander: Bystander, answer: bytes) -> None:
    """An EXPORT with priv makes the server ask for 512 bytes."""
    client = RawClient(bystander.fabric.socket)
    file = client.open(b"/dev/obmm")
    command = bytearray(224)
    struct.pack_into("<QQQ", command, 0, 2 << 20, 0, 0)
    struct.pack_into("<Q", command, 128, 1)
    struct.pack_into("<H", command, 168, 512)
    struct.pack_into("<Q", command, 216, 0x1000)
    client.send(IOCTL, file, (0xC0E07800, 0x2000), bytes(command))
    client.receive(40)
    client.send(MEMORY, payload=answer)
    assert hangs_up(client.socket)
    bystander.notices_nothing()


def test_client_that_dies_while_the_server_waits_for_its_memory(bystander: Bystander) -> None:
    before = bystander.fabric.status()["nodes"]["a"]["regions"]
    client = RawClient(bystander.fabric.socket)
    file = client.open(b"/dev/obmm")
    command = bytearray(224)
    struct.pack_into("<Q", command, 0, 2 << 20)
    struct.pack_into("<Q", command, 128, 1)
    struct.pack_into("<H", command, 168, 512)
    struct.pack_into("<Q", command, 216, 0x1000)
    client.send(IOCTL, file, (0xC0E07800, 0x2000), bytes(command))
    client.receive(40)
    client.close()
    bystander.notices_nothing()
    assert bystander.fabric.status()["nodes"]["a"]["regions"] == before


def test_client_that_stops_reading(bystander: Bystander) -> None:
    """Its answers pile up until the socket is full; only its own thread waits."""
    client = RawClient(bystander.fabric.socket)
    file = client.open(b"/dev/obmm")
    client.socket.setblocking(False)
    frame = REQUEST.pack(32, IOCTL, 0, file, 0xC0207804, 0x1000, 0, 0, 0, 0)
    frame += struct.pack("<IIQQQ", 1, 0, bystander.mem_id, 0, 0)
    full = 0
    while full < 20:
        try:
            client.socket.send(frame * 64)
            full = 0
        except BlockingIOError:
            full += 1
            time.sleep(0.01)
    bystander.notices_nothing()
    client.close()
    bystander.notices_nothing()


def test_client_that_never_says_hello(bystander: Bystander) -> None:
    silent = [raw_connection(bystander.fabric.socket) for _ in range(40)]
    bystander.notices_nothing()
    for connection in silent:
        connection.close()
    bystander.notices_nothing()


def test_random_frames(bystander: Bystander) -> None:
    seed = seeds.seed()
    chance = random.Random(seed)
    try:
        for number in range(ROUNDS):
            client = RawClient(bystander.fabric.socket)
            files = [client.open(b"/dev/obmm"), client.open(b"/dev/obmm_shmdev%d" % bystander.mem_id)]
            stream = b"".join(random_request(chance, files) for _ in range(chance.randrange(1, 12)))
            if chance.random() < 0.3:
                stream = stream[: chance.randrange(len(stream) + 1)]
            with contextlib.suppress(OSError):  # the server hung up on a frame before
                client.socket.sendall(stream)
            client.drain()
            client.close()
            if number % 20 == 19:
                bystander.notices_nothing()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    bystander.notices_nothing()


def test_random_bytes(bystander: Bystander) -> None:
    seed = seeds.seed()
    chance = random.Random(seed)
    for number in range(ROUNDS):
        client = RawClient(bystander.fabric.socket)
        with contextlib.suppress(OSError):
            client.socket.sendall(chance.randbytes(chance.randrange(1, 2000)))
        client.close()
        if number % 50 == 49:
            bystander.notices_nothing()
    bystander.notices_nothing()


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"nonsense\n",
        b'{"operation": 7}\n',
        b'{"operation": "no-such"}\n',
        b'{"operation": "program", "arguments": {"length": "x"}}\n',
        b'{"operation": "inject", "arguments": {"node": 3}}\n',
        b"[" * 100_000 + b"\n",
        b'"' + b"x" * 3_000_000 + b"\n",
        b"\xff\xfe\x00\n",
    ],
    ids=range(11),
)
def test_control_requests_that_make_no_sense(bystander: Bystander, line: bytes) -> None:
    client = RawClient(bystander.fabric.socket, CONTROL)
    with contextlib.suppress(OSError):
        client.socket.sendall(line)
    client.drain()
    client.close()
    bystander.notices_nothing()
