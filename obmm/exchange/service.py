# SPDX-License-Identifier: Apache-2.0
"""The server's engine: one thread, one selector, all connections and leases.

Everything in here runs in that thread (`Server` posts calls into it), so
nothing needs a lock.  One turn of the loop is: read and answer what came, put
the new leases on the disk with one fsync, send, look at the deadlines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias

from obmm.exchange.errors import (
    AuthenticationError,
    ExchangeError,
    JournalError,
    ProtocolError,
    Refusal,
    RequestRefusedError,
)
from obmm.exchange.events import EventQueue
from obmm.exchange.journal import LeaseJournal
from obmm.exchange.keys import Key
from obmm.exchange.leases import LeaseBook, LeaseRecord, LeaseState
from obmm.exchange.limits import Limits
from obmm.exchange.link import Disconnected, Link
from obmm.exchange.mailbox import Mailbox
from obmm.exchange.messages import (
    ErrorMessage,
    Fetch,
    Grant,
    List,
    Listed,
    Message,
    Mode,
    Ping,
    Pong,
    RegionEntry,
    Release,
    Released,
    Renew,
    Renewed,
    Revoked,
    RevokeReason,
    Status,
    StatusPage,
    Welcome,
)
from obmm.exchange.publication import Publication
from obmm.exchange.session import ServerSession
from obmm.exchange.timers import Timers
from obmm.exchange.tls import PlainTransport, TlsTransport

log = logging.getLogger("obmm.exchange.server")

LINGER_S = 1.0  # how long a refused peer may take to read why
PAUSE_S = 0.5  # no accept for so long when the process is out of descriptors
STATUS_ITEMS = 200  # per page
REQUESTS_PER_TURN = 64  # of one connection, then the others get their turn


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """Something that happened: ``kind`` is connected, granted, released, expired, renewed, revoked or closed."""

    kind: str
    region: str = ""
    lease: str = ""
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How sessions are protected: exactly one of plain, keys, TLS."""

    mode: Mode
    keys: tuple[Key, ...] = ()
    context: ssl.SSLContext | None = field(default=None, repr=False)


@dataclass(eq=False, slots=True)
class _Connection:
    link: Link
    address: str
    session: ServerSession
    accepted: float
    leases: set[bytes] = field(default_factory=set)
    active: float = 0.0  # last whole frame
    partial_since: float | None = None
    stalled_since: float | None = None
    dying: bool = False
    unfinished: bool = False  # more requests of this connection are here already
    events: int = selectors.EVENT_READ

    @property
    def name(self) -> str:
        return f"{self.session.client or 'unnamed'}@{self.address}"

    @property
    def identity(self) -> str:
        """What leases are bound to: only a certificate tells clients of one key apart."""
        return self.link.transport.peer_identity


@dataclass(eq=False, slots=True)
class _Revocation:
    publication: Publication
    done: Future[tuple[LeaseRecord, ...]]


# What has a deadline: a connection, a lease (its id), a revocation, or the paused listeners.
_TimerKey: TypeAlias = "_Connection | bytes | _Revocation | str"


class Service:
    """`run` is the body of the server's thread."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        credentials: Credentials,
        journal: LeaseJournal,
        term_s: float,
        limits: Limits,
        events: EventQueue[ServerEvent],
    ) -> None:
        self.mailbox = Mailbox()
        self.events = events
        self.credentials = credentials
        self.closing = False
        self._listeners = list(listeners)
        self._journal = journal
        self._term_s = term_s
        self._limits = limits
        self._instance = os.urandom(16)
        self._started = time.time()
        self._book = LeaseBook()
        self._by_name: dict[str, Publication] = {}
        self._by_generation: dict[int, Publication] = {}
        self._connections: set[_Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._handshakes: Counter[str] = Counter()
        self._holder: dict[bytes, _Connection] = {}
        self._revocations: dict[int, _Revocation] = {}
        self._granting: list[tuple[_Connection, int, LeaseRecord, Publication]] = []
        self._dirty: set[_Connection] = set()
        self._unfinished: set[_Connection] = set()
        self._timers: Timers[_TimerKey] = Timers()
        self._refused: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._running = True
        self._requests: dict[type, Callable[[_Connection, Any, int], None]] = {
            Ping: self._on_ping,
            List: self._on_list,
            Fetch: self._on_fetch,
            Renew: self._on_renew,
            Release: self._on_release,
            Status: self._on_status,
        }
        self._selector.register(self.mailbox, selectors.EVENT_READ, self._on_mail)
        self._listen(True)
        for record in journal.recovered:
            self._book.add(record)
        if journal.recovered:
            log.warning(
                "journal %s: %d lease(s) of an earlier server are out and count as unknown until renewed or released",
                journal.path,
                len(journal.recovered),
            )

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            while self._running:
                self._turn()
        finally:
            self._shut()

    def stop(self) -> None:
        self._running = False

    def abandon(self) -> None:
        """In a forked child: let go of every descriptor, tell nobody."""
        for connection in self._connections:
            connection.link.close()
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._journal.abandon()
        self.mailbox.abandon()
        self.events.abandon()

    def _turn(self) -> None:
        resumable = [each for each in self._unfinished if each.link.pending < self._limits.output_bytes]
        longest = 0.0 if resumable else 3600.0
        for key, mask in self._selector.select(self._timers.timeout(time.monotonic(), longest)):
            key.data(mask)
        for connection in resumable:
            if connection in self._connections:
                self._read(connection, connection.link.resume())
                self._dirty.add(connection)
        self._commit()
        for connection in tuple(self._dirty):
            self._flush(connection)
        self._dirty.clear()
        for due in self._timers.pop_due(time.monotonic()):
            self._on_deadline(due)

    def _on_mail(self, mask: int) -> None:
        self.mailbox.run()

    def _commit(self) -> None:
        """One fsync for all leases of this turn, before any of their handles leaves."""
        granting, self._granting = self._granting, []
        try:
            self._journal.commit()
            self._journal.compact(self._book)
        except (JournalError, OSError) as error:
            log.error("%s", error)
            for connection, request, record, publication in granting:
                if self._book.get(record.id) is record:
                    self._forget(record)
                self._settle(publication)
                self._refuse(connection, request, Refusal.INTERNAL, "the server cannot write its lease journal")
            return
        for connection, request, record, publication in granting:
            if connection in self._connections and not connection.dying:
                grant = Grant(record.id, self._term_ms, publication.handle, publication.manifest)
                self._send(connection, grant, request)
            log.info("lease granted: %s of %s to %s", record.short, record.region, record.holder)
            self._event("granted", record)

    def _shut(self) -> None:
        for connection in tuple(self._connections):
            with contextlib.suppress(Disconnected, ExchangeError):
                connection.link.flush()
            self._drop(connection, "server closed")
        for listener in self._listeners:
            listener.close()
        for publication in self._by_name.values():
            publication.unhold()
        self.mailbox.close()
        self._selector.close()
        with contextlib.suppress(JournalError):
            self._journal.close()
        self.events.put(ServerEvent("closed"))

    # --- connections ---------------------------------------------------------------------------------------------

    def _listen(self, on: bool) -> None:
        for listener in self._listeners:
            if on:
                self._selector.register(listener, selectors.EVENT_READ, partial(self._on_accept, listener))
            else:
                self._selector.unregister(listener)

    def _on_accept(self, listener: socket.socket, mask: int) -> None:
        for _ in range(64):  # then the connections that are already there get their turn
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.error("no new connections for %.1f s: %s; raise the limit (ulimit -n)", PAUSE_S, error.strerror)
                self._listen(False)
                self._timers.set("accept", time.monotonic() + PAUSE_S)
                return
            self._admit(sock, _printable(address[0]))

    def _admit(self, sock: socket.socket, address: str) -> None:
        limits = self._limits
        for problem, count, most in (
            ("connections", len(self._connections), limits.connections),
            ("connections from its address", self._per_address[address], limits.connections_per_address),
            ("handshakes", self._handshakes.total(), limits.handshakes),
            ("handshakes from its address", self._handshakes[address], limits.handshakes_per_address),
        ):
            if count >= most:
                self._refused["limit"] += 1
                log.warning("connection of %s refused: %d %s are open already", address, count, problem)
                sock.close()
                return
        session = ServerSession(self.credentials.mode, self.credentials.keys)
        context = self.credentials.context
        transport = PlainTransport() if context is None else TlsTransport(context, server=True)
        now = time.monotonic()
        connection = _Connection(Link(sock, transport, session), address, session, accepted=now, active=now)
        self._connections.add(connection)
        self._per_address[address] += 1
        self._handshakes[address] += 1
        self._selector.register(connection.link, connection.events, partial(self._on_io, connection))
        self._watch(connection)
        # Keepalive finds the peers whose machine is gone.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _on_io(self, connection: _Connection, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            if connection.dying:
                self._read_out(connection)
            else:
                self._read(connection, connection.link.receive())
        self._dirty.add(connection)

    def _read_out(self, connection: _Connection) -> None:
        """A refused peer still talks: take it, so that closing does not reset the connection under our answer."""
        try:
            if connection.link.sock.recv(65536):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._drop(connection)

    def _read(self, connection: _Connection, messages: Iterator[tuple[Message, int]]) -> None:
        session = connection.session
        try:
            connection.unfinished = self._handle(connection, messages)
            if session.ready and not session.established:
                self._establish(connection)
        except Disconnected as error:
            self._drop(connection, str(error))
        except ExchangeError as error:
            self._condemn(connection, error)
        except Exception:
            log.exception("bug: a request of %s ended in an exception", connection.name)
            self._condemn(connection, ProtocolError(Refusal.INTERNAL, "internal error of the server"))
        if connection.unfinished and connection in self._connections:
            self._unfinished.add(connection)
            return
        self._unfinished.discard(connection)
        if not session.partial:
            connection.partial_since = None
        elif connection.partial_since is None:
            connection.partial_since = time.monotonic()

    def _handle(self, connection: _Connection, messages: Iterator[tuple[Message, int]]) -> bool:
        """Answer requests; True when there may be more than one turn's worth."""
        for count, (message, request) in enumerate(messages, 1):
            connection.active = time.monotonic()
            handler = self._requests.get(type(message))
            if request == 0:
                raise ProtocolError(Refusal.RESERVED, f"a {message.KIND.name} request without a number")
            if handler is None:
                raise ProtocolError(Refusal.UNEXPECTED, f"a {message.KIND.name} frame from a client")
            handler(connection, message, request)
            if count == REQUESTS_PER_TURN or connection.link.pending >= self._limits.output_bytes:
                return True
        return False

    def _establish(self, connection: _Connection) -> None:
        self._handshake_over(connection)
        idle_ms = int(self._limits.idle_s * 1000)
        connection.session.welcome(Welcome(self._instance, self._term_ms, idle_ms, len(self._by_name)))
        how = self.credentials.mode.name
        if connection.identity:
            how += f" certificate={connection.identity}"
        if connection.session.key_identity:
            how += f" key={connection.session.key_identity}"
        log.info("peer connected: %s mode=%s", connection.name, how)
        self.events.put(ServerEvent("connected", holder=connection.name))

    def _handshake_over(self, connection: _Connection) -> None:
        self._handshakes[connection.address] -= 1
        if not self._handshakes[connection.address]:
            del self._handshakes[connection.address]

    def _condemn(self, connection: _Connection, error: ExchangeError) -> None:
        """Tell the peer why, then close; it has `LINGER_S` to read it."""
        reason = getattr(error, "reason", Refusal.AUTHENTICATION)
        self._refused[reason.name.lower()] += 1
        log.warning("peer refused: %s: %s", connection.name, error.strerror)
        text = error.strerror or ""
        if isinstance(error, AuthenticationError):
            text = "authentication failed"  # the client needs no more than that, a guesser even less
        if connection.link.transport.ready:
            self._send(connection, ErrorMessage(reason.on_wire, text))
        with contextlib.suppress(Disconnected, ExchangeError, OSError):
            connection.link.flush()
            connection.link.sock.shutdown(socket.SHUT_WR)
        connection.dying = True
        connection.unfinished = False
        self._timers.set(connection, time.monotonic() + LINGER_S)

    def _send(self, connection: _Connection, message: Message, request: int = 0) -> None:
        connection.link.send(message, request)
        self._dirty.add(connection)

    def _flush(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        link = connection.link
        if connection.dying:
            return
        try:
            wrote = link.flush()
        except Disconnected as error:
            self._drop(connection, str(error))
            return
        if not link.pending:
            connection.stalled_since = None
        elif wrote or connection.stalled_since is None:
            connection.stalled_since = time.monotonic()
        events = selectors.EVENT_WRITE if link.pending else 0
        if link.pending < self._limits.output_bytes and not connection.unfinished:
            events |= selectors.EVENT_READ
        if events != connection.events:
            connection.events = events
            self._selector.modify(link, events, partial(self._on_io, connection))
        self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        """Set the earliest deadline that applies."""
        limits = self._limits
        if connection.session.established:
            when = connection.active + limits.idle_s
        else:
            when = connection.accepted + limits.handshake_s
        if connection.partial_since is not None:
            when = min(when, connection.partial_since + limits.frame_s)
        if connection.stalled_since is not None:
            when = min(when, connection.stalled_since + limits.send_s)
        self._timers.set(connection, when)

    def _drop(self, connection: _Connection, why: str = "") -> None:
        """Close a connection.  Its leases stay: the fabric may live although TCP is gone."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._unfinished.discard(connection)
        self._timers.cancel(connection)
        self._selector.unregister(connection.link)
        connection.link.close()
        address = connection.address
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        if not connection.session.established:
            self._handshake_over(connection)
        for lease in connection.leases:
            if self._holder.get(lease) is connection:
                del self._holder[lease]
        if why and connection.session.established:
            log.info("peer gone: %s leases=%d: %s", connection.name, len(connection.leases), why)

    # --- deadlines -----------------------------------------------------------------------------------------------

    def _on_deadline(self, due: _TimerKey) -> None:
        if isinstance(due, _Connection):
            self._on_connection_deadline(due)
        elif isinstance(due, bytes):
            self._on_expiry(due)
        elif isinstance(due, _Revocation):
            self._end_revocation(due)
        else:
            self._listen(True)

    def _on_connection_deadline(self, connection: _Connection) -> None:
        if connection.dying:
            self._drop(connection)
        elif not connection.session.established:
            self._condemn(connection, ProtocolError(Refusal.TIMEOUT, "the handshake took too long"))
        elif connection.stalled_since is not None:
            self._drop(connection, "it takes no answers")
        elif connection.partial_since is not None:
            self._condemn(connection, ProtocolError(Refusal.TIMEOUT, "a frame took too long to arrive"))
        else:
            self._drop(connection, f"silent for {self._limits.idle_s:.0f} s")

    def _on_expiry(self, lease: bytes) -> None:
        record = self._book.get(lease)
        if record is None or record.state is not LeaseState.ACTIVE:
            return
        record.state = LeaseState.UNKNOWN
        log.warning(
            "lease expired without release: %s of %s, holder %s; the region stays exported until it is released",
            record.short,
            record.region,
            record.holder,
        )
        self._event("expired", record)

    # --- requests ------------------------------------------------------------------------------------------------

    @property
    def _term_ms(self) -> int:
        return int(self._term_s * 1000)

    def _refuse(self, connection: _Connection, request: int, reason: Refusal, text: str) -> None:
        self._send(connection, ErrorMessage(reason, text), request)

    def _on_ping(self, connection: _Connection, _: Ping, request: int) -> None:
        self._send(connection, Pong(), request)

    def _on_list(self, connection: _Connection, message: List, request: int) -> None:
        published = [each for each in self._by_name.values() if not each.revoked]
        entries = tuple(
            RegionEntry(each.name, each.handle.length, each.generation, len(each.manifest), int(each.handle.flags))
            for each in published[message.first : message.first + Listed.PER_PAGE]
        )
        self._send(connection, Listed(len(published), entries), request)

    def _on_fetch(self, connection: _Connection, message: Fetch, request: int) -> None:
        publication = self._by_name.get(message.name)
        again = self._book.get(message.lease)
        if self.closing:
            self._refuse(connection, request, Refusal.CLOSING, "the server is closing")
        elif publication is None or publication.revoked:
            self._refuse(connection, request, Refusal.NO_REGION, f"no region {message.name!r} is published here")
        elif again is not None:
            self._on_fetch_again(connection, again, publication, request)
        elif len(self._book) >= self._limits.leases:
            self._refuse(connection, request, Refusal.LIMIT, "the server has as many leases out as it allows")
        elif len(connection.leases) >= self._limits.leases_per_connection:
            self._refuse(connection, request, Refusal.LIMIT, "this connection has as many leases as one may have")
        else:
            record = LeaseRecord(
                id=message.lease,
                region=publication.name,
                generation=publication.generation,
                client=connection.session.client,
                address=connection.address,
                identity=connection.identity,
                importer_eid=message.importer_eid,
                granted=time.time(),
            )
            self._book.add(record)
            self._attach(connection, record)
            publication.hold()
            self._journal.grant(record)
            self._granting.append((connection, request, record, publication))

    def _on_fetch_again(
        self, connection: _Connection, record: LeaseRecord, publication: Publication, request: int
    ) -> None:
        """The same id as before: the client never saw our answer."""
        same = (record.region, record.generation, record.identity)
        if same != (publication.name, publication.generation, connection.identity):
            self._refuse(connection, request, Refusal.UNKNOWN_LEASE, "this lease id belongs to another lease")
            return
        record.state = LeaseState.ACTIVE
        self._attach(connection, record)
        self._granting.append((connection, request, record, publication))

    def _attach(self, connection: _Connection, record: LeaseRecord) -> None:
        """The lease lives with this connection now, for a whole term from now."""
        previous = self._holder.get(record.id)
        if previous is not None:
            previous.leases.discard(record.id)
        self._holder[record.id] = connection
        connection.leases.add(record.id)
        record.expires = time.monotonic() + self._term_s
        self._timers.set(record.id, record.expires)

    def _mine(self, connection: _Connection, lease: bytes, request: int) -> LeaseRecord | None:
        """The lease, if it exists and belongs to this certificate; otherwise it is refused as unknown."""
        record = self._book.get(lease)
        if record is None or record.identity != connection.identity:
            self._refuse(connection, request, Refusal.UNKNOWN_LEASE, "no such lease is out")
            return None
        return record

    def _on_renew(self, connection: _Connection, message: Renew, request: int) -> None:
        record = self._mine(connection, message.lease, request)
        if record is None:
            return
        # Also when it is refused: what there is to say about this lease is said here from now on.
        self._attach(connection, record)
        record.client, record.address = connection.session.client, connection.address
        publication = self._by_name.get(record.region)
        if message.generation != record.generation:
            self._refuse(connection, request, Refusal.STALE, f"the lease is for another export of {record.region!r}")
        elif publication is not None and publication.generation != record.generation:
            self._refuse(connection, request, Refusal.STALE, f"{record.region!r} was exported again since")
        elif publication is None or publication.revoked:
            self._refuse(connection, request, Refusal.REVOKED, f"{record.region!r} is withdrawn")
        else:
            if record.state is not LeaseState.ACTIVE:
                log.info("lease back: %s of %s, holder %s", record.short, record.region, record.holder)
            record.state = LeaseState.ACTIVE
            self._send(connection, Renewed(record.id, self._term_ms), request)

    def _on_release(self, connection: _Connection, message: Release, request: int) -> None:
        record = self._book.get(message.lease)
        # A release that is asked for twice (its answer got lost) is answered twice.
        if record is not None and record.identity != connection.identity:
            self._refuse(connection, request, Refusal.UNKNOWN_LEASE, "no such lease is out")
            return
        if record is not None:
            self._forget(record)
            self._journal.release(record)
            log.info("lease released: %s of %s by %s", record.short, record.region, record.holder)
            self._event("released", record)
            self._settle(self._by_generation.get(record.generation))
        self._send(connection, Released(message.lease), request)

    def _on_status(self, connection: _Connection, message: Status, request: int) -> None:
        page = list(self._status_items(message.first, message.first + STATUS_ITEMS))
        end = message.first + len(page)
        text = json.dumps(self._status_head() | {"items": page}, separators=(",", ":")).encode()
        more = end < len(self._by_name) + len(self._book)
        self._send(connection, StatusPage(end if more and page else 0, text), request)

    # --- leases and regions --------------------------------------------------------------------------------------

    def _event(self, kind: str, record: LeaseRecord) -> None:
        self.events.put(ServerEvent(kind, record.region, record.short, record.holder))

    def _forget(self, record: LeaseRecord) -> None:
        self._book.remove(record)
        self._timers.cancel(record.id)
        holder = self._holder.pop(record.id, None)
        if holder is not None:
            holder.leases.discard(record.id)

    def _settle(self, publication: Publication | None) -> None:
        """After a lease went: let go of the region if that was the last one."""
        if publication is None or self._book.of(publication.generation):
            return
        publication.unhold()
        revocation = self._revocations.get(publication.generation)
        if revocation is not None:
            self._end_revocation(revocation)

    def _withdraw(self, publication: Publication) -> None:
        if self._by_name.get(publication.name) is publication:
            del self._by_name[publication.name]
        self._by_generation.pop(publication.generation, None)

    def _end_revocation(self, revocation: _Revocation) -> None:
        publication = revocation.publication
        self._timers.cancel(revocation)
        self._revocations.pop(publication.generation, None)
        outstanding = self._book.of(publication.generation)
        if not outstanding:
            self._withdraw(publication)
            log.info("region %s revoked: every lease is released", publication.name)
        else:
            for record in outstanding:
                log.error(
                    "region %s: lease %s was not released by %s (%s)",
                    publication.name,
                    record.short,
                    record.holder,
                    record.state.value,
                )
        if not revocation.done.done():
            revocation.done.set_result(outstanding)

    def publish(self, publication: Publication) -> None:
        """Make a region known under its name; RequestRefusedError when the name or the export is taken."""
        if self.closing:
            raise RequestRefusedError(Refusal.CLOSING, "the server is closing")
        if len(self._by_name) >= self._limits.regions:
            raise RequestRefusedError(Refusal.LIMIT, f"{self._limits.regions} regions are published already")
        if publication.name in self._by_name:
            raise RequestRefusedError(
                Refusal.LIMIT, f"a region {publication.name!r} is published already; revoke it first"
            )
        if publication.generation in self._by_generation:
            other = self._by_generation[publication.generation].name
            raise RequestRefusedError(Refusal.LIMIT, f"this export is published already, as {other!r}")
        self._by_name[publication.name] = publication
        self._by_generation[publication.generation] = publication
        if self._book.of(publication.generation):
            publication.hold()
        log.info("region published: %s, %d bytes", publication.name, publication.handle.length)

    def revoke(self, name: str, timeout: float, reason: RevokeReason) -> Future[tuple[LeaseRecord, ...]]:
        """Ask every holder to let go; the future has the leases that are still out at the deadline."""
        publication = self._by_name.get(name)
        if publication is None:
            raise RequestRefusedError(Refusal.NO_REGION, f"no region {name!r} is published here")
        running = self._revocations.get(publication.generation)
        if running is None:
            running = self._revocations[publication.generation] = _Revocation(publication, Future())
        publication.revoked = True
        self._timers.set(running, time.monotonic() + timeout)
        leases = self._book.of(publication.generation)
        log.info("region %s: revoking %d lease(s), deadline %.1f s", name, len(leases), timeout)
        for record in leases:
            record.state = LeaseState.REVOKED
            self._timers.cancel(record.id)
            holder = self._holder.get(record.id)
            if holder is not None and not holder.dying:
                self._send(holder, Revoked(record.id, min(int(timeout * 1000), 0xFFFFFFFF), reason))
            self._event("revoked", record)
        self._settle(publication)
        return running.done

    def force(self, name: str) -> None:
        """Forget the leases on a region that nobody released."""
        publication = self._by_name.get(name)
        if publication is None:
            return
        for record in self._book.of(publication.generation):
            log.error("lease given up by force: %s of %s, holder %s", record.short, record.region, record.holder)
            self._forget(record)
            self._journal.release(record, forced=True)
        publication.unhold()
        self._withdraw(publication)

    def begin_closing(self) -> tuple[str, ...]:
        """No new leases from now on; the names that are still published."""
        self.closing = True
        return tuple(self._by_name)

    def rekey(self, keys: tuple[Key, ...]) -> None:
        self.credentials = Credentials(self.credentials.mode, keys, self.credentials.context)

    # --- status --------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return self._status_head() | {"items": list(self._status_items(0, None))}

    def _status_head(self) -> dict[str, Any]:
        return {
            "version": 1,
            "server": {
                "instance": self._instance[:4].hex(),
                "mode": self.credentials.mode.name.lower(),
                "keys": [key.identity for key in self.credentials.keys],
                "uptime_s": round(time.time() - self._started, 1),
                "term_s": self._term_s,
                "closing": self.closing,
                "connections": len(self._connections),
                "handshakes": self._handshakes.total(),
                "regions": len(self._by_name),
                "leases": len(self._book),
                "refused": dict(self._refused),
            },
        }

    def _status_items(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Items [start, stop) of regions and then leases; only these are made."""
        everything: Iterator[Publication | LeaseRecord] = chain(self._by_name.values(), self._book)
        for each in islice(everything, start, stop):
            yield self._lease_item(each) if isinstance(each, LeaseRecord) else self._region_item(each)

    def _region_item(self, publication: Publication) -> dict[str, Any]:
        return {
            "kind": "region",
            "region": publication.name,
            "bytes": publication.handle.length,
            "state": "revoked" if publication.revoked else "published",
            "leases": dict(Counter(record.state.value for record in self._book.of(publication.generation))),
        }

    def _lease_item(self, record: LeaseRecord) -> dict[str, Any]:
        left = record.expires - time.monotonic()
        return {
            "kind": "lease",
            "lease": record.short,
            "region": record.region,
            "client": record.client,
            "address": record.address,
            "identity": record.identity,
            "state": record.state.value,
            "connected": record.id in self._holder,
            "granted": record.granted,
            "expires_in_s": round(left, 1) if record.state is LeaseState.ACTIVE else None,
        }


def _printable(text: str) -> str:
    return "".join(c if "!" <= c <= "~" else "?" for c in text)[:64]
