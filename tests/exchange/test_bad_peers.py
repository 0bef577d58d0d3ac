# SPDX-License-Identifier: Apache-2.0
"""What a server does with peers that are slow, broken or hostile, and a client with servers that are."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from obmm.exchange import (
    DeadlineError,
    ExchangeError,
    Key,
    LeaseStatus,
    Limits,
    Peer,
    PeerUnreachableError,
    ProtocolError,
    Server,
)
from obmm.exchange.call_messages import Ping, Pong, Status
from obmm.exchange.errors import Refusal
from obmm.exchange.frames import FrameReader, FrameType
from obmm.exchange.messages import ErrorMessage, Fetch, Hello, Listed, Message, Mode, pack, parse
from obmm.exchange.session import SENT_BY_SERVER, ClientSession
from tests.exchange.conftest import FakeRegion, until
from tests.exchange.proxy import Proxy

Start = Callable[..., Server]
Join = Callable[..., Peer]


class RawClient:
    """A client that can do wrong: a socket and a session, driven by hand."""

    def __init__(self, port: int, key: Path | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 5)
        mode = Mode.PLAIN if key is None else Mode.KEY
        self.session = ClientSession(mode, Key.load(key) if key else None)

    def handshake(self) -> RawClient:
        while not self.session.established:
            self.sock.sendall(self.session.take())
            for _ in self.session.receive(self._recv()):
                pass
        return self

    def ask(self, message: Message) -> Message:
        self.session.send(message, 1)
        self.sock.sendall(self.session.take())
        return self.answer()

    def answer(self) -> Message:
        while True:
            for message, _ in self.session.receive(self._recv()):
                return message

    def _recv(self) -> bytes:
        chunk = self.sock.recv(65536)
        if not chunk:
            raise EOFError
        return chunk

    def error(self) -> ErrorMessage:
        """The untagged ERROR frame with which the server ends the session, and its end."""
        reader = FrameReader(SENT_BY_SERVER)
        found: list[ErrorMessage] = []
        while chunk := self.sock.recv(65536):
            for frame in reader.feed(chunk):
                if frame.type is FrameType.ERROR:
                    message = parse(frame)
                    assert isinstance(message, ErrorMessage)
                    found.append(message)
        (only,) = found
        return only

    def closed(self, timeout: float = 20.0) -> bool:
        self.sock.settimeout(timeout)
        try:
            while self.sock.recv(65536):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True


@pytest.fixture
def raw(key: Path) -> Iterator[Callable[..., RawClient]]:
    with contextlib.ExitStack() as stack:

        def connect(server: Server, **options: Any) -> RawClient:
            options.setdefault("key", None if server.mode is Mode.PLAIN else key)
            client = RawClient(server.port, **options)
            stack.callback(client.sock.close)
            return client

        yield connect


Raw = Callable[..., RawClient]


# --- slow ------------------------------------------------------------------------------------------------------------


def test_slow_loris_in_the_handshake_is_cut(start: Start, raw: Raw) -> None:
    client = raw(start(limits=Limits(handshake_s=0.15)))
    began = time.monotonic()
    with contextlib.suppress(OSError):  # one byte at a time does not help
        for byte in bytes(client.session.take()):
            client.sock.sendall(bytes([byte]))
            time.sleep(0.02)
    assert client.closed()
    assert time.monotonic() - began < 15


def test_a_silent_connection_is_cut_and_told_why(start: Start, raw: Raw) -> None:
    error = raw(start(limits=Limits(handshake_s=0.1))).error()
    assert error.code is Refusal.TIMEOUT
    assert "handshake took too long" in error.text


def test_slow_loris_in_a_frame_is_cut(start: Start, raw: Raw) -> None:
    server = start(plain=True, limits=Limits(frame_s=0.15))
    client = raw(server).handshake()
    frame = bytes(pack(Fetch(bytes(16), "table"), 1).raw)
    with contextlib.suppress(OSError):
        for byte in frame:
            client.sock.sendall(bytes([byte]))
            time.sleep(0.02)
    assert client.closed()
    assert server.status()["server"]["leases"] == 0
    assert server.status()["server"]["refused"] == {"timeout": 1}


def test_a_frame_and_no_tag_is_cut(start: Start, raw: Raw) -> None:
    client = raw(start(limits=Limits(frame_s=0.1))).handshake()
    client.sock.sendall(pack(Ping(), 1).raw)
    assert client.closed()


def test_a_peer_that_takes_no_answers_is_cut(start: Start, raw: Raw) -> None:
    regions = {f"{number:0100}": FakeRegion() for number in range(500)}
    server = start(regions, plain=True, limits=Limits(send_s=0.3, output_bytes=4096))
    client = raw(server).handshake()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ask = bytes(pack(Status(0), 1).raw) * 2000
    client.sock.settimeout(0.2)
    with contextlib.suppress(OSError):
        while True:
            client.sock.sendall(ask)
    until(lambda: server.status()["server"]["connections"] == 0)


def test_an_idle_client_is_cut_and_an_idle_peer_pings(start: Start, join: Join, raw: Raw) -> None:
    server = start(limits=Limits(idle_s=1.5))
    peer = join(server)
    client = raw(server).handshake()
    assert client.closed()
    assert server.status()["server"]["connections"] == 1
    assert peer.list()


def test_handshakes_are_limited_and_sessions_go_on(start: Start, join: Join, raw: Raw) -> None:
    server = start(limits=Limits(handshakes_per_address=3, handshake_s=30))
    peer = join(server)
    lurkers = [raw(server) for _ in range(9)]
    until(lambda: server.status()["server"]["refused"].get("limit") == 6)
    assert server.status()["server"]["handshakes"] == 3
    assert join(server).list(), "the oldest silent one makes room for who talks"
    assert peer.list()
    del lurkers


# --- broken and hostile ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bytes_sent", "text"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak the obmm exchange protocol"),
        (b"OBMX\x02", "protocol is of version 2, made by a newer obmm"),
        (b"OBMX\x01\x01\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff", "at most 89 are allowed"),
        (b"OBMX\x01\x13\x00\x00\x00\x00\x00\x00\x68\x00\x00\x00", "GRANT frame is never sent in this direction"),
        (b"OBMX\x01\x01\x01\x00\x00\x00\x00\x00\x19\x00\x00\x00", "reserved header bits"),
        (b"OBMX\x01\x63\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "type 0x63 is unknown"),
    ],
)
def test_the_server_says_what_is_wrong_and_closes(start: Start, raw: Raw, bytes_sent: bytes, text: str) -> None:
    client = raw(start())
    client.sock.sendall(bytes_sent)
    assert text in client.error().text


def test_a_wrong_proof_learns_nothing(start: Start, raw: Raw, tmp_path: Path) -> None:
    Key.generate(tmp_path / "other")
    client = raw(start(), key=tmp_path / "other")
    client.sock.sendall(client.session.take())
    for _ in client.session.receive(client._recv()):
        pass
    client.sock.sendall(client.session.take())
    error = client.error()
    assert (error.code, error.text) == (Refusal.AUTHENTICATION, "authentication failed")


def test_extra_bytes_behind_a_request_end_the_session(start: Start, raw: Raw) -> None:
    client = raw(start(plain=True)).handshake()
    client.sock.sendall(bytes(pack(Ping(), 1).raw) + b"tail")
    assert isinstance(client.answer(), Pong)
    assert client.closed()


def test_a_request_without_a_number_is_refused(start: Start, raw: Raw) -> None:
    client = raw(start(plain=True)).handshake()
    client.sock.sendall(pack(Ping(), 0).raw)
    assert "request without a number" in client.error().text


def test_a_reset_in_the_middle_disturbs_no_other(start: Start, join: Join, raw: Raw) -> None:
    server = start()
    peer = join(server)
    for cut in (1, 20, 40):
        client = raw(server)
        client.sock.sendall(client.session.take()[:cut])
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()
    until(lambda: server.status()["server"]["connections"] == 1)
    assert peer.list()


def test_one_byte_chunks_in_both_directions(start: Start, join: Join) -> None:
    server = start()

    def crumbs(chunk: bytes) -> list[bytes]:
        return [bytes([byte]) for byte in chunk]

    with Proxy(server.port, crumbs, crumbs) as proxy, join(proxy.port) as peer:
        assert peer.fetch("table").release()


def test_signals_do_not_disturb(start: Start, join: Join) -> None:
    """EINTR: a signal every millisecond during a hundred exchanges."""
    server = start()
    peer = join(server)
    hits = []
    old = signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(100):
            peer.fetch("table").release()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert hits


@pytest.mark.parametrize(
    "number",
    [
        errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EACCES, errno.EPROTO, errno.ENETDOWN,
        errno.EHOSTDOWN, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.EIO, errno.EINVAL,
    ],
)  # fmt: skip
def test_whatever_accept_says_costs_the_listener_a_pause(
    start: Start, join: Join, monkeypatch: Any, number: int
) -> None:
    server = start()
    peer = join(server)
    door = server._service._doors[0]
    monkeypatch.setattr("obmm.exchange.door.PAUSE_S", 0.05)
    real = door.listener

    class Refusing:
        def accept(self) -> Any:
            door.listener = real
            raise OSError(number, os.strerror(number))

    door.listener = Refusing()  # type: ignore[assignment]
    assert join(server).list(), "it rests, and comes back"
    assert door.failures == 1
    assert peer.list(), "who is inside notices nothing"


# --- servers that misbehave --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def bad_server(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that accepts one connection and misbehaves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)

        def run() -> None:
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                with sock:
                    behave(sock)

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_a_server_that_says_nothing_meets_the_deadline(join: Join) -> None:
    done = threading.Event()
    began = time.monotonic()
    with bad_server(lambda _: done.wait(5) and None) as port, pytest.raises(DeadlineError):
        try:
            join(port, timeout=0.3)
        finally:
            done.set()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak the obmm exchange"),
        (b"OBMX\x09", "protocol is of version 9"),
        (bytes(pack(Pong(), 1).raw), "answered with PONG where CHALLENGE was due"),
        (bytes(pack(Hello(Mode.KEY, bytes(16))).raw), "HELLO frame is never sent in this direction"),
        (b"OBMX\x01\x13\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff", "at most 65640"),
        (b"", "closed the connection"),
        (b"OBMX", "stream ended 4 bytes into a frame"),
    ],
)
def test_a_bad_server_is_refused_by_name(join: Join, answer: bytes, match: str) -> None:
    def behave(sock: socket.socket) -> None:
        sock.recv(100)
        sock.sendall(answer)

    with bad_server(behave) as port, pytest.raises(ExchangeError, match=match):
        join(port, timeout=15)


def test_no_server_listens(join: Join) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(
        PeerUnreachableError, match=r"refused; does a server .*`obmm serve`.*`obmm engram publish`.* serve there"
    ):
        join(port)


def test_an_unknown_host() -> None:
    from obmm.exchange import connect

    with pytest.raises(PeerUnreachableError, match=r"nowhere\.invalid"):
        connect("nowhere.invalid", key=Key(os.urandom(32)), timeout=5)


def test_an_answer_of_the_wrong_type_ends_the_session(join: Join) -> None:
    from obmm.exchange.messages import Welcome

    def behave(sock: socket.socket) -> None:
        sock.recv(200)
        sock.sendall(pack(Welcome(bytes(16), 1000, 60_000, 0)).raw)
        sock.recv(200)
        sock.sendall(pack(Listed(0, ()), 1).raw)
        sock.recv(200)

    with bad_server(behave) as port:
        peer = join(port, plain=True)
        with pytest.raises(DeadlineError, match="LISTED frame in answer to FETCH"):
            peer.fetch("table", timeout=1.5)


def test_a_black_hole_makes_leases_suspect_and_the_peer_comes_back(start: Start, join: Join) -> None:
    server = start(term_s=0.6)
    with Proxy(server.port) as proxy:
        peer = join(proxy.port)
        lease = peer.fetch("table")
        proxy.silence()
        until(lambda: lease.status is LeaseStatus.SUSPECT)
        proxy.cut()
        proxy.mend()
        until(lambda: lease.usable)
        assert lease.release()


def test_a_lost_grant_is_granted_again(start: Start, join: Join) -> None:
    """The answer to FETCH is cut off: the same lease is granted when the client asks again."""
    server = start()
    with Proxy(server.port) as proxy:
        peer = join(proxy.port)

        def swallow(chunk: bytes) -> list[bytes] | None:
            proxy.to_client = lambda chunk: [chunk]
            return None

        proxy.to_client = swallow
        lease = peer.fetch("table")
        assert lease.usable
        assert proxy.connections == 2
        assert server.status()["server"]["leases"] == 1


def test_a_grant_that_comes_too_late_is_handed_back(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region})
    with Proxy(server.port) as proxy:
        peer = join(proxy.port)
        proxy.to_client = lambda chunk: []
        with pytest.raises(DeadlineError):
            peer.fetch("table", timeout=0.2)
        until(lambda: region.holds)
        proxy.to_client = lambda chunk: [chunk]
        until(lambda: not region.holds)
        assert peer.leases == ()


def test_tampering_on_the_way_costs_a_connection_and_nothing_else(start: Start, join: Join) -> None:
    server = start()
    with Proxy(server.port) as proxy:
        peer = join(proxy.port)
        proxy.flip_next_towards_client()
        assert "table" in peer.list(), "asked again over a new connection"
        assert proxy.connections == 2


def test_wrong_version_is_a_protocol_error_with_its_reason(join: Join) -> None:
    def behave(sock: socket.socket) -> None:
        sock.recv(100)
        sock.sendall(b"OBMX\x02")

    with bad_server(behave) as port, pytest.raises(ProtocolError) as caught:
        join(port, timeout=15)
    assert caught.value.reason is Refusal.VERSION
