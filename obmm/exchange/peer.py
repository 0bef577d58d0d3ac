# SPDX-License-Identifier: Apache-2.0
"""`obmm.connect`: another node that lends memory."""

from __future__ import annotations

import builtins
import errno
import json
import logging
import os
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from obmm.closing import close_on_exit
from obmm.errors import MappingBusyError, ObmmArgumentError
from obmm.exchange.client import Client, Target
from obmm.exchange.events import EventQueue
from obmm.exchange.keys import KeySource, load_keys
from obmm.exchange.lease import Lease, LeaseEvent
from obmm.exchange.mailbox import result_of
from obmm.exchange.messages import ANY_EID, REGION_NAME, List, Listed, Mode, RegionEntry, Status, StatusPage
from obmm.exchange.net import check_one_mode, split_address
from obmm.exchange.tls import TlsFiles

if TYPE_CHECKING:
    from obmm.device import Device
    from obmm.imported import ImportedRegion

log = logging.getLogger("obmm.exchange.client")

CALL_S = 10.0

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
    """
    check_one_mode("CONNECT", key, tls, plain)
    host, port = split_address(address)
    mode = Mode.TLS if tls is not None else Mode.KEY if key is not None else Mode.PLAIN
    target = Target(
        host,
        port,
        mode,
        _client_name(name),
        key=load_keys(key, 1)[0] if key is not None else None,
        context=tls.context(server=False) if tls is not None else None,
        server_name=server_name,
        loopback_only=plain,
    )
    peer = Peer(Client(target, EventQueue()))
    try:
        peer._ask(partial(peer._client.open, timeout), timeout)
    except BaseException:
        peer._stop(0.5)  # a name server that hangs must not hold us
        raise
    return peer


class Peer:
    """A connection to another node's server; made by `connect`.  Safe to use from many threads.

    One thread keeps it up: it renews the leases, and reconnects when TCP breaks.  `fileno` is readable while `events`
    has changes of leases to tell.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._closed = False
        self._device: Device | None = None  # opened for import_region, closed with the peer
        self._mutex = threading.Lock()
        self._thread = threading.Thread(target=_run, args=(client,), name=f"obmm-peer-{client.target}", daemon=True)
        _alive.add(self)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _abandoned, client, os.getpid())

    @property
    def address(self) -> str:
        return str(self._client.target)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that are not released."""
        return self._call(self._client.held)

    def list(self, *, timeout: float = CALL_S) -> dict[str, RegionEntry]:
        """The regions that the server publishes, by name; nothing in the entries opens their memory."""
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
        if not isinstance(name, str) or not REGION_NAME.fullmatch(name):
            raise ObmmArgumentError.because("FETCH", errno.EINVAL, f"{name!r} is no region name", "see peer.list()")
        if not isinstance(importer_eid, bytes) or len(importer_eid) != 16:
            raise ObmmArgumentError.because(
                "FETCH", errno.EINVAL, "importer_eid is not 16 bytes", "use obmm.eid(number)"
            )
        client = self._client
        return self._ask(partial(client.fetch, name, importer_eid, timeout, _Releaser(self)), timeout)

    def import_region(self, name: str, device: Device | None = None, **options: Any) -> ImportedRegion:
        """Fetch, acquire a window, import, map, check the header; whatever fails, everything before it is undone.

        ``device`` is the local device (default ``obmm.open()``, closed with the peer), ``options`` go to `Device.import_region`.
        """
        opened = device if device is not None else self._own_device()
        controllers = opened.controllers
        lease = self.fetch(name, importer_eid=controllers[0].eid if controllers else ANY_EID)
        try:
            region = opened.import_region(lease, **options)
        except BaseException:
            lease.release()
            raise
        try:
            region.check()
        except BaseException:
            region.close()
            raise
        return region

    def status(self, *, timeout: float = CALL_S) -> dict[str, Any]:
        """The server's state, as `Server.status` gives it: who holds which lease."""
        deadline = time.monotonic() + timeout
        first = 0
        items: builtins.list[dict[str, Any]] = []
        while True:
            left = deadline - time.monotonic()
            answer = self._ask(partial(self._client.request, Status(first), left), left)
            assert isinstance(answer, StatusPage)
            page: dict[str, Any] = json.loads(answer.json)
            items += page["items"]
            first = answer.next
            if not first:
                return page | {"items": items}

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
        if self._closed:
            return
        deadline = time.monotonic() + timeout
        leases = self.leases
        used = [user for lease in leases for user in lease.users]
        if used and not force:
            raise MappingBusyError(errno.EBUSY, f"{self!r} renews the lease of {', '.join(used)}: close that first")
        pending = [
            self._client.mailbox.post(partial(self._client.release, lease, timeout))
            for lease in leases
            if not lease.users
        ]
        for future in pending:
            result_of(self, future, deadline + 1.0 - time.monotonic())
        left = max(0.0, deadline - time.monotonic())
        self._ask(partial(self._client.settled, left), left)
        if self._device is not None:
            self._device.close(force=force)
        self._stop()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_on_exit(self, error)

    def __repr__(self) -> str:
        return f"<obmm peer {self.address}, mode {self._client.target.mode.name}{', closed' if self._closed else ''}>"

    def _own_device(self) -> Device:
        from obmm.device import open as open_device  # a peer that only fetches needs no device

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
        self._closed = True
        self._client.mailbox.post(self._client.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)
        self._finalizer.detach()

    def _after_fork(self) -> None:
        self._closed = True
        self._finalizer.detach()
        self._client.abandon()


class _Releaser:
    """What a lease keeps of its peer: the peer lives as long as one of its leases."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def release(self, lease: Lease, timeout: float) -> bool:
        client = self._peer._client
        if self._peer.closed:
            return False
        return self._peer._ask(partial(client.release, lease, timeout), timeout)

    def watch(self, lease: Lease, callback: Callable[[LeaseEvent], None]) -> None:
        self._peer._call(partial(self._peer._client.watch, lease, callback))


_alive: weakref.WeakSet[Peer] = weakref.WeakSet()


def _forked() -> None:
    for peer in tuple(_alive):
        if not peer.closed:
            peer._after_fork()


os.register_at_fork(after_in_child=_forked)


def _run(client: Client) -> None:
    try:
        client.run()
    except Exception:
        log.exception("bug: the peer's loop ended in an exception")


def _abandoned(client: Client, pid: int) -> None:
    if pid == os.getpid():
        warnings.warn(f"the peer {client.target} was never closed", ResourceWarning, stacklevel=2)
        client.mailbox.post(client.stop)


def _client_name(name: str | None) -> str:
    text = f"{socket.gethostname()}/{os.getpid()}" if name is None else name
    if len(text) > 64 or not all("!" <= c <= "~" for c in text):
        if name is not None:
            raise ObmmArgumentError.because(
                "CONNECT", errno.EINVAL, f"name {name!r}", "use at most 64 printable ASCII characters without spaces"
            )
        return f"pid/{os.getpid()}"
    return text
