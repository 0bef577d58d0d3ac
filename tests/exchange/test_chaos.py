# SPDX-License-Identifier: Apache-2.0
"""A network that cuts, delays, duplicates, reorders, truncates and flips: slow at worst, never wrong."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from obmm.exchange import DeadlineError, Limits, Peer, PeerUnreachableError, RequestRefusedError, Server, connect
from obmm.exchange.messages import RevokeReason
from tests.exchange.conftest import FakeRegion, until
from tests.exchange.proxy import Chaos, Proxy

Start = Callable[..., Server]
Join = Callable[..., Peer]

# Short deadlines, so that a stream that reordering has left waiting for ever is noticed.
LIMITS = Limits(handshake_s=0.5, frame_s=0.3, idle_s=5)


@pytest.mark.parametrize("seed", range(6))
def test_chaos_never_grants_wrongly_and_never_forgets_a_lease(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("obmm.exchange.client.ATTEMPT_S", 1.0)
    monkeypatch.setattr("obmm.exchange.client.ANSWER_S", 1.0)
    region = FakeRegion()
    server = start({"table": region}, term_s=1.0, limits=LIMITS)
    with Proxy(server.port, Chaos(seed), Chaos(seed + 100)) as proxy:
        peer = _connect_through(proxy.port, server)
        deadline = time.monotonic() + 40
        rounds = 0
        while rounds < 12 and time.monotonic() < deadline:
            began = time.monotonic()
            try:
                with peer.fetch("table", timeout=1) as lease:
                    assert lease.handle == region.handle()
                    assert list(peer.list(timeout=1)) == ["table"]
                rounds += 1
            except DeadlineError:
                pass
            assert time.monotonic() - began < 15, "nothing hangs past its deadline"
        assert rounds
        proxy.to_server = proxy.to_client = lambda chunk: [chunk]
        # The network is good again: every lease, granted or half granted, comes back.
        until(lambda: not region.holds, timeout=30)
        assert server.status()["server"]["leases"] == 0
        assert peer.list(timeout=20)
        peer.close()


def _connect_through(port: int, server: Server) -> Peer:
    for _ in range(50):
        try:
            return connect(f"127.0.0.1:{port}", key=server._service.credentials.keys[0], timeout=1)
        except (PeerUnreachableError, DeadlineError, RequestRefusedError, OSError):
            continue
    raise AssertionError("no connection in 50 attempts")


def test_a_lease_survives_cuts_that_are_shorter_than_its_term(start: Start, join: Join) -> None:
    server = start(term_s=5)
    with Proxy(server.port) as proxy:
        lease = join(proxy.port).fetch("table")
        for _ in range(5):
            proxy.cut()
            time.sleep(0.1)  # the cut itself
        assert lease.usable
        until(lambda: server.status()["items"][1]["state"] == "active")
        first = lease.expires
        until(lambda: lease.expires > first)


def test_a_release_that_a_black_hole_swallowed_is_sent_again(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("obmm.exchange.client.ANSWER_S", 0.2)
    region = FakeRegion()
    server = start({"table": region})
    with Proxy(server.port) as proxy:
        lease = join(proxy.port).fetch("table")
        proxy.silence()
        assert lease.release(timeout=0.05) is False
        proxy.mend()
        until(lambda: not region.holds)
        assert proxy.connections == 2


def test_revocation_reaches_a_client_that_was_cut_off_when_it_was_sent(start: Start, join: Join) -> None:
    server = start(term_s=3)
    with Proxy(server.port) as proxy:
        lease = join(proxy.port).fetch("table")
        lease.on_change(lambda event: event.lease.release())
        proxy.cut(refuse=True)
        until(lambda: server.status()["server"]["connections"] == 0)
        pending = server._service.mailbox.post(lambda: server._service.desk.revoke("table", 10, RevokeReason.WITHDRAWN))
        proxy.mend()
        assert pending.result(10) == ()
