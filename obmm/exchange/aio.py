# SPDX-License-Identifier: Apache-2.0
"""The exchange in an event loop of asyncio: `connect`, then fetch, renew, release and watch without a thread.

It is the client of `obmm.connect` (`obmm.exchange.client`) with its loop driven by yours: the same protocol, renewals,
reconnections and deadlines.  Names are looked up in a thread of their own, as there.

    async with await aio.connect("node-a", key="cluster.key") as peer:
        lease = await peer.fetch("table")
        with device.import_region(lease) as region:     # closing it releases the lease
            ...
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Protocol, TypeVar

from obmm.arguments import patience, whole, wrong_type
from obmm.background import BackgroundLogger
from obmm.closing import Owner
from obmm.driver.descriptor import Descriptor
from obmm.errors import ClosedError, MappingBusyError, ObmmError
from obmm.exchange.asking import check_fetch, not_there
from obmm.exchange.client import Client
from obmm.exchange.driven import drive, end, sweep
from obmm.exchange.errors import DeadlineError, Refusal, RequestRefusedError
from obmm.exchange.events import EventQueue
from obmm.exchange.held import BOOK, HeldLease
from obmm.exchange.keys import KeySource
from obmm.exchange.lease import Lease, LeaseEvent
from obmm.exchange.messages import ANY_EID, Fetch, List, Listed, RegionEntry, Renew
from obmm.exchange.peer import CALL_S, NAMES_S, target_of
from obmm.exchange.tls import TlsFiles

T = TypeVar("T")

log = BackgroundLogger("obmm.exchange.client")


async def connect(
    address: str,
    *,
    key: KeySource | None = None,
    tls: TlsFiles | None = None,
    plain: bool = False,
    timeout: float = CALL_S,
    server_name: str | None = None,
    name: str | None = None,
) -> AsyncPeer:
    """`obmm.connect` in the running event loop: the same arguments and the same errors.

    `address`, `key`, `tls`, `plain`, `timeout` in seconds, `server_name` and `name` as there.
    """
    sweep()
    timeout = patience("CALL", "timeout", timeout)
    target = target_of(address, key=key, tls=tls, plain=plain, server_name=server_name, name=name)
    peer = AsyncPeer(Client(target, EventQueue()))
    try:
        await peer._ask(lambda client: client.open(timeout))
    except BaseException:
        peer._stop()
        raise
    return peer


class AsyncPeer(Owner):
    """A connection to another node's server, driven by the event loop that made it; made by `connect`.

    Use it in that loop only.  While the loop is held up longer than a third of a lease's term, leases turn suspect.
    `timeout` is in seconds, `name` a region's, `importer_eid` as for `Peer.fetch`; ClosedError after `close`, otherwise the
    errors of `Peer`.

    >>> import asyncio
    >>> from obmm.exchange import aio
    >>> async def read(address):
    ...     async with await aio.connect(address, plain=True) as peer:
    ...         print(peer.address == address, list(await peer.list()), peer.closed)
    ...         lease = await peer.fetch("words")
    ...         print(len(peer.leases), await peer.renew(lease) > 0)
    ...         with b.import_region(lease) as region:
    ...             print(region.nbytes)
    ...         print(await peer.release(lease))
    ...     await peer.close()
    ...     async for event in peer.events():
    ...         print(event.status)
    >>> with a.export_region("2MiB", header=False) as region, obmm.serve({"words": region}, port=0, plain=True) as server:
    ...     asyncio.run(read(server.addresses[0]))
    True ['words'] False
    1 True
    2097152
    True
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = self._stopped = False
        self._changes = asyncio.Event()
        client.holdings.over = BOOK.over
        drive(client, self, partial(self._turn), self._loop)
        self._loop.add_reader(client.events.fileno(), self._changes.set)

    @property
    def address(self) -> str:
        """The server's, as ``host:port``."""
        return str(self._client.target)

    @property
    def closed(self) -> bool:
        """True once closed."""
        return self._closed

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that are not released."""
        return self._client.holdings.held

    async def list(self, *, timeout: float = CALL_S) -> dict[str, RegionEntry]:
        """The regions that the server publishes, by name."""
        timeout = patience("CALL", "timeout", timeout)
        found: dict[str, RegionEntry] = {}
        first, total = 0, 1
        async with _within(timeout):
            while first < total:
                asked = List(first)
                answer = await self._ask(lambda client, asked=asked: client.request(asked, timeout))  # type: ignore[misc]
                assert isinstance(answer, Listed)
                found |= {entry.name: entry for entry in answer.entries}
                total = answer.total if answer.entries else 0
                first += len(answer.entries)
        return found

    async def fetch(self, name: str, *, importer_eid: bytes = ANY_EID, timeout: float = CALL_S) -> Lease:
        """A lease on a region, with the handle to import and its manifest; RequestRefusedError; cancelled, it is given back."""
        timeout = patience("CALL", "timeout", timeout)
        check_fetch(name, importer_eid)
        target = self._client.target
        message = Fetch(os.urandom(16), name, importer_eid)
        BOOK.note(HeldLease(message.lease, name, str(target), target.proof))
        fetching = self._run(lambda client: client.holdings.fetch(message, timeout, _Releaser(self)))
        try:
            return await self._await(fetching)
        except asyncio.CancelledError:
            fetching.add_done_callback(self._unwanted)
            raise
        except RequestRefusedError as refusal:
            if refusal.reason is not Refusal.NO_REGION:
                raise
            there: Iterable[str] | None = None
            with contextlib.suppress(ObmmError, TimeoutError):
                there = await self.list(timeout=NAMES_S)
            raise not_there(refusal, name, there) from None

    async def renew(self, lease: Lease, *, timeout: float = CALL_S) -> float:
        """Renew now (it happens by itself at a third of the term); the seconds that the lease now has.

        ObmmArgumentError for what is no lease.
        """
        timeout = patience("CALL", "timeout", timeout)
        _check_lease(lease)
        asked = Renew(lease._id, lease.handle.generation)
        return await self._ask(lambda client: client.holdings.renewal(lease, asked, timeout))

    async def release(self, lease: Lease, *, timeout: float = 5.0) -> bool:
        """Tell the owner that nothing here uses the region any more; False when it could not be told in time.

        MappingBusyError while a region imported with this lease is open, ObmmArgumentError for what is no lease.
        """
        timeout = patience("CALL", "timeout", timeout)
        _check_lease(lease)
        if lease.users:
            who = ", ".join(lease.users)
            raise MappingBusyError(errno.EBUSY, f"the lease on {lease.name!r} is in use by {who}: close that first")
        return await self._ask(lambda client: client.holdings.release(lease, timeout))

    async def events(self) -> AsyncIterator[LeaseEvent]:
        """Changes of leases, as they happen, until the peer is closed: revoked, suspect, stale, lost, active again."""
        while True:
            self._changes.clear()
            for event in self._client.events.drain():
                yield event
            if self._closed:
                return
            await self._changes.wait()

    async def close(self, *, timeout: float = 5.0, force: bool = False) -> None:
        """Release what is still leased, then disconnect.  Idempotent.

        MappingBusyError, and nothing changed, while a region imported with one of the leases is open; with ``force`` such
        leases are not renewed any more, and released when it is closed.  Cancelled or interrupted, it is closed too: a
        thread tells the server then.
        """
        timeout = patience("CALL", "timeout", timeout)
        if self._closed:
            return
        used = [user for lease in self.leases for user in lease.users]
        if used and not force:
            raise MappingBusyError(errno.EBUSY, f"{self!r} renews the lease of {', '.join(used)}: close that first")
        try:
            await self._ask(lambda client: client.holdings.give_back(timeout))
        finally:
            self._stop()

    async def __aenter__(self) -> AsyncPeer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close(force=error is not None)
        except Exception as refusal:
            if error is None:
                raise
            error.add_note(f"and {self!r} stayed open: {refusal}")

    def __repr__(self) -> str:
        return f"<obmm peer {self.address} in an event loop{', closed' if self._closed else ''}>"

    # --- driving the client --------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Something came, or is due."""
        if self._closed:
            self._stop()  # an interrupt came in the middle of it
            return
        try:
            self._client.turn(0.0)
        except Exception:  # its selector fails for good: who waits is told, and does not wait for ever
            log.exception("%r: nothing can be waited for any more: closed", self)
            self._stop()
        finally:  # an interrupt costs this turn, not those to come
            if not self._closed:
                self._schedule()

    def _schedule(self) -> None:
        before, self._timer = self._timer, self._loop.call_later(self._client.timeout(), self._turn)
        if before is not None:
            before.cancel()

    def _run(self, call: Callable[[Client], Future[T]]) -> Future[T]:
        """Begin something in the client, and let it do what that needs."""
        if self._closed:
            raise ClosedError.of(self)
        future = call(self._client)
        self._turn()
        return future

    async def _await(self, future: Future[T]) -> T:
        return await asyncio.wrap_future(future, loop=self._loop)

    async def _ask(self, call: Callable[[Client], Future[T]]) -> T:
        return await self._await(self._run(call))

    def _unwanted(self, fetching: Future[Lease]) -> None:
        """The caller does not wait for this lease any more."""
        if self._closed or fetching.cancelled():
            return
        if fetching.exception() is None:
            lease = fetching.result()
            self._loop.call_soon_threadsafe(lambda: self._closed or self._run(_release_of(lease)))

    def _release_soon(self, lease: Lease, timeout: float) -> bool:
        """For `Lease.release`, which cannot await, from any thread: delivered by the loop; True would be too early."""

        def release() -> None:
            if self._closed:
                end(self._client)
            else:
                self._run(lambda client: client.holdings.release(lease, timeout))

        try:
            self._loop.call_soon_threadsafe(release)
        except RuntimeError:  # the loop is closed
            end(self._client)
        return False

    def _stop(self) -> None:
        """Again after an interrupt in it."""
        if self._stopped:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(ValueError, OSError):
            self._loop.remove_reader(self._client.fileno())
            self._loop.remove_reader(self._client.events.fileno())
        self._changes.set()
        self._stopped = True
        end(self._client)


def _check_lease(lease: object) -> None:
    if not isinstance(lease, Lease):
        raise wrong_type("CALL", "lease", lease, "what fetch() gave")


@contextlib.asynccontextmanager
async def _within(timeout: float) -> AsyncIterator[None]:
    """A with block that may take so many seconds; DeadlineError."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except DeadlineError:
        raise
    except TimeoutError:
        raise DeadlineError(f"no answer within {timeout} s") from None


def _release_of(lease: Lease) -> Callable[[Client], Future[bool]]:
    return lambda client: client.holdings.release(lease, CALL_S)


class _Releaser:
    """What a lease keeps of its peer."""

    def __init__(self, peer: AsyncPeer) -> None:
        self._peer = weakref.ref(peer)  # the loop keeps it: when that has ended, nobody does
        self._client = peer._client

    def release(self, lease: Lease, timeout: float) -> bool:
        peer = self._peer()
        if peer is not None and not peer.closed:
            return peer._release_soon(lease, timeout)
        end(self._client)
        return False

    def watch(self, lease: Lease, callback: Callable[[LeaseEvent], None]) -> None:
        peer = self._peer()
        if peer is None:
            raise ClosedError.of(lease, "was fetched in an event loop that has ended")
        peer._client.holdings.dispatcher.add(lease, callback)

    def imported(self, lease: Lease, device: str) -> None:
        BOOK.imported(lease._id, device)


class Waitable(Protocol):
    """Something with a descriptor that is readable once it is done, as tickets of `obmm.rows.aio` are."""

    def fileno(self) -> int: ...


async def done(ticket: Waitable) -> None:
    """Wait, without a thread, until the descriptor of `ticket` is readable; then ask the ticket itself.

    `ticket`: whatever has a `fileno` of that kind, as a `obmm.blocks.BlockStore` or a `Lease`.  ObmmArgumentError: it has none.
    ClosedError: its descriptor is closed.  ObmmError EPERM: it is a file's, which is always readable.

    >>> import asyncio, os
    >>> from types import SimpleNamespace
    >>> from obmm.exchange import aio
    >>> reader, writer = os.pipe()
    >>> _ = os.write(writer, b"1")
    >>> async def main():
    ...     await aio.done(SimpleNamespace(fileno=lambda: reader))
    >>> asyncio.run(main())
    >>> os.close(reader), os.close(writer)
    (None, None)
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    # a number of its own: others may wait for the same ticket, and it may be closed meanwhile
    with contextlib.closing(Descriptor.dup(_number_of(ticket))) as own:
        try:
            loop.add_reader(own.fileno(), wake)
        except OSError as error:
            raise ObmmError(
                error.errno or errno.EIO,
                f"CALL: await {ticket!r}: {error.strerror}: a file is always readable; fix: a ticket, or another eventfd, pipe "
                "or socket",
                operation="CALL",
            ) from None
        try:
            await ready
        finally:
            loop.remove_reader(own.fileno())


def _number_of(ticket: object) -> int:
    """Its descriptor; ObmmArgumentError for what has none, ClosedError for what has none any more."""
    ask = getattr(ticket, "fileno", None)
    if not callable(ask):
        raise wrong_type("CALL", "ticket", ticket, "something with a fileno(), as obmm.rows.aio.submit() returns")
    try:
        number = ask()
    except ValueError:  # so say files, selectors and others that are closed
        number = -1
    number = whole("CALL", "fileno()", number, low=-1, high=(1 << 31) - 1)
    if number < 0:
        raise ClosedError.of(ticket)
    return number


__all__ = ["AsyncPeer", "connect", "done"]
