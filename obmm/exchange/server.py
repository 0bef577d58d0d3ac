# SPDX-License-Identifier: Apache-2.0
"""`obmm.serve`: publish regions to other nodes."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from obmm.background import BackgroundLogger
from obmm.closing import Closing, tell_of_forks
from obmm.errors import ClosedError, ObmmArgumentError, ObmmError
from obmm.exchange.access import EVERYONE, Access
from obmm.exchange.calls import CallHandler
from obmm.exchange.credentials import Credentials
from obmm.exchange.desk import LeaseDesk
from obmm.exchange.door import bind
from obmm.exchange.errors import LeasesOutstandingError
from obmm.exchange.events import EventQueue
from obmm.exchange.journal import LeaseJournal, default_journal
from obmm.exchange.keys import KeySource, load_keys, mistaken
from obmm.exchange.leases import LeaseFilter, LeaseRecord
from obmm.exchange.limits import Limits
from obmm.exchange.mailbox import result_of
from obmm.exchange.messages import Mode, RevokeReason
from obmm.exchange.net import DEFAULT_PORT, check_one_mode, join_address
from obmm.exchange.publication import Manifest, Publication, Publishable, PublishedRegion
from obmm.exchange.server_event import ServerEvent
from obmm.exchange.service import Service
from obmm.exchange.tls import TlsFiles
from obmm.undisturbed import joined

log = BackgroundLogger("obmm.exchange.server")

DEFAULT_TERM_S = 60.0
KEYS_AT_ONCE = 16
CALL_S = 10.0  # the longest that the loop may take to answer a local call

_OUR_BUG = "; this is a bug of obmm"

T = TypeVar("T")


def serve(
    regions: Mapping[str, Publishable] | None = None,
    *,
    host: str | Sequence[str] | None = None,
    port: int = DEFAULT_PORT,
    key: KeySource | Iterable[KeySource] | None = None,
    tls: TlsFiles | None = None,
    plain: bool = False,
    term_s: float = DEFAULT_TERM_S,
    journal: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
    access: Access | str | os.PathLike[str] | None = None,
) -> Server:
    """Publish regions by name and hand out leases on them (docs/exchange.md).

    ``regions`` maps a name to an exported region, or to (region, manifest); a manifest is a dict of at most 64 KiB of
    JSON.  More can be published later.

    Exactly one of ``key`` (path of a key file, or several of them during a rotation), ``tls`` and ``plain=True`` must be
    given.  A key authenticates both sides and every frame, but hides nothing: on networks where others can listen use
    TLS.  Plain mode works on loopback only and binds to it by default; the other modes bind to all interfaces.

    ``access`` says which key or certificate may fetch which region (`obmm.exchange.access`: a TOML file, which may bring
    the keys along); without it every client that is let in may fetch every region.

    ``host`` is an address or several, IPv4 and IPv6.  ``term_s`` is the lease term in seconds; ``journal`` the file that
    remembers leases across restarts (default ``$XDG_STATE_HOME/obmm/leases-<host>-<port>.journal``).  Port 0 picks a free
    one: see `Server.port`.

    Raises ObmmArgumentError for unfit arguments and for an address that cannot be bound, JournalError for a journal that
    is damaged, in use, or another machine's.

    ``limits``: an `obmm.exchange.Limits`.

    >>> with a.export_region("2MiB") as region, obmm.serve({"words": region}, port=0, plain=True) as server:
    ...     server.addresses
    ('127.0.0.1:...',)
    """
    rules = _access(access)
    credentials = _credentials(key, tls, plain, rules)
    if not 0.05 <= term_s <= 86_400:
        raise ObmmArgumentError.because(
            "SERVE", errno.EINVAL, f"a lease term of {term_s} s", "choose 0.05 s to one day; 60 s is the default"
        )
    publications = [_publication(name, each) for name, each in (regions or {}).items()]
    hosts = [host] if isinstance(host, str) else list(host or ())
    listeners = bind(hosts, port, loopback_only=credentials.mode is Mode.PLAIN)
    try:
        bound = listeners[0].getsockname()[1]
        records = LeaseJournal(journal if journal is not None else default_journal(bound))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    try:
        events: EventQueue[ServerEvent] = EventQueue()
        limits = limits or Limits()
        desk = LeaseDesk(records, term_s, limits, events, rules)
        service = Service(listeners, credentials, desk, limits, events)
        # before the first answer: a holder that comes back must not find its region missing for a moment
        problem = _publish(desk, publications)
        server = Server(service, listeners, records.path)
    except BaseException:
        records.abandon()
        for listener in listeners:
            listener.close()
        raise
    if problem is not None:
        server.close(timeout=0, force=True)
        raise problem
    return server


class Server(Closing):
    """A running server; made by `serve`.  All methods may be called from any thread.

    One thread runs it.  `fileno` is readable while `events` has something to tell, for programs with an event loop.
    Leaving the ``with`` block closes it.
    """

    def __init__(self, service: Service, listeners: list[socket.socket], journal: Path) -> None:
        self._service = service
        self._addresses = tuple(join_address(*listener.getsockname()[:2]) for listener in listeners)
        self.port: int = listeners[0].getsockname()[1]
        self.mode = service.credentials.mode
        self.journal = journal
        self._closed = threading.Event()
        self._ending = _Ending()
        service.wanted = partial(_is_alive, weakref.ref(self))
        self._thread = threading.Thread(
            target=_run, args=(service, self._closed, self._ending), name=f"obmm-server-{self.port}", daemon=True
        )
        self._warn_if_forgotten(
            f"an obmm server on port {self.port}", service.mailbox.end, over=self._closed.is_set, at_exit=True
        )
        tell_of_forks(self)
        self._thread.start()
        log.info("serving on %s in %s mode; %s", ", ".join(self._addresses), self.mode.name, _BANNER[self.mode])

    @property
    def addresses(self) -> tuple[str, ...]:
        """What it listens on, as ``host:port``."""
        return self._addresses

    @property
    def closed(self) -> bool:
        """True once closed, or in a forked child."""
        return self._closed.is_set()

    @property
    def error(self) -> BaseException | None:
        """What ended the server, when it was not `close`: then it serves no more, and the process should say so."""
        return self._ending.error

    @property
    def alive(self) -> bool:
        """The loop turns: it has answered within the last `CALL_S` seconds, or answers now."""
        try:
            return not self.closed and self._call(lambda: True)
        except ObmmError:
            return False

    def publish(self, name: str, region: PublishedRegion, manifest: Manifest | None = None) -> None:
        """Publish one more `region` as `name`, with a `manifest` of at most 64 KiB of JSON; RequestRefusedError: the
        name is taken.
        """
        publication = Publication(name, region, manifest)
        self._call(partial(self._service.desk.publish, publication))

    def answer_calls(self, name: str, handler: CallHandler) -> None:
        """Let `handler` answer calls to ``name`` from now on, in the server's thread; RequestRefusedError when it is taken."""
        self._call(partial(self._service.calls.add, name, handler))

    def refuse_calls(self, name: str) -> None:
        """Stop answering calls to ``name``; waits for one that is being answered."""
        self._call(partial(self._service.calls.remove, name))

    def revoke(self, name: str, *, timeout: float = 30.0, force: bool = False) -> tuple[LeaseRecord, ...]:
        """Withdraw a region: tell its importers, and wait until they have released it.

        Until this has returned the region must not be unexported: doing that under a live importer is a machine-level
        error on hardware (driver specification 8).  LeasesOutstandingError after ``timeout`` seconds says who has not
        released; call again to wait longer.  With ``force`` these leases are given up and returned instead.

        `name`: as published.
        """
        outstanding = self._revoke([name], timeout, RevokeReason.WITHDRAWN)
        if outstanding and not force:
            raise _outstanding(outstanding)
        self._call(partial(self._service.desk.force, name))
        return outstanding

    def find_leases(
        self, *, lease: str = "", holder: str = "", address: str = "", identity: str = "", region: str = ""
    ) -> tuple[LeaseRecord, ...]:
        """The leases that `end_leases` would end with the same arguments."""
        which = LeaseFilter(lease=lease, holder=holder, address=address, identity=identity, region=region)
        return self._call(partial(self._service.desk.find, which))

    def end_leases(
        self, *, lease: str = "", holder: str = "", address: str = "", identity: str = "", region: str = ""
    ) -> tuple[LeaseRecord, ...]:
        """Give up the leases that fit all that is given, and return them: their holders are known to be dead.

        ``lease`` is the short id of `status`, ``holder`` a client's name or ``name@address``, ``identity`` a key's or
        certificate's name.  Leases on earlier exports count too.  A living holder is told to let go, and its next renewal
        is refused; if it goes on reading, the unexport is a machine-level error on its host.

        ``address`` is where a holder connected from, ``region`` a region's name.  ObmmArgumentError when nothing is given.
        """
        which = LeaseFilter(lease=lease, holder=holder, address=address, identity=identity, region=region)
        if not which:
            raise ObmmArgumentError.because(
                "SERVE",
                errno.EINVAL,
                "no lease was named",
                "name a lease, a holder, an address, an identity or a region",
            )
        return self._call(partial(self._service.desk.end, which))

    def reload(
        self,
        *,
        key: KeySource | Iterable[KeySource] | None = None,
        tls: TlsFiles | None = None,
        access: Access | str | os.PathLike[str] | None = None,
    ) -> int:
        """Use these keys, certificates or rules from now on; the number of sessions that this ended.

        Sessions of a key that is not among the new ones end at once; so do all TLS sessions, because a certificate cannot
        be judged again in the middle of one: their clients connect again and prove themselves, and keep their leases.
        Whatever is unfit is refused, and everything stays as it was.

        ``key``, ``tls`` and ``access`` as for `serve`; ObmmArgumentError for what is unfit or of another mode.
        """
        rules = self._service.desk.access if access is None else _access(access)
        credentials = None
        if key is not None or tls is not None or (access is not None and rules.keys):
            credentials = _credentials(key, tls, False, rules)
            if credentials.mode is not self.mode:
                raise ObmmArgumentError.because(
                    "SERVE",
                    errno.EINVAL,
                    f"a server in {self.mode.name} mode has no use for {credentials.mode.name.lower()} credentials",
                    "start it in the mode that you want",
                )
        return self._call(partial(self._service.reload, credentials, rules))

    def rekey(self, key: KeySource | Iterable[KeySource]) -> None:
        """Accept these keys from now on (several during a rotation); sessions of a key that is gone end."""
        self.reload(key=key)

    def status(self) -> dict[str, Any]:
        """What it serves and who holds what, ready for JSON (docs/exchange-protocol.md, section 4.19); no secrets."""
        return self._call(self._service.status)

    def counts(self) -> dict[str, Any]:
        """Figures for a monitor: numbers, and dicts of numbers (events, refusals and dropped lines since the start)."""
        return self._call(self._service.counts)

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
        if self.closed:
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
        joined(self._thread, CALL_S)
        self._need_not_warn()
        return outstanding

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

    def _die(self) -> None:
        was_open = not self.closed
        super()._die()
        self._closed = threading.Event()  # another thread may have had the other one's lock
        self._closed.set()
        if was_open:
            self._service.abandon()


_BANNER = {
    Mode.PLAIN: "nothing is protected",
    Mode.KEY: "both sides are authenticated by key; the handles are not hidden from who can listen on the network",
    Mode.TLS: "TLS 1.3 with certificates on both sides",
}


class _Ending:
    """How the loop ended."""

    error: BaseException | None = None


def _is_alive(owner: weakref.ref[object]) -> bool:
    return owner() is not None


def _run(service: Service, closed: threading.Event, ending: _Ending) -> None:
    try:
        service.run()
    except BaseException as error:
        ending.error = error
        log.exception("the server's loop ended in an exception; it serves no more")
    finally:
        closed.set()


def _outstanding(records: tuple[LeaseRecord, ...]) -> LeasesOutstandingError:
    who = ", ".join(f"{each.holder} ({each.region}, lease {each.short}, {each.state.value})" for each in records[:10])
    more = f" and {len(records) - 10} more" if len(records) > 10 else ""
    return LeasesOutstandingError(
        f"{len(records)} lease(s) were not released in time: {who}{more}. Unexporting under a live importer is a "
        "machine-level error on its host: have them unimport, then call again, or pass force=True if they are dead",
        records,
    )


def _credentials(
    key: KeySource | Iterable[KeySource] | None, tls: TlsFiles | None, plain: bool, rules: Access
) -> Credentials:
    named = rules.keys
    check_one_mode("SERVE", key if key is not None else named or None, tls, plain)
    if tls is not None:
        return Credentials(Mode.TLS, context=tls.context(server=True))
    if key is not None:
        keys = load_keys(key, KEYS_AT_ONCE) + named
        if problem := mistaken(keys):
            raise ObmmArgumentError.because("SERVE", errno.EINVAL, problem, "give each name a key of its own")
        return Credentials(Mode.KEY, keys=keys)
    return Credentials(Mode.KEY, keys=named) if named else Credentials(Mode.PLAIN)


def _access(access: Access | str | os.PathLike[str] | None) -> Access:
    if access is None:
        return EVERYONE
    return access if isinstance(access, Access) else Access.load(access)


def _publish(desk: LeaseDesk, publications: list[Publication]) -> BaseException | None:
    """What went wrong, for who can then close what runs."""
    try:
        for publication in publications:
            desk.publish(publication)
    except BaseException as error:
        return error
    return None


def _publication(name: str, each: Publishable) -> Publication:
    if isinstance(each, tuple):
        return Publication(name, each[0], each[1])
    return Publication(name, each)
