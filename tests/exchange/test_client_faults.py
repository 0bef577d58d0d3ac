# SPDX-License-Identifier: Apache-2.0
"""The client: every system call of its loop fails once; names and addresses that are slow; a clock that went on alone."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from obmm.bench.certificates import Authority
from obmm.errors import ObmmError
from obmm.exchange import DeadlineError, Key, LeaseStatus, Peer, PeerUnreachableError, Server, connect
from obmm.exchange.client import Client
from tests import seeds
from tests.exchange.conftest import FakeRegion, until
from tests.exchange.injection import Injector

Start = Callable[..., Server]
Join = Callable[..., Peer]
ERRORS = (errno.EMFILE, errno.ENOMEM, errno.EIO, errno.ENOBUFS)
STRIDE = 1 if os.environ.get("OBMM_EVERY_CALL") else 5


def leases(server: Server) -> int:
    count: int = server.status()["server"]["leases"]
    return count


@pytest.mark.parametrize("mode", ["key", "tls"])
def test_every_call_of_the_client_fails_once(start: Start, key: Path, tmp_path: Path, mode: str) -> None:
    """Whatever fails, the peer comes back; what it holds is what the server has, and nothing stays behind at its end."""
    region = FakeRegion()
    how: dict[str, Any] = {"key": Key.load(key)}
    ours = how
    if mode == "tls":
        authority = Authority(tmp_path)
        ours, how = {"tls": authority.issue("server")}, {"tls": authority.issue("client")}
    server = start({"table": region}, **ours)
    tried, at = 0, seeds.seed() % STRIDE
    while True:
        number = ERRORS[at % len(ERRORS)]
        error: BaseException = MemoryError() if at % 7 == 0 else OSError(number, os.strerror(number))
        injector = Injector(at, error)
        _play(server, region, connect(f"127.0.0.1:{server.port}", **how), injector)
        if not injector.hit:
            break
        tried += 1
        at += STRIDE
    print("client", mode, tried, "failures tried")
    assert tried >= 30 // STRIDE, "the play has become too short to prove anything"


def _play(server: Server, region: FakeRegion, peer: Peer, injector: Injector) -> None:
    peer._call(injector.arm)
    held = [_again(lambda: peer.fetch("table", timeout=2)) for _ in range(2)]
    _again(lambda: peer.list(timeout=2))
    held.pop().release(2)
    peer._call(lambda: peer._client._failed(PeerUnreachableError("the test cuts it")))
    _again(lambda: peer.status(timeout=5))
    what = f"call {injector.at} ({injector.hit}) failed with {injector.error!r}"
    until(lambda: leases(server) == 1)
    assert held[0].usable, what
    assert peer._thread.is_alive(), what
    peer.close(timeout=3)
    until(lambda: leases(server) == 0)
    assert not region.holds, what


def _again(call: Callable[[], Any]) -> Any:
    for _ in range(20):
        with contextlib.suppress(ObmmError):
            return call()
    raise AssertionError("refused for ever")


# --- E7: names, addresses, clocks ----------------------------------------------------------------------------------------


def test_a_resolver_that_hangs_holds_up_neither_leases_nor_the_end(
    start: Start, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(term_s=1.0)
    hanging = threading.Event()
    real = socket.getaddrinfo

    def slow(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "localhost" and hanging.is_set():
            time.sleep(30)  # a name server that does not answer; this thread is not waited for
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with connect(f"localhost:{server.port}", key=key) as peer:
        lease = peer.fetch("table")
        hanging.set()
        peer._call(lambda: peer._client._failed(PeerUnreachableError("the test cuts it")))
        first = lease.expires
        until(lambda: lease.expires > first + 0.3), "where it was before is where it goes"
        server.close(timeout=0, force=True)
        until(lambda: not lease.usable)
        began = time.monotonic()
        peer.close(timeout=1)
        assert time.monotonic() - began < 5


def test_a_first_connection_meets_its_deadline_when_the_resolver_hangs(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
    began = time.monotonic()
    with pytest.raises(DeadlineError):
        connect("slow.example", key=key, timeout=0.3)
    assert time.monotonic() - began < 5
    over.set()


def test_an_address_that_swallows_packets_costs_a_moment(
    start: Start, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    with contextlib.ExitStack() as stack:
        # a listener whose queue is full drops what comes: connecting there never ends
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(full.getsockname())
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
            for port in (full.getsockname()[1], server.port)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with connect(f"two.example:{server.port}", key=key, timeout=20) as peer:
            assert peer.list()


def test_an_address_that_refuses_is_followed_by_the_next(
    start: Start, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with connect(f"two.example:{server.port}", key=key) as peer:
        assert peer.list()


def test_a_lease_is_compared_with_the_clock_at_each_use(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = join(start(term_s=60))
    lease = peer.fetch("table")
    monkeypatch.setattr(Client, "turn", lambda self, longest: time.sleep(0.01))  # the peer's thread is busy elsewhere
    real = time.monotonic
    monkeypatch.setattr("obmm.exchange.lease.time", _Clock(lambda: real() + 39.0))
    assert lease.usable
    monkeypatch.setattr("obmm.exchange.lease.time", _Clock(lambda: real() + 40.1))
    assert lease.status is LeaseStatus.SUSPECT
    with pytest.raises(ObmmError, match="two thirds"):
        lease.check()
    monkeypatch.undo()


class _Clock:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.time = time.time


def test_a_process_that_was_stopped_reads_under_no_lease_that_is_over(start: Start, key: Path) -> None:
    server = start(term_s=0.6)
    code = (
        "import sys, obmm\n"
        f"with obmm.connect('127.0.0.1:{server.port}', key={str(key)!r}) as peer:\n"
        "    lease = peer.fetch('table')\n"
        "    print('there', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    while lease.usable: pass\n"
        "    print('over', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGSTOP)
        until(lambda: server.status()["items"][1]["state"] == "unknown")
        server.revoke("table", timeout=0, force=True)
        process.stdin.write("\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "over\n"
        process.stdin.write("\n")
        process.stdin.flush()


@pytest.mark.parametrize(
    "page",
    [
        b"{}",
        b"[]",
        b"x",
        b'{"server":{}}',
        b'{"server":{},"items":[1]}',
        b'{"server":[],"items":[]}',
        b"[" * 50_000,
        b"\xff",
    ],
)
def test_a_status_that_is_none_is_the_protocols_error(page: bytes) -> None:
    from obmm.exchange import ProtocolError
    from obmm.exchange.peer import _status_page

    with pytest.raises(ProtocolError):
        _status_page(page)


@pytest.mark.parametrize("manifest", [b"[" * 30_000, b"[]", b"x", b"\xff", b"1"])
def test_a_manifest_that_is_none_is_an_error_of_its_own(manifest: bytes) -> None:
    from obmm.exchange.lease import parse_manifest

    with pytest.raises(ValueError):
        parse_manifest(manifest)
