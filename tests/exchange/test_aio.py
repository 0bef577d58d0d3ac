# SPDX-License-Identifier: Apache-2.0
"""The exchange in an event loop: the same protocol, no thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import obmm
from obmm import ClosedError, MappingBusyError, ObmmArgumentError, ObmmError
from obmm.exchange import (
    AuthenticationError,
    DeadlineError,
    Key,
    LeaseStatus,
    PeerUnreachableError,
    RequestRefusedError,
    Server,
    aio,
)
from obmm.exchange.messages import ANY_EID, Fetch
from tests.exchange.conftest import FakeRegion, until
from tests.exchange.proxy import Proxy

SERVERS = (
    "asyncio",
    "obmm-journal",
    "obmm-server",
    "obmm-log",
)  # threads of the other side, and of the loop's look-ups

Start = Callable[..., Server]


def leases(server: Server) -> list[dict[str, Any]]:
    return [item for item in server.status()["items"] if item["kind"] == "lease"]


def test_fetch_renew_list_and_release_without_a_thread(start: Start, key: Path) -> None:
    region = FakeRegion()
    server = start({"table": region})
    before = set(threading.enumerate())

    async def main() -> None:
        async with await aio.connect(f"127.0.0.1:{server.port}", key=key) as peer:
            assert list(await peer.list()) == ["table"]
            lease = await peer.fetch("table")
            assert lease.handle == region.handle()
            assert lease.usable
            first = lease.expires
            assert await peer.renew(lease) > 50
            assert lease.expires > first
            # asyncio's own executor looks names up
            added = {each.name for each in set(threading.enumerate()) - before if not each.name.startswith(SERVERS)}
            assert added == set(), "the loop is the client's only thread"
            with pytest.raises(RequestRefusedError, match="no region"):
                await peer.fetch("other")
            with pytest.raises(ObmmArgumentError):
                await peer.fetch("not a name")
            assert await peer.release(lease)
            assert peer.leases == ()
            await peer.fetch("table")
        assert peer.closed
        with pytest.raises(ClosedError):
            await peer.fetch("table")

    asyncio.run(main())
    until(lambda: leases(server) == [])
    assert not region.holds


def test_many_tasks_share_a_peer(start: Start, key: Path) -> None:
    server = start({f"table/{number}": FakeRegion() for number in range(50)})

    async def main() -> None:
        async with await aio.connect(f"127.0.0.1:{server.port}", key=key) as peer:
            held = await asyncio.gather(*(peer.fetch(f"table/{number}") for number in range(50)))
            assert sorted(lease.name for lease in held) == sorted(f"table/{number}" for number in range(50))
            assert all(await asyncio.gather(*(peer.release(lease) for lease in held)))

    asyncio.run(main())


def test_a_revocation_is_an_event_and_letting_go_ends_it(start: Start, key: Path) -> None:
    server = start()

    async def main() -> None:
        async with await aio.connect(f"127.0.0.1:{server.port}", key=key) as peer:
            lease = await peer.fetch("table")
            revoking = asyncio.get_running_loop().run_in_executor(None, server.revoke, "table")
            async for event in peer.events():
                assert event.lease is lease
                assert event.status is LeaseStatus.REVOKED
                assert await peer.release(lease)
                break
            assert await revoking == ()

    asyncio.run(main())


def test_it_renews_reconnects_and_keeps_its_leases(start: Start, key: Path) -> None:
    server = start(term_s=1.5)

    async def main() -> None:
        with Proxy(server.port) as proxy:
            async with await aio.connect(f"127.0.0.1:{proxy.port}", key=key) as peer:
                lease = await peer.fetch("table")
                first = lease.expires
                proxy.cut()
                while lease.expires <= first + 0.6:
                    await asyncio.sleep(0.02)
                assert lease.usable
                assert len(leases(server)) == 1

    asyncio.run(main())


def test_errors_of_connecting_are_the_same(start: Start, key: Path) -> None:
    server = start()

    async def main() -> None:
        with pytest.raises(PeerUnreachableError):
            await aio.connect("127.0.0.1:1", key=key)
        with pytest.raises(AuthenticationError):
            await aio.connect(f"127.0.0.1:{server.port}", key=Key(os.urandom(32)))
        with pytest.raises(ObmmArgumentError):
            await aio.connect("x:0", plain=True)
        with pytest.raises((PeerUnreachableError, DeadlineError)):
            await aio.connect("no.such.host.invalid", plain=True, timeout=20)

    asyncio.run(main())


def test_a_cancelled_fetch_gives_its_lease_back(start: Start, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going, real = threading.Event(), os.fdatasync

    def slow(fd: int) -> None:
        going.wait(20)
        real(fd)

    server = start()
    monkeypatch.setattr(os, "fdatasync", slow)

    async def main() -> None:
        async with await aio.connect(f"127.0.0.1:{server.port}", key=key) as peer:
            task = asyncio.create_task(peer.fetch("table"))
            while not await asyncio.to_thread(lambda: server.counts()["grants_waiting"]):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            going.set()
            while await asyncio.to_thread(lambda: leases(server)):
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_region_imported_with_a_lease_is_closed_first(start: Start, key: Path) -> None:
    server = start()

    async def main() -> None:
        peer = await aio.connect(f"127.0.0.1:{server.port}", key=key)
        lease = await peer.fetch("table")
        user = FakeRegion()
        lease.attach(user)
        with pytest.raises(MappingBusyError, match="close that first"):
            await peer.release(lease)
        with pytest.raises(MappingBusyError):
            await peer.close()
        lease.detach(user)  # from code that cannot await: the loop delivers it
        while await asyncio.to_thread(lambda: leases(server)):
            await asyncio.sleep(0.01)
        await peer.close()

    asyncio.run(main())


def test_what_has_a_descriptor_can_be_awaited() -> None:
    class Ticket:
        def __init__(self) -> None:
            self.fd = os.eventfd(0, os.EFD_CLOEXEC)

        def fileno(self) -> int:
            return self.fd

    async def main() -> None:
        ticket = Ticket()
        waiting = asyncio.create_task(aio.done(ticket))
        await asyncio.sleep(0)
        assert not waiting.done()
        os.eventfd_write(ticket.fd, 1)
        await asyncio.wait_for(waiting, 10)
        os.close(ticket.fd)

    asyncio.run(main())
    assert obmm.connect


def test_an_interrupt_costs_one_turn_and_the_peer_goes_on(
    start: Start, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cuts through a turn must not take the next one's timer along."""
    server = start()
    loop = asyncio.new_event_loop()
    try:
        peer = loop.run_until_complete(aio.connect(f"127.0.0.1:{server.port}", key=key))
        turn = peer._client.turn
        cut = iter([KeyboardInterrupt()])

        def interrupted(longest: float) -> None:
            for error in cut:
                raise error
            turn(longest)

        monkeypatch.setattr(peer._client, "turn", interrupted)
        before = peer._timer
        loop.call_soon(peer._turn)
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        assert peer._timer is not None
        assert peer._timer is not before
        assert not peer._timer.cancelled()
        assert list(loop.run_until_complete(asyncio.wait_for(peer.list(), 20))) == ["table"]
        loop.run_until_complete(peer.close())
    finally:
        loop.close()


def test_a_peer_whose_selector_fails_for_good_tells_who_waits(
    start: Start, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()

    def broken(longest: float) -> None:
        raise OSError(9, "Bad file descriptor")

    async def main() -> None:
        peer = await aio.connect(f"127.0.0.1:{server.port}", key=key)
        monkeypatch.setattr(peer._client, "turn", broken)
        with pytest.raises(PeerUnreachableError):
            await asyncio.wait_for(peer.list(), 20)
        assert peer.closed

    asyncio.run(main())


class Bell:
    """A ticket: readable once it was rung."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self.fd


def test_two_may_await_one_ticket_that_is_closed_meanwhile() -> None:
    async def main() -> None:
        ticket = Bell()
        waiting = [asyncio.create_task(aio.done(ticket)) for _ in range(2)]
        await asyncio.sleep(0)
        os.eventfd_write(ticket.fd, 1)
        fd, ticket.fd = ticket.fd, -1
        await asyncio.wait_for(asyncio.gather(*waiting), 10)
        os.close(fd)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, ObmmArgumentError),
        ("3", ObmmArgumentError),
        (2.0, ObmmArgumentError),
        (1 << 40, ObmmArgumentError),
        (-1, ClosedError),
        ((1 << 31) - 1, ObmmError),
    ],
)
def test_what_cannot_be_awaited_is_refused(answer: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        asyncio.run(aio.done(SimpleNamespace(fileno=lambda: answer)))  # type: ignore[arg-type]
    with pytest.raises(ObmmArgumentError):
        asyncio.run(aio.done(object()))  # type: ignore[arg-type]


def test_a_file_is_refused_with_its_reason(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(ObmmError, match="always readable"):
            asyncio.run(aio.done(file))
    with pytest.raises(ClosedError):
        asyncio.run(aio.done(file))


def test_an_interrupt_gives_back_what_the_loop_held(start: Start, key: Path) -> None:
    """The peer is never closed: its loop is."""
    region = FakeRegion()
    server = start({"table": region})

    async def main() -> None:
        peer = await aio.connect(f"127.0.0.1:{server.port}", key=key)
        await peer.fetch("table")
        peer._run(lambda client: client.holdings.fetch(_fetch("table"), 10.0, aio._Releaser(peer)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    until(lambda: leases(server) == [])


def test_a_close_that_is_cancelled_gives_back(start: Start, key: Path) -> None:
    server = start({"table": FakeRegion()})

    async def main() -> None:
        peer = await aio.connect(f"127.0.0.1:{server.port}", key=key)
        await peer.fetch("table")
        closing = asyncio.create_task(peer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert peer.closed
        await asyncio.to_thread(until, lambda: leases(server) == [])

    asyncio.run(main())


def _fetch(name: str) -> Fetch:
    return Fetch(os.urandom(16), name, ANY_EID)
