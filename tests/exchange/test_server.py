# SPDX-License-Identifier: Apache-2.0
"""Publishing, leases, revocation, closing, restarts: one server and its peers on loopback."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from obmm import ClosedError, MappingBusyError, ObmmArgumentError
from obmm.background import LINES
from obmm.exchange import (
    AuthenticationError,
    DeadlineError,
    Key,
    LeasesOutstandingError,
    LeaseState,
    LeaseStatus,
    Limits,
    Peer,
    ProtocolError,
    Refusal,
    RequestRefusedError,
    Server,
)
from obmm.exchange.desk import LeaseDesk
from obmm.exchange.events import EventQueue
from obmm.exchange.journal import LeaseJournal
from obmm.exchange.messages import Fetch, RegionEntry, RevokeReason
from obmm.exchange.publication import Publication
from tests.exchange.conftest import FakeRegion, until

Start = Callable[..., Server]
Join = Callable[..., Peer]


def leases(server: Server) -> list[dict[str, Any]]:
    return [item for item in server.status()["items"] if item["kind"] == "lease"]


def states(server: Server) -> list[str]:
    return sorted(lease["state"] for lease in leases(server))


def vanish(peer: Peer) -> None:
    """The client dies: no release, no goodbye (the kernel closes its socket)."""
    peer._client.mailbox.post(peer._client.stop)
    peer._thread.join()
    peer._open = False


# --- publishing and fetching -----------------------------------------------------------------------------------------


def test_list_names_regions_and_gives_nothing_that_opens_them(start: Start, join: Join) -> None:
    regions = {"a": FakeRegion(), "b/c": FakeRegion(4 << 20)}
    listing = join(start(regions)).list()
    assert list(listing) == ["a", "b/c"]
    entry = listing["b/c"]
    assert entry.length == regions["b/c"].handle().length
    assert entry.generation == regions["b/c"].generation
    assert not {"uba", "tokenid"} & set(RegionEntry.__slots__)


def test_list_of_many_regions_comes_in_pages(start: Start, join: Join) -> None:
    regions = {f"region-{number}": FakeRegion() for number in range(1201)}
    assert list(join(start(regions)).list()) == list(regions)


def test_fetch_gives_handle_and_manifest(start: Start, join: Join) -> None:
    region = FakeRegion()
    manifest = {"format": "obmm-array", "version": 1, "dtype": "<f4", "shape": [3, 341]}
    lease = join(start({"table": (region, manifest)})).fetch("table")
    assert lease.handle == region.handle()
    assert lease.manifest == manifest
    assert lease.usable
    assert lease.expires == pytest.approx(time.time() + 60, abs=2)


def test_a_region_without_a_manifest_gets_a_raw_one(start: Start, join: Join) -> None:
    lease = join(start({"table": FakeRegion(4096)})).fetch("table")
    assert lease.manifest == {"format": "obmm-raw", "version": 1, "bytes": 4096}


def test_the_largest_manifest_passes_and_one_byte_more_is_refused(start: Start, join: Join) -> None:
    largest = {"x": "y" * (65536 - len('{"x":""}'))}
    assert join(start({"table": (FakeRegion(), largest)})).fetch("table").manifest == largest
    with pytest.raises(ObmmArgumentError, match="65537 bytes of JSON, at most 65536"):
        start({"table": (FakeRegion(), {"x": largest["x"] + "y"})})


@pytest.mark.parametrize("manifest", [{"x": object()}, {"x": float("nan")}, {"x": {1, 2}}])
def test_a_manifest_must_be_json(start: Start, manifest: dict[str, Any]) -> None:
    with pytest.raises(ObmmArgumentError, match="is not a JSON object"):
        start({"table": (FakeRegion(), manifest)})


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "é", "a\n", "x" * 129, 5])
def test_bad_names_are_refused_on_both_sides(start: Start, join: Join, name: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="region name"):
        start({name: FakeRegion()})
    with pytest.raises(ObmmArgumentError, match="region name"):
        join(start()).fetch(name)


def test_a_name_and_an_export_are_published_once(start: Start) -> None:
    region = FakeRegion()
    server = start({"table": region})
    with pytest.raises(RequestRefusedError, match="'table' is published already"):
        server.publish("table", FakeRegion())
    with pytest.raises(RequestRefusedError, match="published already, as 'table'"):
        server.publish("other", region)


def test_an_unknown_region_is_refused_and_the_session_lives_on(start: Start, join: Join) -> None:
    peer = join(start())
    with pytest.raises(RequestRefusedError, match="no region 'nothing'") as caught:
        peer.fetch("nothing")
    assert caught.value.reason is Refusal.NO_REGION
    assert peer.fetch("table").usable


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_holds_the_region_until_it_is_released(start: Start, join: Join) -> None:
    region = FakeRegion()
    lease = join(start({"table": region})).fetch("table")
    with pytest.raises(MappingBusyError, match="importers have leases on 'table'"):
        region.close()
    assert lease.release()
    region.close()
    assert lease.status is LeaseStatus.RELEASED
    assert not lease.usable


def test_release_is_idempotent(start: Start, join: Join) -> None:
    server = start()
    lease = join(server).fetch("table")
    assert lease.release()
    assert lease.release()
    assert leases(server) == []


def test_two_leases_of_one_client_are_two(start: Start, join: Join) -> None:
    region = FakeRegion()
    peer = join(start({"table": region}))
    first, second = peer.fetch("table"), peer.fetch("table")
    first.release()
    assert region.holds
    second.release()
    assert not region.holds


def test_leases_are_renewed_in_the_background(start: Start, join: Join) -> None:
    server = start(term_s=1.5)
    lease = join(server).fetch("table")
    first = lease.expires
    until(lambda: lease.expires > first + 0.9)
    assert lease.usable
    assert states(server) == ["active"]
    assert "expired" not in [event.kind for event in server.events()]


def test_expiry_is_not_a_release(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region}, term_s=0.1)
    peer = join(server)
    peer.fetch("table")
    vanish(peer)
    until(lambda: states(server) == ["unknown"])
    assert "expired" in [event.kind for event in server.events()]
    with pytest.raises(MappingBusyError):
        region.close()
    with pytest.raises(LeasesOutstandingError, match=r"1 lease\(s\) were not released.*table.*force=True") as caught:
        server.revoke("table", timeout=0.05)
    assert [record.region for record in caught.value.leases] == ["table"]


def test_closing_a_peer_releases_its_leases(start: Start, join: Join) -> None:
    server = start()
    with join(server) as peer:
        peer.fetch("table")
        peer.fetch("table")
        assert len(peer.leases) == 2
    assert leases(server) == []


def test_a_lease_in_use_is_neither_released_nor_abandoned(start: Start, join: Join) -> None:
    class Importer:
        pass

    peer = join(start())
    lease = peer.fetch("table")
    importer = Importer()
    lease.attach(importer)
    with pytest.raises(MappingBusyError, match=r"in use by .*Importer"):
        lease.release()
    with pytest.raises(MappingBusyError, match=r"renews the lease of .*Importer"):
        peer.close()
    second = Importer()
    lease.attach(second)
    lease.detach(importer)
    assert lease.usable, "the second user is still there"
    lease.detach(second)
    assert lease.status is LeaseStatus.RELEASED


# --- revocation ------------------------------------------------------------------------------------------------------


def test_revoke_waits_for_the_release_of_every_importer(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region})
    told = [join(server).fetch("table") for _ in range(3)]
    for lease in told:
        lease.on_change(lambda event: event.lease.release())
    assert server.revoke("table", timeout=5) == ()
    assert [lease.status for lease in told] == [LeaseStatus.RELEASED] * 3
    region.close()
    assert server.status()["server"]["regions"] == 0


def test_revocation_is_told_with_its_deadline(start: Start, join: Join) -> None:
    server = start()
    peer = join(server)
    lease = peer.fetch("table")
    poll = select.poll()
    poll.register(lease.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    revoking = threading.Thread(target=lambda: server.revoke("table", timeout=20))
    revoking.start()
    assert poll.poll(5000)
    assert lease.status is LeaseStatus.REVOKED
    assert not lease.usable
    assert lease.revoke_deadline == pytest.approx(time.monotonic() + 20, abs=2)
    with pytest.raises(Exception, match="the owner takes the memory back"):
        lease.check()
    assert select.select([peer], [], [], 5)[0]
    assert [(event.lease, event.status) for event in peer.events()] == [(lease, LeaseStatus.REVOKED)]
    assert select.select([peer], [], [], 0)[0] == []
    lease.release()
    revoking.join(5)
    assert not revoking.is_alive()


def test_revoke_reports_who_did_not_release_and_can_be_called_again(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region})
    good, bad = join(server, name="good").fetch("table"), join(server, name="bad").fetch("table")
    good.on_change(lambda event: event.lease.release())
    with pytest.raises(LeasesOutstandingError, match=r"bad@127\.0\.0\.1") as caught:
        server.revoke("table", timeout=0.3)
    assert [record.client for record in caught.value.leases] == ["bad"]
    assert caught.value.leases[0].state is LeaseState.REVOKED
    assert region.holds, "the region must not be unexported"
    bad.release()
    assert server.revoke("table", timeout=5) == ()
    assert not region.holds


def test_force_gives_the_leases_up(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region})
    join(server).fetch("table")
    assert [record.region for record in server.revoke("table", timeout=0.05, force=True)] == ["table"]
    region.close()
    assert leases(server) == []


def test_a_revoked_region_is_not_granted(start: Start, join: Join) -> None:
    server = start()
    peer = join(server)
    lease = peer.fetch("table")
    with pytest.raises(LeasesOutstandingError):
        server.revoke("table", timeout=0.05)
    with pytest.raises(RequestRefusedError, match="no region"):
        peer.fetch("table")
    assert "table" not in peer.list()
    lease.release()


@pytest.mark.parametrize("forced", [False, True])
def test_a_region_that_is_revoked_before_its_grant_left_is_not_granted(tmp_path: Path, forced: bool) -> None:
    """Revoked and granted in one turn of the loop: the client would have been told to let go before it had the lease."""
    journal = LeaseJournal(tmp_path / "journal")
    desk = LeaseDesk(journal, 60, Limits(), EventQueue())
    region = FakeRegion()
    desk.publish(Publication("table", region))
    connection: Any = SimpleNamespace(leases=set(), client="c", address="here", identity="", push=lambda message: None)
    desk.fetch(connection, Fetch(b"1" * 16, "table", bytes(16)), 7)
    revocation = desk.revoke("table", 5.0, RevokeReason.WITHDRAWN)
    if forced:
        desk.force("table")
    batch = desk.take_batch()
    assert batch is not None
    journal.write(batch)
    ((_, number, answer),) = desk.written(1, None)
    assert number == 7
    assert isinstance(answer, RequestRefusedError)
    assert "no region 'table'" in str(answer)
    assert revocation.result(0) == ()
    assert not connection.leases
    assert not region.holds
    desk.publish(Publication("table", region))
    journal.commit()
    assert desk.take_batch() is None
    journal.close()
    again = LeaseJournal(tmp_path / "journal")
    assert again.recovered == []
    again.close()


def test_revoking_what_is_not_published_is_refused(start: Start) -> None:
    with pytest.raises(RequestRefusedError, match="no region 'nothing'"):
        start().revoke("nothing")


def test_a_callback_that_raises_stops_nothing(start: Start, join: Join, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    lease = join(server).fetch("table")
    lease.on_change(lambda event: 1 / 0)
    lease.on_change(lambda event: event.lease.release())
    server.revoke("table", timeout=5)
    assert LINES.flush(5)
    assert "a callback for 'table' raised" in caplog.text


def test_a_revocation_that_was_missed_is_learnt_at_the_next_renewal(start: Start, join: Join) -> None:
    server = start(term_s=0.6)
    lease = join(server).fetch("table")
    service = server._service
    # Cut the push out: the server forgets which connection has the lease.
    server._call(lambda: service.desk._holder.clear())
    with pytest.raises(LeasesOutstandingError):
        server.revoke("table", timeout=0.01)
    until(lambda: lease.status is LeaseStatus.REVOKED)
    lease.release()


# --- closing ---------------------------------------------------------------------------------------------------------


def test_close_revokes_everything_and_waits(start: Start, join: Join) -> None:
    regions = {"a": FakeRegion(), "b": FakeRegion()}
    server = start(regions)
    peer = join(server)
    for name in regions:
        peer.fetch(name).on_change(lambda event: event.lease.release())
    assert server.close(timeout=5) == ()
    assert server.closed
    assert server.wait(0)
    assert server.close() == ()
    assert server.events()[-1].kind == "closed"
    for region in regions.values():
        region.close()


def test_close_refuses_while_leases_are_out_and_still_takes_releases(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region})
    peer = join(server)
    lease = peer.fetch("table")
    with pytest.raises(LeasesOutstandingError):
        server.close(timeout=0.05)
    assert not server.closed
    with pytest.raises(RequestRefusedError, match="closing"):
        peer.fetch("table")
    with pytest.raises(RequestRefusedError, match="closing"):
        server.publish("other", FakeRegion())
    assert lease.release()
    server.close(timeout=1)
    assert server.closed


def test_the_with_block_keeps_the_exception_that_is_in_flight(start: Start, join: Join, monkeypatch: Any) -> None:
    server = start()
    join(server).fetch("table")
    monkeypatch.setattr(server, "close", partial(server.close, timeout=0.05))
    with pytest.raises(ZeroDivisionError) as caught, server:
        _ = 1 / 0
    assert "stayed open" in caught.value.__notes__[0]


def test_a_closed_server_says_so(start: Start) -> None:
    server = start()
    server.close()
    with pytest.raises(ClosedError, match="is closed"):
        server.status()
    assert "closed" in repr(server)


def test_the_port_is_free_at_once_after_closing(start: Start, join: Join, tmp_path: Path) -> None:
    for _ in range(5):
        server = start(port=0)
        port = server.port
        join(server).list()
        server.close()
        start(port=port).close()


# --- restarts --------------------------------------------------------------------------------------------------------


def crash(server: Server) -> int:
    """The server dies: sockets closed, journal as it is."""
    service = server._service
    service.desk.journal.close = service.desk.journal.abandon  # type: ignore[method-assign]
    service.mailbox.post(service.stop)
    server._thread.join()
    server._closed.set()
    return server.port


def test_a_restarted_server_knows_its_leases_and_renews_them(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region}, term_s=0.5)
    lease = join(server).fetch("table")
    port = crash(server)
    again = FakeRegion(generation=region.generation)
    server = start({"table": again}, port=port, term_s=0.5)
    until(lambda: states(server) == ["active"])
    until(lambda: lease.usable)
    assert again.holds
    assert lease.release()
    assert not again.holds


def test_a_lease_from_before_the_restart_is_unknown_until_its_holder_is_back(start: Start, join: Join) -> None:
    server = start(term_s=30)
    peer = join(server)
    peer.fetch("table")
    vanish(peer)
    port = crash(server)
    server = start({}, port=port)
    assert states(server) == ["unknown"]


def test_reconnect_finds_a_region_that_was_exported_again_stale(start: Start, join: Join) -> None:
    server = start(term_s=0.5)
    lease = join(server).fetch("table")
    port = crash(server)
    server = start({"table": FakeRegion()}, port=port, term_s=0.5)
    until(lambda: lease.status is LeaseStatus.STALE)
    with pytest.raises(Exception, match="exported the region again"):
        lease.check()
    assert lease.release()
    assert leases(server) == []


def test_a_server_without_its_journal_makes_leases_lost(start: Start, join: Join, tmp_path: Path) -> None:
    server = start(term_s=0.5)
    lease = join(server).fetch("table")
    port = crash(server)
    start({"table": FakeRegion()}, port=port, journal=tmp_path / "another.journal")
    until(lambda: lease.status is LeaseStatus.LOST)


def test_at_two_thirds_without_renewal_a_lease_is_suspect_and_recovers(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region}, term_s=3)
    peer = join(server)
    lease = peer.fetch("table")
    seen: list[LeaseStatus] = []
    lease.on_change(lambda event: seen.append(event.status))
    port = crash(server)
    until(lambda: not lease.usable)
    assert lease.status is LeaseStatus.SUSPECT
    assert lease.remaining > 0, "suspect comes before expiry"
    assert select.select([lease], [], [], 0)[0]
    start({"table": FakeRegion(generation=region.generation)}, port=port, term_s=3)
    until(lambda: lease.usable)
    assert select.select([lease], [], [], 0)[0] == []
    until(lambda: seen == [LeaseStatus.SUSPECT, LeaseStatus.ACTIVE])


def test_a_release_that_cannot_be_delivered_is_delivered_later(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region}, term_s=30)
    lease = join(server).fetch("table")
    port = crash(server)
    assert lease.release(timeout=0.1) is False
    assert lease.status is LeaseStatus.RELEASED
    again = FakeRegion(generation=region.generation)
    server = start({"table": again}, port=port)
    until(lambda: leases(server) == [])
    assert not again.holds


def test_closing_a_peer_whose_server_died_meets_its_deadline(
    start: Start, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    peer = join(server)
    peer.fetch("table")
    crash(server)
    began = time.monotonic()
    peer.close(timeout=0.2)
    assert time.monotonic() - began < 10
    assert LINES.flush(5)
    assert "1 release(s) could not be delivered" in caplog.text


def test_restart_in_a_loop(start: Start, join: Join) -> None:
    region = FakeRegion()
    server = start({"table": region}, term_s=5)
    lease = join(server).fetch("table")
    for _ in range(5):
        port = crash(server)
        server = start({"table": FakeRegion(generation=region.generation)}, port=port, term_s=5)
        until(lambda: states(server) == ["active"])  # noqa: B023 - called here
    assert lease.usable
    lease.release()


# --- who may connect -------------------------------------------------------------------------------------------------


def test_a_client_with_another_key_is_refused(start: Start, join: Join, tmp_path: Path) -> None:
    server = start()
    with pytest.raises(AuthenticationError, match="does not accept this key"):
        join(server, key=Key.generate(tmp_path / "other"))
    assert server.status()["server"]["refused"] == {"authentication": 1}


def test_key_rotation(start: Start, join: Join, tmp_path: Path, key: Path) -> None:
    new = Key.generate(tmp_path / "new")
    server = start(key=[key, tmp_path / "new"])
    old_peer, new_peer = join(server), join(server, key=new)
    lease = old_peer.fetch("table")
    server.rekey(new)
    assert new_peer.list(), "sessions of a key that stays go on"
    with pytest.raises(DeadlineError, match="does not accept this key"):
        old_peer.list(timeout=0.5)
    assert [item["state"] for item in leases(server)] == ["active"], "the fabric may live on, and so does the lease"
    assert lease.handle
    with pytest.raises(AuthenticationError):
        join(server)
    assert server.status()["server"]["keys"] == [new.identity]


def test_modes_do_not_mix(start: Start, join: Join, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="asked for PLAIN mode, this server runs KEY mode") as caught:
        join(start(), plain=True)
    assert caught.value.reason is Refusal.MODE
    with pytest.raises(ProtocolError, match="asked for KEY mode, this server runs PLAIN mode"):
        join(start(plain=True, journal=tmp_path / "other.journal"))


def test_plain_mode_works_on_loopback_only(start: Start, join: Join) -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ObmmArgumentError, match=f"plain mode on {host}"):
            start(plain=True, host=host)
    server = start(plain=True, host=None)
    assert server.addresses == (f"127.0.0.1:{server.port}",)
    assert join(server, plain=True).fetch("table").usable
    from obmm.exchange import PeerUnreachableError, connect

    with pytest.raises(PeerUnreachableError, match="loopback only"):
        connect("192.0.2.1", plain=True)


def test_other_modes_bind_to_all_interfaces(start: Start) -> None:
    server = start(host=None)
    assert server.addresses[0] in (f"[::]:{server.port}", f"0.0.0.0:{server.port}")


@pytest.mark.parametrize("options", [{}, {"key": "k", "plain": True}, {"key": "k", "tls": object()}])
def test_one_mode_must_be_spelled_out(options: dict[str, Any]) -> None:
    from obmm.exchange import connect, serve

    with pytest.raises(ObmmArgumentError, match="exactly one is needed"):
        serve({}, port=0, **options)
    with pytest.raises(ObmmArgumentError, match="exactly one is needed"):
        connect("127.0.0.1", **options)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_leases_per_connection_are_limited(start: Start, join: Join) -> None:
    peer = join(start(limits=Limits(leases_per_connection=2)))
    first = peer.fetch("table")
    peer.fetch("table")
    with pytest.raises(RequestRefusedError, match="as many leases as one may have") as caught:
        peer.fetch("table")
    assert caught.value.reason is Refusal.LIMIT
    first.release()
    peer.fetch("table")


def test_leases_in_all_are_limited(start: Start, join: Join) -> None:
    server = start(limits=Limits(leases=2))
    for _ in range(2):
        join(server).fetch("table")
    with pytest.raises(RequestRefusedError, match="as many leases out as it allows"):
        join(server).fetch("table")


def test_connections_per_address_are_limited(start: Start, join: Join) -> None:
    server = start(limits=Limits(connections_per_address=2))
    join(server)
    join(server)
    with pytest.raises(Exception, match=r"closed the connection|reset"):
        join(server)
    assert server.status()["server"]["refused"] == {"limit": 1}


def test_no_journal_no_lease(start: Start, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    region = FakeRegion()
    server = start({"table": region})
    peer = join(server)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(RequestRefusedError, match="cannot write its lease journal"):
        peer.fetch("table")
    assert leases(server) == []
    assert not region.holds
    monkeypatch.undo()
    assert peer.fetch("table").usable


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_forked_child_disturbs_neither_server_nor_peer(start: Start, join: Join) -> None:
    server = start(term_s=0.5)
    peer = join(server)
    lease = peer.fetch("table")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert peer.closed
            with pytest.raises(ClosedError):
                peer.list()
            with pytest.raises(ClosedError):
                server.status()
            peer.close()
            server.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert peer.list()
    first = lease.expires
    until(lambda: lease.expires > first + 0.2)


def test_descriptors_are_not_inherited_by_programs(start: Start, join: Join) -> None:
    before = {fd for fd in map(int, os.listdir("/proc/self/fd")) if _inheritable(fd)}
    peer = join(start())
    lease = peer.fetch("table")
    inheritable = {fd for fd in map(int, os.listdir("/proc/self/fd")) if _inheritable(fd)} - before
    assert lease.fileno() not in inheritable
    assert peer.fileno() not in inheritable
    assert inheritable == set()


def _inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def test_nothing_is_left_open(start: Start, join: Join) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def cycle() -> None:
        server = start()
        peer = join(server)
        lease = peer.fetch("table")
        lease.fileno()
        peer.close()
        server.close()

    cycle()
    import gc

    gc.collect()
    before = descriptors()
    for _ in range(3):
        cycle()
    gc.collect()
    # conftest keeps each closed object until the test ends: their event descriptors (2 each) are all that stays.
    assert descriptors() - before <= 3 * 3
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
