# SPDX-License-Identifier: Apache-2.0
"""`obmm.connect`: another node that lends memory."""

from __future__ import annotations

import atexit
import builtins
import errno
import json
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from obmm.arguments import patience, wrong_type
from obmm.closing import Closing, Living, tell_of_forks, undo
from obmm.errors import ClosedError, MappingBusyError, ObmmArgumentError, ObmmError
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.asking import check_fetch, not_there
from obmm.exchange.call_messages import Call, Reply, Status, StatusPage
from obmm.exchange.client import Client, Target
from obmm.exchange.errors import ProtocolError, Refusal, RequestRefusedError
from obmm.exchange.events import EventQueue
from obmm.exchange.held import BOOK, HeldLease, Proof
from obmm.exchange.keys import Key, KeySource, load_keys
from obmm.exchange.lease import Lease, LeaseEvent
from obmm.exchange.mailbox import result_of
from obmm.exchange.messages import ANY_EID, Fetch, List, Listed, Message, Mode, RegionEntry
from obmm.exchange.net import check_one_mode, split_address
from obmm.exchange.tls import TlsFiles
from obmm.region.leaving import AT_EXIT_S, leave
from obmm.undisturbed import joined

if TYPE_CHECKING:
    from obmm.exchange.remote_table import RemoteTable
    from obmm.region.device import Device
    from obmm.region.imported import ImportedRegion

log = logging.getLogger("obmm.exchange.client")

CALL_S = 10.0
NAMES_S = 2.0  # to ask for the names that exist, after one that does not

T = TypeVar("T")


def connect(
    address: str,
    *,
    key: KeySource | None = None,
    tls: TlsFiles | None = None,
    plain: bool = False,
    timeout: float = CALL_S,
    server_name: str | None = None,
    name: str | None = None,
) -> Peer:
    """Connect to a server of `obmm.serve` at ``host``, ``host:port`` or ``[ipv6]:port`` (default port 13857).

    Exactly one of ``key`` (path of the key file), ``tls`` and ``plain=True`` must be given, and the same as the server's:
    nothing weaker is ever negotiated.  With TLS the server's certificate must name ``server_name``, by default the
    host of ``address``.  ``name`` is what the server's log and status call this client (default: host name and pid).

    Raises PeerUnreachableError, DeadlineError after ``timeout`` seconds, AuthenticationError, ProtocolError.

    >>> with obmm.serve({}, port=0, plain=True) as server, obmm.connect(server.addresses[0], plain=True) as peer:
    ...     peer.list()
    {}
    """
    timeout = patience("CALL", "timeout", timeout)
    target = target_of(address, key=key, tls=tls, plain=plain, server_name=server_name, name=name)
    peer = Peer(Client(target, EventQueue()))
    try:
        peer._ask(partial(peer._client.open, timeout), timeout)
    except BaseException:
        peer._stop(0.5)  # a name server that hangs must not hold us
        raise
    return peer


def target_of(
    address: str,
    *,
    key: KeySource | None,
    tls: TlsFiles | None,
    plain: bool,
    server_name: str | None,
    name: str | None,
) -> Target:
    """Where the arguments of `connect` lead, and how; ObmmArgumentError for unfit ones."""
    check_one_mode("CONNECT", key, tls, plain)
    host, port = split_address(address)
    mode = Mode.TLS if tls is not None else Mode.KEY if key is not None else Mode.PLAIN
    return Target(
        host,
        port,
        mode,
        _client_name(name),
        key=load_keys(key, 1)[0] if key is not None else None,
        context=tls.context(server=False) if tls is not None else None,
        server_name=server_name,
        loopback_only=plain,
        proof=_proof(key, tls, server_name),
    )


class Peer(Closing):
    """A connection to another node's server; made by `connect`.  Safe to use from many threads.

    One thread keeps it up: it renews the leases, and reconnects when TCP breaks.  `fileno` is readable while `events`
    has changes of leases to tell.

    `timeout` is in seconds, here and there `name` a region's or a handler's on the server; DeadlineError and
    PeerUnreachableError from every call that asks the server, ClosedError after `close`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        client.holdings.over = BOOK.over
        self._open = True
        self._device: Device | None = None  # opened for import_region, closed with the peer
        self._mutex = threading.Lock()
        client.wanted = partial(_is_alive, weakref.ref(self))
        self._thread = threading.Thread(target=_run, args=(client,), name=f"obmm-peer-{client.target}", daemon=True)
        self._warn_if_forgotten(f"the peer {client.target}", client.mailbox.end)
        tell_of_forks(self)
        self._thread.start()
        _peers.add(self)
        _leave_at_exit()

    @property
    def address(self) -> str:
        """The server's, as ``host:port``."""
        return str(self._client.target)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that are not released."""
        return self._call(lambda: self._client.holdings.held)

    def list(self, *, timeout: float = CALL_S) -> dict[str, RegionEntry]:
        """The regions that the server publishes, by name; nothing in the entries opens their memory."""
        timeout = patience("CALL", "timeout", timeout)
        deadline = time.monotonic() + timeout
        found: dict[str, RegionEntry] = {}
        first, total = 0, 1
        while first < total:
            left = deadline - time.monotonic()
            answer = self._ask(partial(self._client.request, List(first), left), left)
            assert isinstance(answer, Listed)
            found |= {entry.name: entry for entry in answer.entries}
            total = answer.total if answer.entries else 0
            first += len(answer.entries)
        return found

    def fetch(self, name: str, *, importer_eid: bytes = ANY_EID, timeout: float = CALL_S) -> Lease:
        """A lease on a region, with the handle to import and its manifest.

        ``importer_eid`` tells the server which controller will import (for its status; advice, not a boundary).
        RequestRefusedError when there is no such region, or the server has reached a limit.
        """
        timeout = patience("CALL", "timeout", timeout)
        check_fetch(name, importer_eid)
        message = Fetch(os.urandom(16), name, importer_eid)
        target = self._client.target
        BOOK.note(HeldLease(message.lease, name, str(target), target.proof))
        try:
            return self._ask(partial(self._client.holdings.fetch, message, timeout, _Releaser(self)), timeout)
        except RequestRefusedError as refusal:
            if refusal.reason is not Refusal.NO_REGION:
                raise
            there: Iterable[str] | None = None
            with suppress(ObmmError):  # a server that does not say what there is has still refused
                there = self.list(timeout=NAMES_S)
            raise not_there(refusal, name, there) from None

    def release_for_the_dead(self, lease: bytes, *, timeout: float = CALL_S) -> bool:
        """Release a lease whose holder has died, by its id (`obmm.exchange.held`); True once the server has confirmed."""
        timeout = patience("CALL", "timeout", timeout)
        return self._ask(partial(self._client.holdings.release_unknown, lease, timeout), timeout)

    def import_region(self, name: str, device: Device | None = None, **options: Any) -> ImportedRegion:
        """Fetch, acquire a window, import, map, check the header; whatever fails, everything before it is undone.

        ``device`` is the local device (default ``obmm.open()``, closed with the peer), ``options`` go to `Device.import_region`.
        ObmmArgumentError for what is no device.
        """
        if device is not None and not hasattr(device, "import_region"):
            raise wrong_type("IMPORT", "device", device, "a device of obmm.open()")
        opened = device if device is not None else self._own_device()
        controllers = opened.controllers
        lease = self.fetch(name, importer_eid=controllers[0].eid if controllers else ANY_EID)
        try:
            region = opened.import_region(lease, **options)
        except BaseException as error:
            undo(error, lease.release, "releasing the lease")
            raise
        try:
            region.check()
        except BaseException as error:
            undo(error, region.close, "closing the import")
            raise
        return region

    def open(self, name: str, device: Device | None = None, **options: Any) -> RemoteTable:
        """The array that is published as `name`, as one object to index: fetched, imported, mapped for reading.

        `device` and `options` as for `import_region`.  Close the table, or use it in a with block: that releases the lease.
        ObmmArgumentError when `name` is something else than an array (an Engram table, raw bytes).

            with peer.open("embeddings") as table:
                rows = table[[3, 1, 2]]
        """
        from obmm.exchange.remote_table import RemoteTable  # a peer that only fetches needs no mapping

        region = self.import_region(name, device, **options)
        try:
            lease = region.lease
            return RemoteTable(region, name, ArrayManifest.parse(lease.manifest if isinstance(lease, Lease) else {}))
        except BaseException as error:
            undo(error, region.close, "closing the import")
            raise

    def status(self, *, timeout: float = CALL_S) -> dict[str, Any]:
        """The server's state, as `Server.status` gives it: who holds which lease.

        ProtocolError for an answer that is not a status.
        """
        timeout = patience("CALL", "timeout", timeout)
        deadline = time.monotonic() + timeout
        first = 0
        items: builtins.list[dict[str, Any]] = []
        while True:
            left = deadline - time.monotonic()
            answer = self._ask(partial(self._client.request, Status(first), left), left)
            assert isinstance(answer, StatusPage)
            page = _status_page(answer.json)
            items += page["items"]
            if not answer.next:
                return page | {"items": items}
            if answer.next <= first:
                raise ProtocolError(Refusal.PAYLOAD, "STATUS_PAGE: the pages go backwards")
            first = answer.next

    def call(self, name: str, body: bytes, *, timeout: float = CALL_S) -> bytes:
        """What the handler of calls to ``name`` on the server answers to ``body`` (`Server.answer_calls`).

        RequestRefusedError with the handler's reason, DeadlineError after ``timeout`` seconds.
        """
        timeout = patience("CALL", "timeout", timeout)
        return result_of(self, self.submit_call(name, body, timeout=timeout), timeout + 1.0)

    def submit_call(self, name: str, body: bytes, *, timeout: float = CALL_S) -> Future[bytes]:
        """`call` without waiting.  What follows the future runs in the peer's thread: it must be short.

        ObmmArgumentError for a `body` that is too long.
        """
        timeout = patience("CALL", "timeout", timeout)
        if len(body) > Call.MOST:
            raise ObmmArgumentError.because(
                "CALL", errno.EMSGSIZE, f"a body of {len(body)} bytes", f"at most {Call.MOST}; ask in several calls"
            )
        done: Future[bytes] = Future()

        def finish(answer: Future[Message]) -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                reply = answer.result()
                assert isinstance(reply, Reply)
            except CancelledError:
                done.set_exception(ClosedError.of(self))
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(reply.body)

        posted = self._client.mailbox.post(partial(self._client.request, Call(name, body), timeout))
        posted.add_done_callback(finish)
        return done

    def events(self) -> tuple[LeaseEvent, ...]:
        """Changes of leases since the last call, oldest first; empties `fileno`."""
        return self._client.events.drain()

    def fileno(self) -> int:
        """A descriptor for poll, select or epoll; only wait on it, never read it."""
        return self._client.events.fileno()

    def close(self, *, timeout: float = 5.0, force: bool = False) -> None:
        """Release what is still leased, then disconnect.  Idempotent.  Never waits longer than ``timeout`` seconds.

        A server that cannot be told counts the leases as unknown once they expire; the log says so.

        MappingBusyError, and nothing changed, while a region imported with one of the leases is open.  With ``force``
        such leases are left to the server, where they count as unknown once they expire.
        """
        timeout = patience("CALL", "timeout", timeout)
        if self._open:
            self._give_back(timeout, force)
        self._stop()

    def _give_back(self, timeout: float, force: bool) -> None:
        deadline = time.monotonic() + timeout
        leases = self.leases
        used = [user for lease in leases for user in lease.users]
        if used and not force:
            raise MappingBusyError(errno.EBUSY, f"{self!r} renews the lease of {', '.join(used)}: close that first")
        pending = [
            self._client.mailbox.post(partial(self._client.holdings.release, lease, timeout))
            for lease in leases
            if not lease.users
        ]
        for future in pending:
            result_of(self, future, deadline + 1.0 - time.monotonic())
        left = max(0.0, deadline - time.monotonic())
        self._ask(partial(self._client.holdings.settled, left), left)
        if self._device is not None:
            self._device.close(force=force)

    def __repr__(self) -> str:
        return f"<obmm peer {self.address}, mode {self._client.target.mode.name}{'' if self._open else ', closed'}>"

    def _own_device(self) -> Device:
        from obmm.region.opening import open as open_device  # a peer that only fetches needs no device

        with self._mutex:
            if self._device is None:
                self._device = open_device()
            return self._device

    def _ask(self, call: Callable[[], Future[T]], timeout: float) -> T:
        # The engine keeps the deadlines; one second more, in case that it cannot.
        answer: T = result_of(self, self._client.mailbox.post(call), timeout + 1.0)
        return answer

    def _call(self, call: Callable[[], T]) -> T:
        answer: T = result_of(self, self._client.mailbox.post(call), CALL_S)
        return answer

    def _stop(self, patience: float = CALL_S) -> None:
        """End the thread.  Idempotent: who was interrupted in it calls it again."""
        self._open = False
        if self._forked:
            return
        self._client.mailbox.post(self._client.stop)
        if threading.current_thread() is not self._thread:
            joined(self._thread, patience)
        self._need_not_warn()

    def _die(self) -> None:
        was_open = self._open
        super()._die()
        if was_open:
            self._client.abandon()


_peers: Living[Peer] = Living()


@cache
def _leave_at_exit() -> None:
    """Once per process, and late: what a program registered before its first peer still finds everything open."""
    atexit.register(_leave)


def _leave() -> None:
    """What a program that ends has leased is given back; who needs longer than it has time is left to `obmm gc`."""
    deadline = time.monotonic() + AT_EXIT_S
    leave()
    for peer in _peers.snapshot():
        with suppress(Exception):
            peer.close(timeout=max(0.0, min(1.0, deadline - time.monotonic())), force=True)


class _Releaser:
    """What a lease keeps of its peer: the peer lives as long as one of its leases."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def release(self, lease: Lease, timeout: float) -> bool:
        client = self._peer._client
        if self._peer.closed:
            return False
        return self._peer._ask(partial(client.holdings.release, lease, timeout), timeout)

    def imported(self, lease: Lease, device: str) -> None:
        BOOK.imported(lease._id, device)

    def watch(self, lease: Lease, callback: Callable[[LeaseEvent], None]) -> None:
        self._peer._call(partial(self._peer._client.holdings.dispatcher.add, lease, callback))


def _proof(key: KeySource | None, tls: TlsFiles | None, server_name: str | None) -> Proof:
    """By paths, for the notes; a key that has no file cannot be noted."""
    if tls is not None:
        files = [tls.certificate, tls.private_key, tls.authority, *([tls.revoked] if tls.revoked is not None else [])]
        return Proof("tls", tuple(os.path.abspath(each) for each in files), server_name)
    if key is not None:
        return Proof("key", (os.path.abspath(key.name if isinstance(key, Key) else key),))
    return Proof("plain")


def _status_page(text: bytes) -> dict[str, Any]:
    """One page of a status; ProtocolError for anything else that a server may say."""
    try:
        page = json.loads(text)
    except (ValueError, RecursionError):
        page = None
    if (
        not isinstance(page, dict)
        or not isinstance(page.get("server"), dict)
        or not isinstance(page.get("items"), list)
    ):
        raise ProtocolError(Refusal.PAYLOAD, "STATUS_PAGE: no status of a server")
    if not all(isinstance(item, dict) for item in page["items"]):
        raise ProtocolError(Refusal.PAYLOAD, "STATUS_PAGE: an item that is not an object")
    return page


def _is_alive(owner: weakref.ref[object]) -> bool:
    return owner() is not None


def _run(client: Client) -> None:
    try:
        client.run()
    except Exception:
        log.exception("bug: the peer's loop ended in an exception")


def _client_name(name: str | None) -> str:
    text = f"{socket.gethostname()}/{os.getpid()}" if name is None else name
    if len(text) > 64 or not all("!" <= c <= "~" for c in text):
        if name is not None:
            raise ObmmArgumentError.because(
                "CONNECT", errno.EINVAL, f"name {name!r}", "use at most 64 printable ASCII characters without spaces"
            )
        return f"pid/{os.getpid()}"
    return text
