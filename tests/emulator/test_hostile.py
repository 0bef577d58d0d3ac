# SPDX-License-Identifier: Apache-2.0
"""Clients that lie, stop, flood or die in the middle: the server survives and the others do not notice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from obmm import emulator
from obmm.emulator import ControlClient, ControlError, Fabric
from obmm.emulator.protocol import HELLO, MAGIC, PAYLOAD_MAX, REQUEST, VERSION, WELCOME, Call, Kind

from .children import Child
from .node import MIB, Node


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with emulator.start(nodes=2) as fabric:
        yield fabric
        fabric.check()
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture
def other(fabric: Fabric) -> Iterator[Node]:
    """A well-behaved client that must not notice anything."""
    node = Node(fabric, "a")
    yield node
    node.unexport(node.export().mem_id)
    node.close()


def connect(fabric: Fabric) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect(fabric.socket)
    stream.settimeout(20)
    return stream


def hello(fabric: Fabric, kind: int = Kind.CALLS, version: int = VERSION, node: bytes = b"a") -> socket.socket:
    """A connection after its welcome."""
    stream = connect(fabric)
    stream.sendall(HELLO.pack(MAGIC, version, kind, node))
    welcome = stream.recv(WELCOME.size, socket.MSG_WAITALL)
    assert len(welcome) == WELCOME.size
    return stream


def request(call: int, *arguments: int, file: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    return REQUEST.pack(len(payload), call, flags, file, *arguments, *[0] * (6 - len(arguments))) + payload


def is_dropped(stream: socket.socket) -> bool:
    """The server has ended the connection."""
    with contextlib.suppress(ConnectionError):
        while stream.recv(65536):
            pass
    return True


def test_garbage_instead_of_hello_is_dropped(fabric: Fabric, other: Node) -> None:
    stream = connect(fabric)
    stream.sendall(os.urandom(HELLO.size))
    assert is_dropped(stream)


@pytest.mark.parametrize(
    ("version", "kind", "node", "error"),
    [(99, 1, b"a", "EPROTO"), (VERSION, 7, b"a", "EPROTO"), (VERSION, 1, b"absent", "ENODEV")],
)
def test_wrong_hello_is_refused_with_its_reason(
    fabric: Fabric, version: int, kind: int, node: bytes, error: str
) -> None:
    import errno

    stream = connect(fabric)
    stream.sendall(HELLO.pack(MAGIC, version, kind, node))
    welcome = WELCOME.unpack(stream.recv(WELCOME.size, socket.MSG_WAITALL))
    assert errno.errorcode[welcome[3]] == error
    assert is_dropped(stream)


@pytest.mark.parametrize(
    "part", [b"", b"OB", HELLO.pack(MAGIC, VERSION, 1, b"a") + REQUEST.pack(0, 1, 0, 0, *[0] * 6)[:30]]
)
def test_truncated_stream_is_dropped(fabric: Fabric, other: Node, part: bytes) -> None:
    stream = connect(fabric)
    stream.sendall(part)
    stream.shutdown(socket.SHUT_WR)
    assert is_dropped(stream)


def test_oversized_payload_is_dropped(fabric: Fabric, other: Node) -> None:
    stream = hello(fabric)
    stream.sendall(REQUEST.pack(PAYLOAD_MAX + 1, Call.IOCTL, 0, 0, *[0] * 6))
    assert is_dropped(stream)


def test_unknown_call_is_dropped(fabric: Fabric, other: Node) -> None:
    stream = hello(fabric)
    stream.sendall(request(4711))
    assert is_dropped(stream)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from([int(call) for call in Call]),
            st.lists(
                st.one_of(st.integers(0, 8), st.integers(0, (1 << 64) - 1), st.sampled_from([1 << 63, 4096, 1 << 47])),
                max_size=6,
            ),
            st.one_of(st.binary(max_size=64), st.sampled_from([b"/dev/obmm", b"/dev/obmm_shmdev1", b"\xff" * 16384])),
            st.integers(0, 1),
        ),
        max_size=8,
    )
)
def test_any_sequence_of_well_formed_frames_is_survived(
    fabric: Fabric, calls: list[tuple[int, list[int], bytes, int]]
) -> None:
    stream = hello(fabric)
    with stream, contextlib.suppress(ConnectionError):
        for call, arguments, payload, flags in calls:
            stream.sendall(request(call, *arguments, payload=payload, flags=flags))
        stream.shutdown(socket.SHUT_WR)
        assert is_dropped(stream)
    assert fabric.status()["internal_errors"] == 0


def test_requests_on_open_files_with_any_arguments(fabric: Fabric, other: Node) -> None:
    """The same with real files and mappings behind them."""
    chance = random.Random(1)
    mem_id = other.export().mem_id
    fd = other.open_region(mem_id)
    inode = os.fstat(fd).st_ino
    numbers = [0, 1, 3, 0x10, 4096, 2 * MIB, 1 << 47, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1]
    calls = [Call.IOCTL, Call.MMAP, Call.MUNMAP, Call.MPROTECT, Call.MREMAP, Call.MADVISE, Call.MSYNC, Call.FILE]
    for _ in range(300):
        with hello(fabric) as stream, contextlib.suppress(ConnectionError):
            for _ in range(4):
                arguments = [chance.choice(numbers) for _ in range(6)]
                if chance.random() < 0.3:
                    arguments[0] = 0x40185800
                payload = struct.pack(
                    "<QQBB6x", chance.choice(numbers), chance.choice(numbers), chance.randrange(256), 4
                )
                stream.sendall(request(chance.choice(calls), *arguments, file=inode, payload=payload))
            stream.shutdown(socket.SHUT_WR)
            assert is_dropped(stream)
    assert fabric.status()["internal_errors"] == 0
    os.close(fd)
    other.unexport(mem_id)


def test_a_client_that_never_reads_stalls_only_itself(fabric: Fabric, other: Node) -> None:
    stream = hello(fabric)
    stream.setblocking(False)
    opens = request(Call.OPEN, os.O_RDWR, os.geteuid(), payload=b"/dev/obmm")
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while True:
            stream.send(opens)
    mem_id = other.export().mem_id
    os.close(other.open_region(mem_id))
    other.unexport(mem_id)
    stream.close()


def test_a_stopped_client_stalls_only_itself(fabric: Fabric, other: Node) -> None:
    mem_id = other.export().mem_id

    def body() -> None:
        mine = Node(fabric, "a")
        mine.map(mine.open_region(mem_id), 2 * MIB)
        os.kill(os.getpid(), signal.SIGSTOP)

    child = Child.__new__(Child)
    ready, child._go = os.pipe()
    child._ended = False
    child.pid = os.fork()
    if not child.pid:
        body()
        os._exit(0)
    os.close(ready)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    fd = other.open_region(mem_id)
    start = other.map(fd, 2 * MIB)
    other.own(fd, start, 2 * MIB, 0x5)
    other.unmap(start, 2 * MIB)
    os.close(fd)
    with pytest.raises(OSError, match="busy"):
        other.unexport(mem_id)
    child.kill()
    other.unexport(mem_id)


def test_death_while_memory_is_asked_for(fabric: Fabric, other: Node) -> None:
    stream = hello(fabric)
    stream.sendall(request(Call.OPEN, os.O_RDWR, os.geteuid(), payload=b"/dev/obmm"))
    _, [fd], _, _ = socket.recv_fds(stream, 40, 1)
    command = bytearray(224)
    struct.pack_into("<Q", command, 0, 2 * MIB)
    struct.pack_into("<QQ", command, 128, 1, 1)
    struct.pack_into("<HH", command, 168, 16, 0)
    struct.pack_into("<Q", command, 216, 0x1000)
    stream.sendall(request(Call.IOCTL, 0xC0E07800, 0x2000, file=os.fstat(fd).st_ino, payload=bytes(command)))
    assert struct.unpack("<I", stream.recv(4))[0] == 2  # it asks for priv
    stream.close()
    os.close(fd)


def test_many_silent_connections_keep_no_client_out(fabric: Fabric, other: Node) -> None:
    silent = [connect(fabric) for _ in range(300)]
    started = time.monotonic()
    assert other.export().mem_id > 0
    assert fabric.status()["name"]
    assert time.monotonic() - started < 8  # less than the patience with a hello
    for stream in silent:
        stream.close()
    for region in fabric.status()["nodes"]["a"]["regions"]:
        other.unexport(region["mem_id"])


@pytest.mark.parametrize(
    "document",
    [b"not json", b"[]", b"7", b'{"op": "status", "extra": 1}', b'{"op": "nothing"}', b'{"op": ["x"]}', b"{}"],
)
def test_bad_control_requests_are_answered_or_dropped(fabric: Fabric, other: Node, document: bytes) -> None:
    stream = hello(fabric, Kind.CONTROL)
    stream.sendall(struct.pack("<I", len(document)) + document)
    head = stream.recv(4, socket.MSG_WAITALL)
    if head:
        (size,) = struct.unpack("<I", head)
        assert "error" in json.loads(stream.recv(size, socket.MSG_WAITALL))
    stream.close()


def test_oversized_control_frame_is_dropped(fabric: Fabric, other: Node) -> None:
    stream = hello(fabric, Kind.CONTROL)
    stream.sendall(struct.pack("<I", 0xFFFFFFFF))
    assert is_dropped(stream)


def test_control_errors_carry_errno_and_reason(fabric: Fabric) -> None:
    with ControlClient(fabric.socket) as control:
        with pytest.raises(ControlError, match="no node 'z'") as refused:
            control.request("windows", node="z")
        assert refused.value.errno
        assert control.request("windows", node="a") == []


def test_a_wrong_program_window_is_refused(fabric: Fabric) -> None:
    with pytest.raises(ControlError, match="CNA"):
        fabric.program_window("a", owner_cna=1, owner_eid=bytes(16), tokenid=0, uba=0, length=2 * MIB)
