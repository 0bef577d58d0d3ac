# SPDX-License-Identifier: Apache-2.0
"""Calls: what rooms above the exchange ask and answer over its sessions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from obmm import ClosedError, ObmmArgumentError
from obmm.exchange import DeadlineError, Peer, ProtocolError, Refusal, RequestRefusedError, Server, client
from obmm.exchange.call_messages import Call
from obmm.exchange.calls import Caller
from obmm.exchange.frames import SENT_BY_CLIENT, SENT_BY_STRANGERS, FrameReader, FrameType
from obmm.exchange.messages import pack
from tests.exchange.conftest import until

Start, Join = Callable[..., Server], Callable[..., Peer]


class Echo:
    """Answers with what it was asked, and remembers who did."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []

    def call(self, caller: Caller, body: bytes) -> bytes:
        self.callers.append(caller)
        if body == b"no":
            raise RequestRefusedError(Refusal.LIMIT, "not today")
        if body == b"bug":
            raise ZeroDivisionError
        return body * 2 if len(body) < 1 << 16 else body


def test_a_call_is_answered_by_the_handler_of_its_name(start: Start, join: Join) -> None:
    server, echo, other = start(), Echo(), Echo()
    server.answer_calls("kv/one", echo)
    server.answer_calls("kv/two", other)
    peer = join(server, name="me")
    assert peer.call("kv/one", b"abc") == b"abcabc"
    assert peer.call("kv/one", b"") == b""
    assert [caller.name for caller in echo.callers] == ["me@127.0.0.1"] * 2
    assert not other.callers


def test_the_largest_body_passes_and_a_larger_one_is_refused_here(start: Start, join: Join) -> None:
    server = start()
    server.answer_calls("kv", Echo())
    peer = join(server)
    body = os.urandom(Call.MOST)
    assert peer.call("kv", body) == body * 2
    with pytest.raises(ObmmArgumentError, match="several calls"):
        peer.call("kv", body + b"x")


def test_many_calls_are_under_way_at_once(start: Start, join: Join) -> None:
    server = start()
    server.answer_calls("kv", Echo())
    peer = join(server)
    futures = [peer.submit_call("kv", b"%d" % i) for i in range(300)]
    assert [future.result(10) for future in futures] == [b"%d%d" % (i, i) for i in range(300)]


def test_a_refusal_reaches_the_caller_and_the_session_goes_on(start: Start, join: Join) -> None:
    server = start()
    server.answer_calls("kv", Echo())
    peer = join(server)
    with pytest.raises(RequestRefusedError, match="not today") as refusal:
        peer.call("kv", b"no")
    assert refusal.value.reason is Refusal.LIMIT
    with pytest.raises(RequestRefusedError, match="no service answers calls to 'other'"):
        peer.call("other", b"")
    assert peer.call("kv", b"x") == b"xx"
    server.refuse_calls("kv")
    with pytest.raises(RequestRefusedError, match="no service answers"):
        peer.call("kv", b"x")


def test_a_name_has_one_handler(start: Start) -> None:
    server = start()
    server.answer_calls("kv", Echo())
    with pytest.raises(RequestRefusedError, match="answered already"):
        server.answer_calls("kv", Echo())


def test_a_bug_of_a_handler_costs_its_session_only(start: Start, join: Join) -> None:
    server = start()
    server.answer_calls("kv", Echo())
    other = join(server)
    with pytest.raises((ProtocolError, RequestRefusedError, DeadlineError)):
        join(server).call("kv", b"bug", timeout=0.5)
    assert other.call("kv", b"x") == b"xx"


def test_a_call_on_a_closed_peer_is_a_closed_error(start: Start, join: Join) -> None:
    server = start()
    peer = join(server)
    peer.close()
    with pytest.raises(ClosedError):
        peer.call("kv", b"x")
    with pytest.raises(ClosedError):
        peer.submit_call("kv", b"x").result(5)


def test_what_follows_a_future_runs_in_the_peers_thread(start: Start, join: Join) -> None:
    server = start()
    server.answer_calls("kv", Echo())
    peer = join(server)
    seen: list[str] = []
    done = threading.Event()
    hold = threading.Event()

    class Slow(Echo):
        def call(self, caller: Caller, body: bytes) -> bytes:
            hold.wait(10)
            return body

    server.answer_calls("slow", Slow())
    future = peer.submit_call("slow", b"x")

    def follow(_: object) -> None:
        seen.append(threading.current_thread().name)
        done.set()

    future.add_done_callback(follow)
    hold.set()
    assert done.wait(10)
    assert seen[0].startswith("obmm-peer-")


def test_a_stranger_makes_the_server_hold_no_call() -> None:
    raw = pack(Call("kv", bytes(40_000)), 1).raw
    reader = FrameReader(SENT_BY_STRANGERS)
    with pytest.raises(ProtocolError) as refusal:
        list(reader.feed(raw[:16]))
    assert refusal.value.reason is Refusal.TYPE
    assert [frame.type for frame in FrameReader(SENT_BY_CLIENT).feed(raw)] == [FrameType.CALL]


class Gate(Echo):
    """Answers once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def call(self, caller: Caller, body: bytes) -> bytes:
        self.open.wait(10)
        return body


def test_a_call_that_is_too_late_leaves_the_connection_and_its_answer_is_dropped(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SILENT_S", 30.0)
    server = start()
    gate = Gate()
    server.answer_calls("kv", gate)
    peer = join(server)
    link = peer._client._link
    for _ in range(3):
        with pytest.raises(DeadlineError, match="no answer to CALL in time"):
            peer.call("kv", b"late", timeout=0.02)
    gate.open.set()
    assert [peer.call("kv", b"%d" % i) for i in range(5)] == [b"%d" % i for i in range(5)]
    assert peer._client._link is link
    assert not peer._client._late


def test_a_server_that_is_silent_after_a_late_call_costs_the_connection(start: Start, join: Join) -> None:
    server = start()
    gate = Gate()
    server.answer_calls("kv", gate)
    peer = join(server)
    link = peer._client._link
    with pytest.raises(DeadlineError):
        peer.call("kv", b"late", timeout=0.02)
    until(lambda: peer._client._link is not link)  # PING had no answer either
    gate.open.set()
    assert peer.call("kv", b"x") == b"x"


def test_too_many_late_answers_cost_the_connection(start: Start, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_LATE", 4)
    monkeypatch.setattr(client, "SILENT_S", 30.0)
    server = start()
    gate = Gate()
    server.answer_calls("kv", gate)
    peer = join(server)
    link = peer._client._link
    for future in [peer.submit_call("kv", b"late", timeout=0.02) for _ in range(6)]:
        with pytest.raises(DeadlineError):
            future.result(10)
    until(lambda: peer._client._link is not link)
    gate.open.set()
    assert peer.call("kv", b"x") == b"x"
