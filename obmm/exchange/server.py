# SPDX-License-Identifier: Apache-2.0
"""`obmm.serve`: publish regions to other nodes."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from obmm.closing import close_on_exit
from obmm.errors import ClosedError, ObmmArgumentError
from obmm.exchange.desk import LeaseDesk, ServerEvent
from obmm.exchange.errors import LeasesOutstandingError
from obmm.exchange.events import EventQueue
from obmm.exchange.journal import LeaseJournal, default_journal
from obmm.exchange.keys import KeySource, load_keys
from obmm.exchange.leases import LeaseRecord
from obmm.exchange.limits import Limits
from obmm.exchange.mailbox import result_of
from obmm.exchange.messages import Mode, RevokeReason
from obmm.exchange.net import DEFAULT_PORT, check_one_mode, is_loopback, join_address
from obmm.exchange.publication import Manifest, Publication, Publishable, PublishedRegion
from obmm.exchange.service import Credentials, Service
from obmm.exchange.tls import TlsFiles

log = logging.getLogger("obmm.exchange.server")

DEFAULT_TERM_S = 60.0
KEYS_AT_ONCE = 2
CALL_S = 10.0  # the longest that the loop may take to answer a local call

_OUR_BUG = "; this is a bug of obmm"

T = TypeVar("T")


def serve(
    regions: Mapping[str, Publishable] | None = None,
    *,
    host: str | None = None,
    port: int = DEFAULT_PORT,
    key: KeySource | Iterable[KeySource] | None = None,
    tls: TlsFiles | None = None,
    plain: bool = False,
    term_s: float = DEFAULT_TERM_S,
    journal: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
) -> Server:
    """Publish regions by name and hand out leases on them (docs/exchange.md).

    ``regions`` maps a name to an exported region, or to (region, manifest); a manifest is a dict of at most 64 KiB of
    JSON.  More can be published later.

    Exactly one of ``key`` (path of a key file, or two of them during a rotation), ``tls`` and ``plain=True`` must be
    given.  A key authenticates both sides and every frame, but hides nothing: on networks where others can listen use
    TLS.  Plain mode works on loopback only and binds to it by default; the other modes bind to all interfaces.

    ``term_s`` is the lease term in seconds; ``journal`` the file that remembers leases across restarts (default
    ``$XDG_STATE_HOME/obmm/leases-<port>.journal``).  Port 0 picks a free one: see `Server.port`.

    Raises ObmmArgumentError for unfit arguments, JournalError for a damaged journal, OSError when binding fails.
    """
    credentials = _credentials(key, tls, plain)
    if not 0.05 <= term_s <= 86_400:
        raise ObmmArgumentError.because(
            "SERVE", errno.EINVAL, f"a lease term of {term_s} s", "choose 0.05 s to one day; 60 s is the default"
        )
    publications = [_publication(name, each) for name, each in (regions or {}).items()]
    listeners = _bind(host, port, loopback_only=credentials.mode is Mode.PLAIN)
    try:
        bound = listeners[0].getsockname()[1]
        records = LeaseJournal(journal if journal is not None else default_journal(bound))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    events: EventQueue[ServerEvent] = EventQueue()
    limits = limits or Limits()
    service = Service(listeners, credentials, LeaseDesk(records, term_s, limits, events), limits, events)
    server = Server(service, listeners, records.path)
    try:
        for publication in publications:
            server._call(partial(service.desk.publish, publication))
    except BaseException:
        server.close(timeout=0, force=True)
        raise
    return server


class Server:
    """A running server; made by `serve`.  All methods may be called from any thread.

    One thread runs it.  `fileno` is readable while `events` has something to tell, for whoever has an event loop.
    Leaving the ``with`` block closes it.
    """

    def __init__(self, service: Service, listeners: list[socket.socket], journal: Path) -> None:
        self._service = service
        self._addresses = tuple(join_address(*listener.getsockname()[:2]) for listener in listeners)
        self.port: int = listeners[0].getsockname()[1]
        self.mode = service.credentials.mode
        self.journal = journal
        self._closed = threading.Event()
        self._dead = False
        self._thread = threading.Thread(
            target=_run, args=(service, self._closed), name=f"obmm-server-{self.port}", daemon=True
        )
        _alive.add(self)
        self._thread.start()
        log.info("serving on %s in %s mode; %s", ", ".join(self._addresses), self.mode.name, _BANNER[self.mode])
        self._finalizer = weakref.finalize(self, _abandoned, service, self._closed, self.port)

    @property
    def addresses(self) -> tuple[str, ...]:
        """What it listens on, as ``host:port``."""
        return self._addresses

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def publish(self, name: str, region: PublishedRegion, manifest: Manifest | None = None) -> None:
        """Publish one more region; RequestRefusedError when the name is taken."""
        publication = Publication(name, region, manifest)
        self._call(partial(self._service.desk.publish, publication))

    def revoke(self, name: str, *, timeout: float = 30.0, force: bool = False) -> tuple[LeaseRecord, ...]:
        """Withdraw a region: tell its importers, and wait until they have released it.

        Until this has returned the region must not be unexported: doing that under a live importer is a machine-level
        error on hardware (driver specification 8).  LeasesOutstandingError after ``timeout`` seconds says who has not
        released; call again to wait longer.  With ``force`` these leases are given up and returned instead.
        """
        outstanding = self._revoke([name], timeout, RevokeReason.WITHDRAWN)
        if outstanding and not force:
            raise _outstanding(outstanding)
        self._call(partial(self._service.desk.force, name))
        return outstanding

    def rekey(self, key: KeySource | Iterable[KeySource]) -> None:
        """Accept these keys (one, or two during a rotation) from now on; sessions that exist go on."""
        if self.mode is not Mode.KEY:
            raise ObmmArgumentError.because(
                "SERVE", errno.EINVAL, f"a server in {self.mode.name} mode has no keys", "start it with key=PATH"
            )
        keys = load_keys(key, KEYS_AT_ONCE)
        self._call(partial(self._service.rekey, keys))

    def status(self) -> dict[str, Any]:
        """What it serves and who holds what, ready for JSON (docs/exchange-protocol.md, section 4.19); no secrets."""
        return self._call(self._service.status)

    def events(self) -> tuple[ServerEvent, ...]:
        """What happened since the last call; empties `fileno`."""
        return self._service.events.drain()

    def fileno(self) -> int:
        """A descriptor for poll, select or epoll; only wait on it, never read it."""
        return self._service.events.fileno()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the server is closed; False after ``timeout`` seconds."""
        return self._closed.wait(timeout)

    def close(self, *, timeout: float = 30.0, force: bool = False) -> tuple[LeaseRecord, ...]:
        """Revoke everything, wait for the releases, stop.  Idempotent.

        LeasesOutstandingError when leases are still out after ``timeout`` seconds: the server then goes on listening
        for releases (it grants nothing any more), and close can be called again.  With ``force`` they are given up
        and returned.
        """
        if self._closed.is_set() or self._dead:
            return ()
        try:
            names = self._call(self._service.desk.begin_closing)
            outstanding = self._revoke(names, timeout, RevokeReason.CLOSING)
            if outstanding and not force:
                raise _outstanding(outstanding)
            for name in names:
                self._call(partial(self._service.desk.force, name))
            self._call(self._service.stop)
        except ClosedError:
            outstanding = ()  # somebody else closed it meanwhile
        self._thread.join(CALL_S)
        self._finalizer.detach()
        return outstanding

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_on_exit(self, error)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "serving"
        return f"<obmm server on {', '.join(self._addresses)}, mode {self.mode.name}, {state}>"

    def _revoke(self, names: Iterable[str], timeout: float, reason: RevokeReason) -> tuple[LeaseRecord, ...]:
        pending: list[Future[tuple[LeaseRecord, ...]]] = [
            self._service.mailbox.post(partial(self._service.desk.revoke, name, timeout, reason)) for name in names
        ]
        deadline = time.monotonic() + timeout + CALL_S
        return tuple(
            record for future in pending for record in result_of(self, future, deadline - time.monotonic(), _OUR_BUG)
        )

    def _call(self, call: Callable[[], T]) -> T:
        result: T = result_of(self, self._service.mailbox.post(call), CALL_S, _OUR_BUG)
        return result

    def _after_fork(self) -> None:
        self._dead = True
        self._finalizer.detach()
        self._service.abandon()
        self._closed.set()


_alive: weakref.WeakSet[Server] = weakref.WeakSet()


def _forked() -> None:
    for server in tuple(_alive):
        if not server.closed:
            server._after_fork()


os.register_at_fork(after_in_child=_forked)

_BANNER = {
    Mode.PLAIN: "nothing is protected",
    Mode.KEY: "both sides are authenticated by key; the handles are not hidden from who can listen on the network",
    Mode.TLS: "TLS 1.3 with certificates on both sides",
}


def _run(service: Service, closed: threading.Event) -> None:
    try:
        service.run()
    except Exception:
        log.exception("bug: the server's loop ended in an exception")
    finally:
        closed.set()


def _abandoned(service: Service, closed: threading.Event, port: int) -> None:
    if not closed.is_set():
        warnings.warn(f"an obmm server on port {port} was never closed", ResourceWarning, stacklevel=2)
        service.mailbox.post(service.stop)


def _outstanding(records: tuple[LeaseRecord, ...]) -> LeasesOutstandingError:
    who = ", ".join(f"{each.holder} ({each.region}, lease {each.short}, {each.state.value})" for each in records[:10])
    more = f" and {len(records) - 10} more" if len(records) > 10 else ""
    return LeasesOutstandingError(
        f"{len(records)} lease(s) were not released in time: {who}{more}. Unexporting under a live importer is a "
        "machine-level error on its host: have them unimport, then call again, or pass force=True if they are dead",
        records,
    )


def _credentials(key: KeySource | Iterable[KeySource] | None, tls: TlsFiles | None, plain: bool) -> Credentials:
    check_one_mode("SERVE", key, tls, plain)
    if tls is not None:
        return Credentials(Mode.TLS, context=tls.context(server=True))
    if key is not None:
        return Credentials(Mode.KEY, keys=load_keys(key, KEYS_AT_ONCE))
    return Credentials(Mode.PLAIN)


def _publication(name: str, each: Publishable) -> Publication:
    if isinstance(each, tuple):
        return Publication(name, each[0], each[1])
    return Publication(name, each)


def _bind(host: str | None, port: int, *, loopback_only: bool) -> list[socket.socket]:
    if not 0 <= port <= 65535:
        raise ObmmArgumentError.because("SERVE", errno.EINVAL, f"port {port}", "choose 1..65535, or 0 for a free one")
    if host is None and not loopback_only:
        dual = socket.has_dualstack_ipv6() and _has_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return [_listener(family, ("", port), dual)]
    try:
        found = socket.getaddrinfo(
            host or "127.0.0.1", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except socket.gaierror as error:
        raise ObmmArgumentError.because(
            "SERVE", errno.EINVAL, f"host {host!r}: {error.strerror}", "pass an address of this machine"
        ) from None
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, address in found:
            if loopback_only and not is_loopback(str(address[0])):
                raise ObmmArgumentError.because(
                    "SERVE",
                    errno.EINVAL,
                    f"plain mode on {address[0]}: anybody on that network could take the handles",
                    "use key=PATH or tls=..., or bind to 127.0.0.1",
                    "docs/exchange.md",
                )
            bound = listeners[0].getsockname()[1] if listeners else port
            listeners.append(_listener(family, (str(address[0]), bound), False))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _listener(family: int, address: tuple[str, int], dual: bool) -> socket.socket:
    listener = socket.create_server(address, family=family, backlog=1024, dualstack_ipv6=dual)
    listener.setblocking(False)
    return listener


def _has_ipv6() -> bool:
    """Compiled in is not enough: containers often have no IPv6 at all."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False
