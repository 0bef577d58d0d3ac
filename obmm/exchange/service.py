# SPDX-License-Identifier: Apache-2.0
"""The server's engine: one thread, one selector, all connections.

Everything in here runs in that thread (`Server` posts calls into it), so nothing needs a lock.  One turn of the loop
is: read and answer what came, look at the deadlines, hand the new leases to the journal's thread, send.  Whatever goes
wrong costs the connection, the listener or the call that it came from; disk, log and audit have threads of their own.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from obmm.background import BackgroundLogger
from obmm.closing import Owner
from obmm.exchange.access import Access
from obmm.exchange.admission import Admission, Full
from obmm.exchange.call_messages import Call, Ping, Pong, Status
from obmm.exchange.calls import Caller, CallTable
from obmm.exchange.commits import Commits
from obmm.exchange.connection import Connection
from obmm.exchange.credentials import Credentials
from obmm.exchange.desk import Answer, LeaseDesk
from obmm.exchange.door import PAUSE_S, Door
from obmm.exchange.errors import (
    AuthenticationError,
    ExchangeError,
    ProtocolError,
    Refusal,
    RequestRefusedError,
)
from obmm.exchange.events import EventQueue
from obmm.exchange.limits import Limits
from obmm.exchange.link import Disconnected, Link
from obmm.exchange.mailbox import Mailbox
from obmm.exchange.messages import ErrorMessage, Fetch, List, Message, Release, Renew, Welcome
from obmm.exchange.server_event import ServerEvent
from obmm.exchange.session import ServerSession
from obmm.exchange.timers import Timers
from obmm.exchange.tls import PlainTransport, TlsTransport
from obmm.exchange.waiter import Waiter

log = BackgroundLogger("obmm.exchange.server")

LINGER_S = 1.0  # how long a refused peer may take to read why
REQUESTS_PER_TURN, LOOK_S = 64, 1.0  # of one connection, then the others get their turn; how often to look around


class Service(Owner):
    """`run` is the body of the server's thread."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        credentials: Credentials,
        desk: LeaseDesk,
        limits: Limits,
        events: EventQueue[ServerEvent],
    ) -> None:
        self.mailbox = Mailbox()
        self.events = events
        self.credentials = credentials
        self.desk = desk
        self.calls = CallTable()
        self._limits = limits
        self._instance = os.urandom(16)
        self._started = time.time()
        self._connections: set[Connection] = set()
        self._admission = Admission(limits)
        self._unfinished: set[Connection] = set()
        self._dirty: set[Connection] = set()
        self._timers: Timers[Connection | Door] = Timers()
        self._refused: Counter[str] = Counter()
        self._selector = Waiter(log)
        self._running = True
        self.wanted: Callable[[], bool] = lambda: True  # asked every LOOK_S seconds: is the server still referenced?
        self.turned = time.monotonic()
        self._selector.register(self.mailbox, selectors.EVENT_READ, self.mailbox)
        self._doors = tuple(Door(listener, self._selector, self._admit) for listener in listeners)
        port = listeners[0].getsockname()[1]
        self._commits = Commits(desk, self.mailbox, self._deliver, f"obmm-journal-{port}")

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            while self._running and not self.mailbox.ending and self.wanted():
                self._turn()
        finally:
            self._shut()

    def stop(self) -> None:
        self._running = False

    def abandon(self) -> None:
        """In a forked child: close every descriptor without a message."""
        for connection in self._connections:
            connection.link.close()
        for door in self._doors:
            door.close()
        self._selector.close()
        self.desk.journal.abandon()
        self.mailbox.abandon()
        self.events.abandon()

    def _turn(self) -> None:
        resumable = [each for each in self._unfinished if each.link.pending < self._limits.output_bytes]
        now = time.monotonic()
        longest = min(self._timers.timeout(now, LOOK_S), self.desk.timers.timeout(now, LOOK_S))
        for key, mask in self._selector.wait(0.0 if resumable else longest):
            self._on_ready(key.data, mask)
        for connection in resumable:
            if connection in self._connections:
                self._attempt(connection, self._read, connection, connection.link.resume())
                self._dirty.add(connection)
        now = self.turned = time.monotonic()
        self._attempt(None, self.desk.expire, now)
        for due in self._timers.pop_due(now):
            self._attempt(due, self._on_deadline, due)
        self._attempt(None, self._commits.submit)
        dirty, self._dirty = self._dirty, set()
        for connection in dirty:
            self._attempt(connection, self._flush, connection)

    def _on_ready(self, source: Connection | Door | Mailbox, mask: int) -> None:
        if isinstance(source, Connection):
            self._attempt(source, self._on_io, source, mask)
        elif isinstance(source, Door):
            again = source.on_ready(mask)
            if again is not None:
                self._timers.set(source, again)
        else:
            self._attempt(None, source.run)
            # A call may have pushed to any connection (a revocation does).
            self._dirty.update(each for each in self._connections if each.session.queued or each.broken)

    def _attempt(self, source: Connection | Door | None, call: Callable[..., object], *arguments: Any) -> None:
        """Make the call; an error costs only its source."""
        try:
            call(*arguments)
        except BaseException as error:
            log.exception("bug, or a system that refuses: %r", error)
            if isinstance(source, Connection):
                with contextlib.suppress(BaseException):
                    self._drop(source, f"internal error: {error!r}")
                self._drop(source)  # what one failure cut short is done now
            elif source is not None:
                self._timers.set(source, time.monotonic() + PAUSE_S)

    def _deliver(self, answer: Answer) -> None:
        """A grant that is on the disk, or its refusal."""
        connection, request, message = answer
        if connection in self._connections and not connection.dying:
            self._attempt(connection, self._answer, connection, request, message)

    def _shut(self) -> None:
        """Whatever fails in here, the rest is still done: the journal's lock, the port, those who wait."""
        self._running = False
        with contextlib.ExitStack() as stack:
            stack.callback(self.events.put, ServerEvent("closed"))
            stack.callback(self.desk.journal.close)
            stack.callback(self._selector.close)
            stack.callback(self.mailbox.close)
            for door in self._doors:
                stack.callback(door.close)
            stack.callback(self._commits.close)
            for connection in tuple(self._connections):
                stack.callback(self._attempt, connection, self._leave, connection)

    def _leave(self, connection: Connection) -> None:
        with contextlib.suppress(Disconnected, ExchangeError):
            connection.link.flush()
        self._drop(connection, "server closed")

    # --- connections ---------------------------------------------------------------------------------------------

    def _admit(self, sock: socket.socket, address: str) -> None:
        try:
            in_the_way = self._admission.in_the_way(address)
        except Full as full:
            self._refused["limit"] += 1
            log.stranger("connection of %s refused: %s", address, full)
            sock.close()
            return
        if in_the_way is not None:
            self._refused["limit"] += 1
            log.stranger("handshake of %s given up: others knock, and its slot is the one to free", in_the_way.name)
            self._drop(in_the_way)
        session = ServerSession(self.credentials.mode, self.credentials.keys)
        context = self.credentials.context
        transport = PlainTransport() if context is None else TlsTransport(context, server=True)
        now = time.monotonic()
        connection = Connection(
            Link(sock, transport, session), address, session, self.credentials, accepted=now, active=now
        )
        # Keepalive finds the peers whose machine is gone.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._selector.register(connection.link, connection.events, connection)
        try:
            self._connections.add(connection)
            self._admission.add(connection)
            self._timers.set(connection, connection.deadline(self._limits))
        except BaseException:
            self._drop(connection)
            raise

    def _on_io(self, connection: Connection, mask: int) -> None:
        if connection not in self._connections:
            return  # it went while this turn's events were handled
        if mask & selectors.EVENT_READ:
            if connection.dying:
                if not connection.link.discard():
                    self._drop(connection)
            else:
                self._admission.spoke(connection)
                self._read(connection, connection.link.receive())
        self._dirty.add(connection)

    def _read(self, connection: Connection, messages: Iterator[tuple[Message, int]]) -> None:
        session = connection.session
        try:
            connection.unfinished = self._handle(connection, messages)
            if session.ready and not session.established:
                self._establish(connection)
        except Disconnected as error:
            self._drop(connection, str(error))
        except ExchangeError as error:
            self._condemn(connection, error)
        except BaseException:
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

    def _handle(self, connection: Connection, messages: Iterator[tuple[Message, int]]) -> bool:
        """Answer requests; True when there may be more than one turn's worth."""
        for count, (message, request) in enumerate(messages, 1):
            if request == 0:
                raise ProtocolError(Refusal.RESERVED, f"a {message.KIND.name} request without a number")
            connection.active = time.monotonic()
            try:
                answer = self._request(connection, message, request)
            except RequestRefusedError as refusal:
                self._answer(connection, request, refusal)
            else:
                if answer is not None:
                    self._answer(connection, request, answer)
            if count == REQUESTS_PER_TURN or connection.link.pending >= self._limits.output_bytes:
                return True
        return False

    def _request(self, connection: Connection, message: Message, request: int) -> Message | None:
        match message:
            case Ping():
                return Pong()
            case List():
                return self.desk.list(connection, message)
            case Fetch():
                self.desk.fetch(connection, message, request)
                return None
            case Renew():
                return self.desk.renew(connection, message)
            case Release():
                return self.desk.release(connection, message)
            case Status():
                return self.desk.status_page(connection, message, self._head())
            case Call():
                return self.calls.answer(Caller(connection.name, connection.identity), message)
        raise ProtocolError(Refusal.UNEXPECTED, f"a {message.KIND.name} frame from a client")

    def _answer(self, connection: Connection, request: int, answer: Message | RequestRefusedError) -> None:
        if isinstance(answer, RequestRefusedError):
            answer = ErrorMessage(answer.reason, answer.strerror or "")
        connection.link.send(answer, request)
        self._dirty.add(connection)

    def _establish(self, connection: Connection) -> None:
        if not self.credentials.still_good(connection.credentials, connection.session.key):
            raise AuthenticationError("the key was taken away during the handshake")
        if connection.transport_without_name:
            raise AuthenticationError("the client's certificate has no URI, DNS or common name to know it by")
        idle_ms = round(self._limits.idle_s * 1000)
        connection.session.welcome(Welcome(self._instance, self.desk.term_ms, idle_ms, self.desk.sizes[0]))
        connection.established = time.monotonic()
        self._admission.established(connection)
        how = self.credentials.mode.name
        if connection.identity:
            how += f" identity={connection.identity}"
        if connection.session.key is not None:
            how += f" key={connection.session.key.identity}"
        log.info("peer connected: %s mode=%s", connection.name, how)
        self.events.put(ServerEvent("connected", holder=connection.name))

    def _flush(self, connection: Connection) -> None:
        if connection.dying or connection not in self._connections:
            return
        if connection.broken:
            self._drop(connection, "internal error")
            return
        link = connection.link
        try:
            wrote = link.flush()
        except (Disconnected, ExchangeError) as error:
            self._drop(connection, str(error))
            return
        if not link.pending:
            connection.stalled_since = None
        elif wrote or connection.stalled_since is None:
            connection.stalled_since = time.monotonic()
        events = selectors.EVENT_WRITE if link.pending else 0
        if link.pending < self._limits.output_bytes and not connection.unfinished:
            events |= selectors.EVENT_READ
        self._select(connection, events)
        self._timers.set(connection, connection.deadline(self._limits))

    def _select(self, connection: Connection, events: int) -> None:
        """Wait for these events of the socket; a selector knows no "none"."""
        if events == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.link, events, connection)
        elif events:
            self._selector.modify(connection.link, events, connection)
        else:
            self._selector.unregister(connection.link)
        connection.events = events

    def _condemn(self, connection: Connection, error: ExchangeError) -> None:
        """Tell the peer why, then close; it has `LINGER_S` to read it."""
        reason = getattr(error, "reason", Refusal.AUTHENTICATION)
        self._refused[reason.name.lower()] += 1
        log.stranger("peer refused: %s: %s", connection.name, error.strerror)
        if not connection.session.established:
            self.desk.audit.refused_session(connection.address, error.strerror or "")
        text = error.strerror or ""
        if isinstance(error, AuthenticationError):
            text = "authentication failed"  # the client needs no more than that, a guesser even less
        with contextlib.suppress(Disconnected, ExchangeError, OSError):
            if connection.link.transport.ready:
                connection.link.send(ErrorMessage(reason.on_wire, text))
            connection.link.flush()
            connection.link.sock.shutdown(socket.SHUT_WR)
        connection.dying = True
        connection.unfinished = False
        self._select(connection, selectors.EVENT_READ)
        self._timers.set(connection, time.monotonic() + LINGER_S)

    def _drop(self, connection: Connection, why: str = "") -> None:
        """Let go of it.  Can be done again, and goes on where an earlier try was cut short."""
        known = connection in self._connections
        try:
            if connection.events:
                with contextlib.suppress(KeyError, ValueError, OSError):
                    self._selector.unregister(connection.link)
            with contextlib.suppress(OSError):
                connection.link.close()
        finally:
            connection.events = 0
            self._connections.discard(connection)
            self._unfinished.discard(connection)
            self._timers.cancel(connection)
            self._admission.remove(connection)
            self.desk.disconnected(connection)
        if known and why and connection.session.established:
            log.info("peer gone: %s leases=%d: %s", connection.name, len(connection.leases), why)

    def _on_deadline(self, due: Connection | Door) -> None:
        if isinstance(due, Door):
            due.open()
            return
        problem = due.overdue(self._limits)
        if isinstance(problem, ProtocolError):
            self._condemn(due, problem)
        else:
            self._drop(due, problem)

    # --- what the owner asks for -----------------------------------------------------------------------------------

    def reload(self, credentials: Credentials | None, access: Access) -> int:
        """Use these from now on; sessions that they would not let in are ended. How many."""
        self.desk.access = access
        if credentials is not None:
            self.credentials = credentials
        good = self.credentials.still_good
        ended = [each for each in self._connections if not each.dying and not good(each.credentials, each.session.key)]
        for each in ended:
            why = ProtocolError(Refusal.AUTHENTICATION, "the credentials changed: connect again")
            self._attempt(each, self._condemn, each, why)
        self.desk.audit.operator(
            "reload", sessions_ended=len(ended), keys=[key.identity for key in self.credentials.keys]
        )
        return len(ended)

    def status(self) -> dict[str, Any]:
        return self._head() | {"items": list(self.desk.items())}

    def counts(self) -> dict[str, Any]:
        return (
            self.desk.counts()
            | {
                "connections": len(self._connections),
                "handshakes": self._admission.unfinished,
                "uptime_seconds": time.time() - self._started,
            }
            | self._losses()
        )

    def _losses(self) -> dict[str, dict[str, int]]:
        accept = sum(door.failures for door in self._doors)
        lines = {"log": log.dropped, "strangers": log.suppressed, "audit": self.desk.audit.dropped}
        refused = self._refused + self.desk.audit.refusals + Counter({"accept": accept})
        return {"refused": refused, "lines_dropped": lines}

    def _head(self) -> dict[str, Any]:
        return {
            "version": 1,
            "server": {
                "instance": self._instance[:4].hex(),
                "mode": self.credentials.mode.name.lower(),
                "keys": [key.identity for key in self.credentials.keys],
                "uptime_s": round(time.time() - self._started, 1),
                "term_s": self.desk.term_ms / 1000,
                "closing": self.desk.closing,
                "connections": len(self._connections),
                "handshakes": self._admission.unfinished,
                **dict(zip(("regions", "leases"), self.desk.sizes, strict=True)),
            }
            | self._losses(),
        }
