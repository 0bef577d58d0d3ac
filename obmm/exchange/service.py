# SPDX-License-Identifier: Apache-2.0
"""The server's engine: one thread, one selector, all connections.

Everything in here runs in that thread (`Server` posts calls into it), so nothing needs a lock.  One turn of the loop
is: read and answer what came, look at the deadlines, put the new leases on the disk with one fsync, send.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from obmm.exchange.connection import Connection
from obmm.exchange.desk import LeaseDesk, ServerEvent
from obmm.exchange.errors import AuthenticationError, ExchangeError, ProtocolError, Refusal, RequestRefusedError
from obmm.exchange.events import EventQueue
from obmm.exchange.keys import Key
from obmm.exchange.limits import Limits
from obmm.exchange.link import Disconnected, Link
from obmm.exchange.mailbox import Mailbox
from obmm.exchange.messages import (
    ErrorMessage,
    Fetch,
    List,
    Message,
    Mode,
    Ping,
    Pong,
    Release,
    Renew,
    Status,
    Welcome,
)
from obmm.exchange.session import ServerSession
from obmm.exchange.timers import Timers
from obmm.exchange.tls import PlainTransport, TlsTransport

log = logging.getLogger("obmm.exchange.server")

LINGER_S = 1.0  # how long a refused peer may take to read why
PAUSE_S = 0.5  # no accept for so long when the process is out of descriptors
ACCEPTS_PER_TURN = 64
REQUESTS_PER_TURN = 64  # of one connection, then the others get their turn
SLEEP_S = 3600.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """How sessions are protected: exactly one of plain, keys, TLS."""

    mode: Mode
    keys: tuple[Key, ...] = ()
    context: ssl.SSLContext | None = field(default=None, repr=False)


class Service:
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
        self._listeners = list(listeners)
        self._limits = limits
        self._instance = os.urandom(16)
        self._started = time.time()
        self._connections: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._handshakes: Counter[str] = Counter()
        self._unfinished: set[Connection] = set()
        self._dirty: set[Connection] = set()
        self._timers: Timers[Connection | str] = Timers()
        self._refused: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._running = True
        self._selector.register(self.mailbox, selectors.EVENT_READ, self._on_mail)
        self._listen(True)

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
        self.desk.abandon()
        self.mailbox.abandon()
        self.events.abandon()

    def _turn(self) -> None:
        resumable = [each for each in self._unfinished if each.link.pending < self._limits.output_bytes]
        now = time.monotonic()
        longest = min(self._timers.timeout(now, SLEEP_S), self.desk.timers.timeout(now, SLEEP_S))
        for key, mask in self._selector.select(0.0 if resumable else longest):
            key.data(mask)
        for connection in resumable:
            if connection in self._connections:
                self._read(connection, connection.link.resume())
                self._dirty.add(connection)
        now = time.monotonic()
        self.desk.expire(now)
        for due in self._timers.pop_due(now):
            self._on_deadline(due)
        for connection, request, answer in self.desk.commit():
            if connection in self._connections and not connection.dying:
                self._answer(connection, request, answer)
        for connection in tuple(self._dirty):
            self._flush(connection)
        self._dirty.clear()

    def _on_mail(self, mask: int) -> None:
        self.mailbox.run()
        # A call may have pushed to any connection (a revocation does).
        self._dirty.update(connection for connection in self._connections if connection.session.queued)

    def _shut(self) -> None:
        for connection in tuple(self._connections):
            with contextlib.suppress(Disconnected, ExchangeError):
                connection.link.flush()
            self._drop(connection, "server closed")
        for listener in self._listeners:
            listener.close()
        self.mailbox.close()
        self._selector.close()
        try:
            self.desk.close()
        finally:
            self.events.put(ServerEvent("closed"))

    # --- connections ---------------------------------------------------------------------------------------------

    def _listen(self, on: bool) -> None:
        for listener in self._listeners:
            if on:
                self._selector.register(listener, selectors.EVENT_READ, partial(self._on_accept, listener))
            else:
                self._selector.unregister(listener)

    def _on_accept(self, listener: socket.socket, mask: int) -> None:
        for _ in range(ACCEPTS_PER_TURN):
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
            self._admit(sock, _printable(address[0].removeprefix("::ffff:")))

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
        connection = Connection(Link(sock, transport, session), address, session, accepted=now, active=now)
        self._connections.add(connection)
        self._per_address[address] += 1
        self._handshakes[address] += 1
        self._selector.register(connection.link, connection.events, partial(self._on_io, connection))
        self._timers.set(connection, connection.deadline(limits))
        # Keepalive finds the peers whose machine is gone.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _on_io(self, connection: Connection, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            if connection.dying:
                self._read_out(connection)
            else:
                self._read(connection, connection.link.receive())
        self._dirty.add(connection)

    def _read_out(self, connection: Connection) -> None:
        """A refused peer still talks: take it, so that closing does not reset the connection under our answer."""
        try:
            if connection.link.sock.recv(65536):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._drop(connection)

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
                return self.desk.list(message)
            case Fetch():
                self.desk.fetch(connection, message, request)
                return None
            case Renew():
                return self.desk.renew(connection, message)
            case Release():
                return self.desk.release(connection, message)
            case Status():
                return self.desk.status_page(message, self._head())
        raise ProtocolError(Refusal.UNEXPECTED, f"a {message.KIND.name} frame from a client")

    def _answer(self, connection: Connection, request: int, answer: Message | RequestRefusedError) -> None:
        if isinstance(answer, RequestRefusedError):
            answer = ErrorMessage(answer.reason, answer.strerror or "")
        connection.link.send(answer, request)
        self._dirty.add(connection)

    def _establish(self, connection: Connection) -> None:
        self._handshake_over(connection)
        idle_ms = round(self._limits.idle_s * 1000)
        connection.session.welcome(Welcome(self._instance, self.desk.term_ms, idle_ms, self.desk.regions))
        how = self.credentials.mode.name
        if connection.identity:
            how += f" certificate={connection.identity}"
        if connection.session.key_identity:
            how += f" key={connection.session.key_identity}"
        log.info("peer connected: %s mode=%s", connection.name, how)
        self.events.put(ServerEvent("connected", holder=connection.name))

    def _handshake_over(self, connection: Connection) -> None:
        self._handshakes[connection.address] -= 1
        if not self._handshakes[connection.address]:
            del self._handshakes[connection.address]

    def _flush(self, connection: Connection) -> None:
        if connection.dying or connection not in self._connections:
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
        call = partial(self._on_io, connection)
        if not connection.events:
            self._selector.register(connection.link, events, call)
        elif events:
            self._selector.modify(connection.link, events, call)
        else:
            self._selector.unregister(connection.link)
        connection.events = events

    def _condemn(self, connection: Connection, error: ExchangeError) -> None:
        """Tell the peer why, then close; it has `LINGER_S` to read it."""
        reason = getattr(error, "reason", Refusal.AUTHENTICATION)
        self._refused[reason.name.lower()] += 1
        log.warning("peer refused: %s: %s", connection.name, error.strerror)
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
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._unfinished.discard(connection)
        self._timers.cancel(connection)
        if connection.events:
            self._selector.unregister(connection.link)
        connection.link.close()
        address = connection.address
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        if not connection.session.established:
            self._handshake_over(connection)
        self.desk.disconnected(connection)
        if why and connection.session.established:
            log.info("peer gone: %s leases=%d: %s", connection.name, len(connection.leases), why)

    def _on_deadline(self, due: Connection | str) -> None:
        if isinstance(due, str):
            self._listen(True)
        elif due.dying:
            self._drop(due)
        elif not due.session.established:
            self._condemn(due, ProtocolError(Refusal.TIMEOUT, "the handshake took too long"))
        elif due.stalled_since is not None:
            self._drop(due, "it takes no answers")
        elif due.partial_since is not None:
            self._condemn(due, ProtocolError(Refusal.TIMEOUT, "a frame took too long to arrive"))
        else:
            self._drop(due, f"silent for {self._limits.idle_s:.0f} s")

    # --- what the owner asks for -----------------------------------------------------------------------------------

    def rekey(self, keys: tuple[Key, ...]) -> None:
        self.credentials = Credentials(self.credentials.mode, keys, self.credentials.context)

    def status(self) -> dict[str, Any]:
        return self._head() | {"items": list(self.desk.items())}

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
                "handshakes": self._handshakes.total(),
                "regions": self.desk.regions,
                "leases": self.desk.leases,
                "refused": dict(self._refused),
            },
        }


def _printable(text: str) -> str:
    return "".join(c if "!" <= c <= "~" else "?" for c in text)[:64]
