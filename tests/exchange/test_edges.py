# SPDX-License-Identifier: Apache-2.0
"""Arguments, addresses, objects that were not closed, exceptions in flight."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from obmm import MappingBusyError, ObmmArgumentError
from obmm.exchange import Peer, ProtocolError, RequestRefusedError, Server, serve
from obmm.exchange.messages import Fetch, Grant, Welcome, pack, parse
from obmm.exchange.net import is_loopback, split_address
from obmm.exchange.session import SENT_BY_CLIENT
from tests.exchange.conftest import FakeRegion, until
from tests.exchange.test_bad_peers import bad_server

Start = Callable[..., Server]
Join = Callable[..., Peer]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("node-a", ("node-a", 13857)),
        ("node-a:1", ("node-a", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:5", ("::1", 5)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", 13857)),
        ("::1", ("::1", 13857)),
    ],
)
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:0", "a:65536", "a:x", "[::1", "[::1]5", "a:-1", "[]:5"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ObmmArgumentError, match="is not an address"):
        split_address(text)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("fe80::1%lo", False),
    ],
)
def test_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"port": -1}, "port -1"),
        ({"port": 65536}, "port 65536"),
        ({"term_s": 0.01}, "lease term"),
        ({"term_s": 1e6}, "lease term"),
        ({"host": "nowhere.invalid"}, r"nowhere\.invalid"),
        ({"regions": {"a b": FakeRegion()}}, "region name 'a b'"),
    ],
)
def test_arguments_of_serve(start: Start, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ObmmArgumentError, match=problem):
        start(**options)


def test_a_port_in_use_is_an_error_and_leaves_nothing(start: Start, key: Path, tmp_path: Path) -> None:
    server = start()
    with pytest.raises(OSError, match="in use"):
        serve({}, host="127.0.0.1", port=server.port, key=key, journal=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_failed_publication_closes_the_server(start: Start, tmp_path: Path) -> None:
    region = FakeRegion()
    with pytest.raises(RequestRefusedError, match="published already, as"):
        start({"a": region, "b": region}, journal=tmp_path / "journal")
    start(journal=tmp_path / "journal")


def test_keys_belong_to_key_mode(start: Start, key: Path) -> None:
    with pytest.raises(ObmmArgumentError, match="PLAIN mode has no use for key credentials"):
        start(plain=True).rekey(key)


@pytest.mark.parametrize(("name", "eid"), [("table", b"short"), ("table", "text")])
def test_arguments_of_fetch(start: Start, join: Join, name: str, eid: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="not 16 bytes"):
        join(start()).fetch(name, importer_eid=eid)


@pytest.mark.parametrize("name", ["two words", "x" * 65, "\n"])
def test_client_names_are_checked(start: Start, join: Join, name: str) -> None:
    with pytest.raises(ObmmArgumentError, match="printable ASCII"):
        join(start(), name=name)


def test_ipv6(start: Start, key: Path) -> None:
    try:
        server = start(host="::1")
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    from obmm.exchange import connect

    with connect(f"[::1]:{server.port}", key=key) as peer:
        assert peer.list()
        assert str(peer.address) == f"[::1]:{server.port}"


def test_a_server_that_was_not_closed_warns_and_ends(key: Path, tmp_path: Path) -> None:
    server = serve({"table": FakeRegion()}, host="127.0.0.1", port=0, key=key, journal=tmp_path / "journal")
    thread = server._thread
    with pytest.warns(ResourceWarning, match="server on port .* was never closed"):
        del server
        gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_a_peer_that_was_not_closed_warns_and_ends(start: Start, key: Path) -> None:
    from obmm.exchange import connect

    server = start()
    peer = connect(f"127.0.0.1:{server.port}", key=key)
    thread = peer._thread
    with pytest.warns(ResourceWarning, match=r"was never closed"):
        del peer
        gc.collect()
    thread.join(5)
    assert not thread.is_alive()
    until(lambda: server.status()["server"]["connections"] == 0)


def test_a_peer_with_a_lease_lives_as_long_as_the_lease(start: Start, key: Path) -> None:
    from obmm.exchange import connect

    server = start(term_s=0.3)
    lease = connect(f"127.0.0.1:{server.port}", key=key).fetch("table")
    gc.collect()
    first = lease.expires
    until(lambda: lease.expires > first)
    assert lease.release()
    lease._peer._peer.close()  # type: ignore[attr-defined]


def test_a_lease_whose_peer_was_closed_by_force_is_not_usable(start: Start, join: Join) -> None:
    server = start()
    peer = join(server)
    lease = peer.fetch("table")
    user = FakeRegion()
    lease.attach(user)
    peer.close(force=True)
    assert not lease.usable
    assert server.status()["server"]["leases"] == 1, "left to the server"
    lease.detach(user)
    assert lease.release() is False


def test_the_with_block_of_a_peer_keeps_the_exception_in_flight(start: Start, join: Join) -> None:
    peer = join(start())
    lease = peer.fetch("table")
    user = FakeRegion()
    lease.attach(user)
    with pytest.raises(ZeroDivisionError) as caught, peer:
        _ = 1 / 0
    assert "stayed open" in caught.value.__notes__[0]
    with pytest.raises(MappingBusyError), peer:
        pass
    lease.detach(user)


def test_a_manifest_that_is_no_object_is_refused_and_its_lease_handed_back(join: Join) -> None:
    released = threading.Event()

    def behave(sock: socket.socket) -> None:
        from obmm.exchange.frames import FrameReader

        reader = FrameReader(SENT_BY_CLIENT)
        sock.recv(200)
        sock.sendall(pack(Welcome(bytes(16), 60_000, 60_000, 1)).raw)
        while chunk := sock.recv(500):
            for frame in reader.feed(chunk):
                message = parse(frame)
                if isinstance(message, Fetch):
                    grant = Grant(message.lease, 60_000, FakeRegion().handle(), b"[1, 2]")
                    sock.sendall(pack(grant, frame.request).raw)
                else:
                    released.set()
                    return

    with bad_server(behave) as port:
        peer = join(port, plain=True)
        with pytest.raises(ProtocolError, match="not a JSON object"):
            peer.fetch("table")
        assert released.wait(5)


def test_events_of_a_server_are_pollable(start: Start, join: Join) -> None:
    import select

    server = start()
    server.events()
    assert select.select([server], [], [], 0)[0] == []
    peer = join(server)
    assert select.select([server], [], [], 5)[0] == [server]
    assert [event.kind for event in server.events()] == ["connected"]
    peer.fetch("table").release()
    until(lambda: select.select([server], [], [], 0)[0])
    assert "granted" in [event.kind for event in server.events()]


def test_many_threads_share_one_peer(start: Start, join: Join) -> None:
    server = start()
    peer = join(server)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                with peer.fetch("table") as lease:
                    assert lease.usable
                assert peer.list()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert server.status()["server"]["leases"] == 0
