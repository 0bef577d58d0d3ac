# SPDX-License-Identifier: Apache-2.0
"""The stand-in's file and socket in the hands of others: refused with a code, never followed out of bounds."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from obmm import emulator
from obmm.sdk.standin import Mode, StandIn
from obmm.sdk.standin_op import Op

from .process import Process

SIZE = 4 << 20
_UNIT, _FABRIC, _NODES, _NODE_COUNT, _RECORDS_END = 56, 64, 320, 1344, 1348
"""Offsets in the state file (state.h)."""


@pytest.fixture(params=["daemon", "in-process"])
def mode(request: pytest.FixtureRequest) -> Mode:
    mode: Mode = request.param
    return mode


def _start(standin: StandIn) -> list[int]:
    """What a new process on it is answered."""
    process = Process(standin, "a", OBMM_SDK_STANDIN_SECOND_MS="1", HCOM_CONNECTION_RETRY_TIMES="1")
    try:
        codes: list[int] = process.start()
        return codes
    finally:
        process.close()


@pytest.mark.parametrize("size", [0, 1, 8, 4096, -4096])
def test_a_state_file_of_another_size_is_refused(fabric: emulator.Fabric, mode: Mode, size: int) -> None:
    with StandIn(fabric, mode=mode) as standin:
        standin.stop()
        path = Path(standin.folder, "state")
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)
        assert _start(standin) == [0, 6015]
        with pytest.raises(OSError, match="stand-in: status") as refused:
            standin.status()
        assert refused.value.errno == errno.EPROTO


@pytest.mark.parametrize(
    ("at", "written"),
    [
        (0, b"\xff" * 16),
        (8, bytes(8)),
        (_UNIT, bytes(8)),
        (_FABRIC, b"\xff" * 256),
        (_NODES, b"\xff" * 64),
        (_NODE_COUNT, bytes(4)),
        (_NODE_COUNT, b"\xff" * 4),
        (_NODE_COUNT, (17).to_bytes(4, "little")),
        (_RECORDS_END, b"\xff" * 4),
        (_RECORDS_END + 4, b"\xff" * (1 << 16)),
    ],
)
def test_a_state_file_that_was_written_over_is_refused(
    fabric: emulator.Fabric, mode: Mode, at: int, written: bytes
) -> None:
    with StandIn(fabric, mode=mode) as standin:
        standin.stop()
        with open(Path(standin.folder, "state"), "r+b") as file:
            file.seek(at)
            file.write(written)
        assert _start(standin) == [0, 6015]
        with pytest.raises(OSError, match="stand-in: status") as refused:
            standin.status()
        assert refused.value.errno == errno.EPROTO


def test_the_offsets_of_this_test_are_those_of_the_file(fabric: emulator.Fabric) -> None:
    with StandIn(fabric, mode="in-process") as standin, open(Path(standin.folder, "state"), "rb") as file:
        head = file.read(_RECORDS_END + 4)
    assert int.from_bytes(head[_UNIT : _UNIT + 8], "little") == 128 << 20
    assert head[_FABRIC:_NODES].rstrip(b"\0") == fabric.socket.encode()
    assert head[_NODES : _NODES + 64].rstrip(b"\0") == b"a"
    assert int.from_bytes(head[_NODE_COUNT : _NODE_COUNT + 4], "little") == len(fabric.nodes)


_IN_A_SMALL_ONE = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=600k none "$0" && exec "$@"')


def test_a_full_disk_is_a_code_not_a_signal(fabric: emulator.Fabric, tmp_path: Path) -> None:
    """The state is a file in memory: a store to a page that the disk has no block for is SIGBUS."""
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no mount namespace may be made here")
    ran = subprocess.run(
        [*_IN_A_SMALL_ONE, str(tmp_path), sys.executable, "-m", "tests.sdk.full_disk", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["0", "6023", "0", "ENOSPC"]


# --- a daemon that lies ----------------------------------------------------------------------------------------------

_REQUEST, _ANSWER, _UNITS = struct.Struct("=4I4Q64s64s"), struct.Struct("=IiII"), struct.Struct("=3Q4I")
_HELLO = 1


class Liar:
    """Answers every request of `op` with `body`, others with success."""

    def __init__(self, standin: StandIn, op: int, body: bytes) -> None:
        self._fabric, self._op, self._body = standin._fabric, op, body
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{standin.folder}/daemon.sock")
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, contextlib.suppress(ConnectionError):
            while asked := connection.recv(_REQUEST.size, socket.MSG_WAITALL):
                op, number, size, *_ = _REQUEST.unpack(asked)
                connection.recv(size, socket.MSG_WAITALL) if size else b""
                body = self._fabric.encode().ljust(256, b"\0") + b"a".ljust(64, b"\0") if op == _HELLO else b""
                body = self._body if op == self._op else body
                connection.sendall(_ANSWER.pack(number, 0, len(body), 0) + body)

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()


@pytest.fixture
def alone(fabric: emulator.Fabric) -> Iterator[StandIn]:
    """A stand-in without a daemon."""
    with StandIn(fabric) as standin:
        standin.stop()
        yield standin


def _told(standin: StandIn, op: int, body: bytes, call: str, *given: object) -> object:
    """What a process is answered when its request `op` is answered by `body`; it must live on."""
    liar = Liar(standin, op, body)
    process = Process(standin, "a", MXM_CHANNEL_TIMEOUT="5", HCOM_CONNECTION_RETRY_TIMES="1")
    try:
        started = process.start()
        answered = getattr(process, call)(*given) if started == [0, 0] else started
        assert process.finalize() == 0
    finally:
        process.close()
        liar.close()
    assert process.status == 0
    return answered


def _units(size: int = SIZE, unit: int = 128 << 20, count: int = 1, ids: int = 1) -> bytes:
    return _UNITS.pack(size, unit, 0, count, 0, 2, 0) + bytes(8 * ids)


NO_UNITS = [
    b"",
    b"\0",
    bytes(_UNITS.size),
    b"\xff" * (_UNITS.size + 8),
    _units(ids=0),
    _units(count=2),
    _units(count=1 << 31),
    _units(count=0, ids=0),
    _units(unit=0),
    _units(unit=1 << 63),
    _units(size=1 << 60),
    _units(size=256 << 20),
]


@pytest.mark.parametrize("body", NO_UNITS)
def test_an_answer_that_is_no_units_maps_nothing(alone: StandIn, body: bytes) -> None:
    assert _told(alone, Op.MAP, body, "map", "x", SIZE)[0] == 6040  # type: ignore[index]


@pytest.mark.parametrize("body", NO_UNITS)
def test_an_answer_that_is_no_units_lends_nothing(alone: StandIn, body: bytes) -> None:
    assert _told(alone, Op.LEASE, body, "lease", SIZE)[0] == 6040  # type: ignore[index]


@pytest.mark.parametrize("body", [b"", b"\xff" * 319, b"\xff" * 320, b"\xff" * 321, bytes(256) + b"a" * 64])
def test_a_welcome_that_is_none_is_no_connection(alone: StandIn, body: bytes) -> None:
    assert _told(alone, _HELLO, body, "slot") == [0, 6015]
