# SPDX-License-Identifier: Apache-2.0
"""The client's engine: keeps a connection up and answers calls; its leases are in `obmm.exchange.holdings`.

Everything in here runs in one loop: a thread's (`run`, for `Peer`), or somebody else's event loop (`turn`, `timeout` and
`fileno`, for `obmm.exchange.aio`).  Nothing that fails ends the loop: it costs the connection, and a new one is made.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from obmm.background import BackgroundLogger
from obmm.exchange.call_messages import Call, Ping
from obmm.exchange.connector import Attempt, Connector
from obmm.exchange.errors import (
    DeadlineError,
    ExchangeError,
    PeerUnreachableError,
    ProtocolError,
    Refusal,
    RequestRefusedError,
)
from obmm.exchange.events import EventQueue
from obmm.exchange.held import Proof
from obmm.exchange.holdings import Holdings
from obmm.exchange.keys import Key
from obmm.exchange.lease import LeaseEvent
from obmm.exchange.link import Disconnected, Link
from obmm.exchange.mailbox import Mailbox
from obmm.exchange.messages import ErrorMessage, Message, Mode, Revoked
from obmm.exchange.net import join_address
from obmm.exchange.requests import ANSWERS, Patience, Request, TimerKey, fail, succeed
from obmm.exchange.session import ClientSession
from obmm.exchange.timers import Timers
from obmm.exchange.tls import PlainTransport, TlsTransport
from obmm.exchange.waiter import Waiter

log = BackgroundLogger("obmm.exchange.client")

ATTEMPT_S = 5.0  # for names, TCP, TLS and our handshake together
BACKOFF_S = (0.05, 2.0)
ANSWER_S = 5.0  # for a request without a deadline of its own, on one connection
SILENT_S = 1.0  # without any frame from a server that was asked: it may be gone
MOST_LATE = 64  # answers that came too late, on one connection
SLEEP_S = 3600.0
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and how the session is protected."""

    host: str
    port: int
    mode: Mode
    client: str
    key: Key | None = None
    context: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str | None = None
    loopback_only: bool = False
    proof: Proof = field(default=Proof("plain"))

    def __str__(self) -> str:
        return join_address(self.host, self.port)


class Client:
    """`run` is the body of the peer's thread."""

    def __init__(self, target: Target, events: EventQueue[LeaseEvent]) -> None:
        self.mailbox = Mailbox()
        self.events = events
        self.target = target
        self.instance = b""
        self.timers: Timers[TimerKey] = Timers()
        self.holdings = Holdings(self, events, str(target))
        self._selector = Waiter(log)
        self._selector.register(self.mailbox, selectors.EVENT_READ, self.mailbox)
        self._connector = Connector(
            target.host,
            target.port,
            loopback_only=target.loopback_only,
            selector=self._selector,
            mailbox=self.mailbox,
            connected=self._connected,
            failed=self._unreachable,
        )
        self._link: Link | None = None
        self._session: ClientSession | None = None
        self._greeted = False
        self._backoff = BACKOFF_S[0]
        self._last_error: ExchangeError = PeerUnreachableError(f"{target}: no connection yet")
        self._first: Future[None] | None = None
        self._waiting: list[Request] = []
        self._in_flight: dict[int, Request] = {}
        self._late: set[int] = set()
        self._doubt: Future[Message] | None = None
        self._heard = 0.0
        self._number = 0
        self._running = True
        self.is_driven = False
        """Whether its turns are made by somebody else's loop."""
        self.wanted: Callable[[], bool] | None = None
        """Asked by `run` every `LOOK_S` seconds: whether somebody still has the peer."""

    # --- called through the mailbox --------------------------------------------------------------------------------

    def open(self, timeout: float) -> Future[None]:
        """Make the first connection; unlike later ones it is tried once."""
        first = self._first = Future()
        self._connect(timeout)
        return first

    def request(self, message: Message, timeout: float) -> Future[Message]:
        """Send a request, now or when the connection is back; its answer, or RequestRefusedError, or DeadlineError.

        Every request can be repeated without harm, so one whose answer got lost with the connection is sent again.
        """
        request = Request(message, Future(), time.monotonic() + timeout)
        self.timers.set(request, request.deadline)
        self.submit(request)
        return request.done

    def submit(self, request: Request) -> None:
        """Send it now, or when there is a connection."""
        if self._session is None or self._link is None or not self._session.established:
            self._waiting.append(request)
            return
        self._number = self._number % 0xFFFFFFFF + 1
        request.number = self._number
        request.sent = time.monotonic()
        try:
            self._in_flight[request.number] = request
            if request.deadline == float("inf"):
                self.timers.set(request, request.sent + ANSWER_S)
            self._link.send(request.message, request.number)
        except BaseException as error:
            self._failed(_internal(self.target, error))
            self._pass_on(error)

    def again(self, request: Request) -> None:
        """Send it unless it is sent or waits for that: an interrupt may have come before."""
        if request not in self._waiting and self._in_flight.get(request.number) is not request:
            self.submit(request)

    def stop(self) -> None:
        self._running = False

    def abandon(self) -> None:
        """In a forked child: let go of the descriptors, say nothing on the wire."""
        if self._link is not None:
            self._link.close()
        self._connector.cancel()
        self._selector.close()
        self.mailbox.abandon()
        self.events.abandon()

    # --- the loop ----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._running and not self.mailbox.ending

    def fileno(self) -> int:
        """Readable while `turn` has something to do before `timeout` has passed."""
        return self._selector.fileno()

    def timeout(self) -> float:
        """Seconds until `turn` is due although nothing came."""
        longest = self.timers.timeout(time.monotonic(), SLEEP_S)
        due = self._connector.due
        return longest if due is None else max(0.0, min(longest, due - time.monotonic()))

    def run(self) -> None:
        try:
            while self.running and (self.wanted is None or self.wanted()):
                self.turn(min(self.timeout(), LOOK_S))
        finally:
            self.shut()

    def turn(self, longest: float) -> None:
        """Wait, at most ``longest`` seconds, and do what is to do."""
        for key, mask in self._selector.wait(longest):
            if isinstance(key.data, Attempt):
                self._attempt(self._connector.on_ready, key.data)
            elif isinstance(key.data, Link):
                if mask & selectors.EVENT_READ and key.data is self._link:
                    self._attempt(self._read)
            else:
                self._attempt(self.mailbox.run)
        now = time.monotonic()
        if self._connector.due is not None and self._connector.due <= now:
            self._attempt(self._connector.on_time)
        for due in self.timers.pop_due(now):
            self._attempt(self._on_deadline, due)
        self._attempt(self._flush)

    def shut(self) -> None:
        """End: tell every waiting thread and close every descriptor, even when a step fails."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._selector.close)
            stack.callback(self.mailbox.close)
            stack.callback(self.holdings.abandon_all)
            error = PeerUnreachableError(f"{self.target}: the peer was closed")
            for request in (*self._waiting, *self._in_flight.values()):
                stack.callback(fail, request.done, error)
            if self.holdings.undelivered:
                log.warning("%s: %d release(s) could not be delivered", self.target, self.holdings.undelivered)
            stack.callback(self._close_connection)

    def _attempt(self, call: Callable[..., object], *arguments: Any) -> None:
        """Make the call; what goes wrong in it costs the connection."""
        try:
            call(*arguments)
        except BaseException as error:
            log.exception("%s: bug, or a system that refuses: %r", self.target, error)
            self._failed(_internal(self.target, error))
            self._pass_on(error)

    def _pass_on(self, error: BaseException) -> None:
        """In somebody else's loop his interrupt is not ours to keep; our own thread has none and goes on."""
        if self.is_driven and not isinstance(error, Exception):
            raise error

    # --- connecting --------------------------------------------------------------------------------------------------

    def _connect(self, timeout: float = 3600.0) -> None:
        self.timers.set("attempt", time.monotonic() + min(timeout, ATTEMPT_S))
        try:
            self._connector.start()
        except BaseException as error:
            self._failed(_internal(self.target, error))
            self._pass_on(error)

    def _unreachable(self, why: str) -> None:
        hint = (
            "; does a server (`obmm serve`, `obmm blocks serve`, `obmm engram publish`, `obmm bench serve`) serve there by "
            "now, and is the port open?"
        )
        if "plain mode" in why:
            hint = ""
        self._failed(PeerUnreachableError(f"{self.target}: {why}{hint}"))

    def _connected(self, sock: socket.socket) -> None:
        target = self.target
        try:
            session = ClientSession(target.mode, target.key, target.client)
            if target.context is None:
                link = Link(sock, PlainTransport(), session)
            else:
                name = target.server_name or target.host
                link = Link(sock, TlsTransport(target.context, server=False, server_name=name), session)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._selector.register(link, selectors.EVENT_READ, link)
        except BaseException as error:
            sock.close()
            self._failed(error if isinstance(error, ExchangeError) else _internal(target, error))
            self._pass_on(error)
            return
        self._greeted, self._session, self._link = False, session, link

    def _established(self) -> None:
        assert self._session is not None
        assert self._session.welcome is not None
        self._greeted = True
        self.timers.cancel("attempt")
        self._backoff = BACKOFF_S[0]
        welcome = self._session.welcome
        if self.instance and welcome.instance != self.instance:
            log.warning("%s: the server was restarted", self.target)
        self.instance = welcome.instance
        log.info("connected to %s in %s mode", self.target, self.target.mode.name)
        self.timers.set("ping", time.monotonic() + welcome.idle_ms / 3000)
        again, self._waiting = self._waiting, []
        for request in again:
            self.submit(request)
        self.holdings.renew_all()
        first, self._first = self._first, None
        if first is not None:
            succeed(first, None)

    def _failed(self, error: ExchangeError) -> None:
        """The connection, or the attempt to make one, is over; try again after a while."""
        self._last_error = error
        first, self._first = self._first, None
        if first is None:
            pause = self._backoff * (0.5 + random.random() / 2)
            self._backoff = min(2 * self._backoff, BACKOFF_S[1])
            self.timers.set("connect", time.monotonic() + pause)
        self._close_connection()
        self.timers.cancel("attempt")
        if first is not None:
            fail(first, error)
            return
        log.warning("connection to %s lost: %s", self.target, (error.strerror or "").removeprefix(f"{self.target}: "))

    def _close_connection(self) -> None:
        self._connector.cancel()
        link, self._link, self._session = self._link, None, None
        in_flight, self._in_flight = self._in_flight, {}
        self._late.clear()
        self._waiting = [each for each in (*in_flight.values(), *self._waiting) if not each.done.done()]
        self.timers.cancel("ping")
        if link is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(link)
            with contextlib.suppress(OSError):
                link.close()

    # --- reading and writing -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        link, session = self._link, self._session
        if link is None or session is None:
            return
        try:
            for message, number in link.receive():
                self._on_message(message, number)
                if self._link is not link:
                    return
            if session.established and not self._greeted:
                self._established()
        except Disconnected as error:
            self._failed(PeerUnreachableError(f"{self.target}: {error}"))
        except ExchangeError as error:
            self._failed(error)

    def _flush(self) -> None:
        link = self._link
        if link is None:
            return
        try:
            link.flush()
        except Disconnected as error:
            self._failed(PeerUnreachableError(f"{self.target}: {error}"))
            return
        except ExchangeError as error:
            self._failed(error)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.pending else 0)
        if self._selector.get_key(link).events != events:
            self._selector.modify(link, events, link)

    def _on_message(self, message: Message, number: int) -> None:
        self._heard = time.monotonic()
        if isinstance(message, Revoked):
            self.holdings.on_revoked(message)
            return
        if isinstance(message, ErrorMessage) and number == 0:
            raise ProtocolError(message.code, f"the server ended the session: {message.text}")
        request = self._in_flight.get(number)
        if request is None:
            self._late.discard(number)
            return  # its deadline has passed
        if isinstance(message, ErrorMessage):
            fail(request.done, RequestRefusedError(message.code, f"{self.target}: {message.text}"))
            self._finish(request)
            return
        if type(message) is not ANSWERS[type(request.message)]:
            raise ProtocolError(
                Refusal.UNEXPECTED, f"a {message.KIND.name} frame in answer to {request.message.KIND.name}"
            )
        asked = getattr(request.message, "lease", None)
        if asked is not None and getattr(message, "lease", None) != asked:
            raise ProtocolError(Refusal.UNEXPECTED, f"a {message.KIND.name} frame about another lease")
        succeed(request.done, message)
        self._finish(request)

    def _finish(self, request: Request) -> None:
        """It is answered.  An interrupt before this has it sent again, one before its answer would have nobody answer."""
        self.timers.cancel(request)
        self._in_flight.pop(request.number, None)
        if request in self._waiting:
            self._waiting.remove(request)
        request.number = 0

    # --- deadlines ---------------------------------------------------------------------------------------------------

    def _on_deadline(self, due: TimerKey) -> None:
        if isinstance(due, Request):
            self._on_request_deadline(due)
        elif isinstance(due, Patience | tuple):
            self.holdings.on_due(due)
        elif due == "connect":
            self._connect()
        elif due == "attempt":
            self._failed(DeadlineError(f"{self.target}: no session in time; the network or the server is silent"))
        elif due == "ping" and self._session is not None and self._session.welcome is not None:
            idle_s = self._session.welcome.idle_ms / 1000
            self.timers.set("ping", time.monotonic() + idle_s / 3)
            self.request(Ping(), idle_s / 3)

    def _on_request_deadline(self, request: Request) -> None:
        sent = request.number in self._in_flight
        what = request.message.KIND.name
        if request.deadline == float("inf"):
            if sent:  # it stays, and is sent again over a new connection
                self._failed(DeadlineError(f"{self.target}: no answer to {what} in time"))
            return
        number = request.number
        self._finish(request)
        if sent:
            error: ExchangeError = DeadlineError(f"{self.target}: no answer to {what} in time")
            fail(request.done, error)
            if isinstance(request.message, Call):
                self._late.add(number)
                self._doubted(request, error)
            else:  # a server that is silent for so long counts as gone
                self._failed(error)
        else:
            fail(
                request.done,
                DeadlineError(
                    f"{self.target}: {what} could not be sent in time; last problem: {self._last_error.strerror}"
                ),
            )

    def _doubted(self, call: Request, error: ExchangeError) -> None:
        """A call's deadline is its caller's, and may be shorter than any answer takes: the connection stays if it is alive.

        The late answer has a number that is not waited for.  Too many of them, or silence, and it goes as ever.
        """
        now = time.monotonic()
        silent = self._heard < call.sent
        if len(self._late) > MOST_LATE or (silent and now - call.sent >= SILENT_S):
            self._failed(error)
        elif silent and (self._doubt is None or self._doubt.done()):
            self._doubt = self.request(Ping(), SILENT_S)


def _internal(target: Target, error: BaseException) -> ExchangeError:
    what = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else repr(error)
    return PeerUnreachableError(f"{target}: this side's system refused: {what}")
