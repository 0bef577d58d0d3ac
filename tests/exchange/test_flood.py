# SPDX-License-Identifier: Apache-2.0
"""E4: floods of silent connections from many sources, and from one's own address, shut no other client out."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.exchange_hardship import FLOOD
from obmm.exchange import Limits, Server, connect
from obmm.exchange.admission import Admission, Full, source_of
from tests.exchange.conftest import until

Start = Callable[..., Server]


@contextmanager
def flood(port: int, sources: int, each: int) -> Iterator[None]:
    command = [sys.executable, "-c", FLOOD, str(port), str(sources), str(each)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "there\n"
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("mode", ["key", "tls"])
def test_forty_sources_of_silent_connections_shut_no_client_out(
    start: Start, key: Path, tmp_path: Path, mode: str
) -> None:
    how: dict[str, Any] = {"key": key}
    options = how
    if mode == "tls":
        pytest.importorskip("cryptography", reason="certificates are made with cryptography")
        from obmm.bench.certificates import Authority

        authority = Authority(tmp_path)
        options, how = {"tls": authority.issue("server")}, {"tls": authority.issue("client")}
    server = start(**options, limits=Limits(handshakes=128, handshakes_per_address=8, handshake_s=30))
    with flood(server.port, 40, 10):
        until(lambda: server.status()["server"]["handshakes"] >= 120)
        for _ in range(20):
            with connect(f"127.0.0.1:{server.port}", timeout=10, **how) as peer:
                assert peer.list()
        assert server.status()["server"]["handshakes"] <= 128


def test_silent_connections_from_ones_own_address_go_before_ones_own(start: Start, key: Path) -> None:
    server = start(limits=Limits(handshakes_per_address=16, handshake_s=30))
    lurkers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(16)]
    until(lambda: server.status()["server"]["handshakes"] == 16)
    began = time.monotonic()
    with connect(f"127.0.0.1:{server.port}", key=key) as peer:
        assert peer.list()
    assert time.monotonic() - began < 10
    for each in lurkers:
        each.close()


def test_a_64_network_is_one_source() -> None:
    assert source_of("2001:db8:1:2::1") == source_of("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert source_of("2001:db8:1:3::1") != source_of("2001:db8:1:2::1")
    assert source_of("::ffff:1.2.3.4") == "1.2.3.4"
    assert source_of("fe80::1%eth0") == "fe80::/64"
    assert source_of("?") == "?"


class Book:
    """An admission and the connections in it."""

    def __init__(self, **limits: int) -> None:
        self.admission = Admission(Limits(**limits))  # type: ignore[arg-type]
        self.clock = 0.0

    def come(self, address: str) -> Any:
        """One more connection; one that is in the way is closed."""
        gone = self.admission.in_the_way(address)
        if gone is not None:
            self.admission.remove(gone)
        self.clock += 1
        connection: Any = _Connection(address, self.clock)
        self.admission.add(connection)
        return connection, gone


class _Connection(SimpleNamespace):
    def __init__(self, address: str, accepted: float) -> None:
        super().__init__(address=address, accepted=accepted)

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


def test_the_oldest_silent_one_of_the_busiest_source_goes() -> None:
    book = Book(handshakes=4, handshakes_per_address=3)
    first, _ = book.come("1.1.1.1")
    second, _ = book.come("1.1.1.1")
    book.come("2.2.2.2")
    book.come("3.3.3.3")
    book.admission.spoke(first)
    _, gone = book.come("4.4.4.4")
    assert gone is second, "the other one has said something"
    assert book.admission.unfinished == 4


def test_established_sessions_are_never_in_the_way() -> None:
    book = Book(connections=20, connections_per_address=3)
    for _ in range(3):
        connection, _ = book.come("1.1.1.1")
        book.admission.established(connection)
    with pytest.raises(Full):
        book.come("1.1.1.1")
    for number in range(15):
        connection, _ = book.come(f"2.0.0.{number}")
        book.admission.established(connection)
    with pytest.raises(Full):  # two slots in twenty are kept for sources that were here before
        book.come("9.9.9.9")
    assert book.come("2.0.0.1")[1] is None


def test_removing_twice_and_finishing_twice_changes_nothing() -> None:
    book = Book()
    connection, _ = book.come("1.1.1.1")
    for _ in range(2):
        book.admission.established(connection)
    assert book.admission.unfinished == 0
    for _ in range(2):
        book.admission.remove(connection)
    assert book.admission.unfinished == 0
    assert book.come("1.1.1.1")[1] is None
