# SPDX-License-Identifier: Apache-2.0
"""The client's engine: one thread that keeps a connection up, renews leases and answers calls.

`Peer` posts calls into it; everything else in here runs in that one thread.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import random
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from obmm.exchange.errors import (
    DeadlineError,
    ExchangeError,
    PeerUnreachableError,
    ProtocolError,
    Refusal,
    RequestRefusedError,
)
from obmm.exchange.events import EventQueue
from obmm.exchange.keys import Key
from obmm.exchange.lease import Lease, LeaseEvent, LeaseStatus, parse_manifest
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
    Release,
    Released,
    Renew,
    Renewed,
    Revoked,
    Status,
    StatusPage,
)
from obmm.exchange.net import is_loopback, join_address
from obmm.exchange.session import ClientSession
from obmm.exchange.timers import Timers
from obmm.exchange.tls import PlainTransport, TlsTransport

log = logging.getLogger("obmm.exchange.client")

ATTEMPT_S = 5.0  # for TCP, TLS and our handshake together
BACKOFF_S = (0.05, 2.0)
ANSWER_S = 5.0  # for a request without a deadline of its own, on one connection

# The answer that each request wants.
_ANSWERS: dict[type, type] = {
    Ping: Pong,
    List: Listed,
    Fetch: Grant,
    Renew: Renewed,
    Release: Released,
    Status: StatusPage,
}


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

    def __str__(self) -> str:
        return join_address(self.host, self.port)


@dataclass(eq=False, slots=True)
class _Request:
    message: Message
    done: Future[Message]
    deadline: float
    sent: float = 0.0
    number: int = 0


@dataclass(eq=False, slots=True)
class _Patience:
    """How long somebody waits for releases to be confirmed."""

    done: Future[bool]


# What has a deadline: a request, a lease (renewal, suspicion), or a step of the connection.
_TimerKey: TypeAlias = "_Request | _Patience | tuple[str, bytes] | str"


class Client:
    """`run` is the body of the peer's thread."""

    def __init__(self, target: Target, events: EventQueue[LeaseEvent]) -> None:
        self.mailbox = Mailbox()
        self.events = events
        self.target = target
        self.instance = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.mailbox, selectors.EVENT_READ)
        self._sock: socket.socket | None = None  # while TCP connects
        self._addresses: list[tuple[Any, ...]] = []
        self._link: Link | None = None
        self._session: ClientSession | None = None
        self._greeted = False
        self._backoff = BACKOFF_S[0]
        self._last_error: ExchangeError = PeerUnreachableError(f"{target}: no connection yet")
        self._first: Future[None] | None = None
        self._waiting: list[_Request] = []
        self._in_flight: dict[int, _Request] = {}
        self._number = 0
        self._leases: dict[bytes, Lease] = {}
        self._releasing: dict[bytes, _Request] = {}
        self._timers: Timers[_TimerKey] = Timers()
        self._dispatch = Dispatcher(str(target))
        self._running = True

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
        request = _Request(message, Future(), time.monotonic() + timeout)
        self._timers.set(request, request.deadline)
        self._submit(request)
        return request.done

    def fetch(self, name: str, importer_eid: bytes, timeout: float, releaser: Any) -> Future[Lease]:
        message = Fetch(os.urandom(16), name, importer_eid)
        done: Future[Lease] = Future()
        started = time.monotonic()
        answer = self.request(message, timeout)

        def finish(answer: Future[Message]) -> None:
            error = answer.exception()
            if error is not None:
                if not isinstance(error, RequestRefusedError):
                    # The grant may be on its way: hand it back as soon as the server can be told.
                    self._release(message.lease, timeout)
                done.set_exception(error)
                return
            grant = answer.result()
            assert isinstance(grant, Grant)
            try:
                manifest = parse_manifest(grant.manifest)
            except ValueError:
                self._release(message.lease, timeout)
                done.set_exception(ProtocolError(Refusal.PAYLOAD, f"the manifest of {name!r} is not a JSON object"))
                return
            lease = Lease(releaser, grant.lease, name, grant.handle, manifest)
            self._leases[grant.lease] = lease
            self._renewed(lease, started, grant.term_ms / 1000)
            log.info("lease %s of %r from %s", grant.lease[:4].hex(), name, self.target)
            done.set_result(lease)

        answer.add_done_callback(finish)
        return done

    def release(self, lease: Lease, timeout: float) -> Future[bool]:
        """True once the server has confirmed, False when it did not within ``timeout``; it is then told later."""
        if self._leases.pop(lease._id, None) is not None:
            lease._become(LeaseStatus.RELEASED)
            self._timers.cancel(("renew", lease._id))
            self._timers.cancel(("suspect", lease._id))
        elif lease._id not in self._releasing:
            done: Future[bool] = Future()
            done.set_result(True)
            return done
        return self._release(lease._id, timeout)

    def settled(self, timeout: float) -> Future[bool]:
        """Done when every release is confirmed, or after ``timeout`` seconds."""
        patience = _Patience(Future())
        if not self._releasing:
            patience.done.set_result(True)
            return patience.done
        self._timers.set(patience, time.monotonic() + timeout)

        def finish(_: Future[Message]) -> None:
            if not self._releasing and not patience.done.done():
                self._timers.cancel(patience)
                patience.done.set_result(True)

        for request in tuple(self._releasing.values()):
            request.done.add_done_callback(finish)
        return patience.done

    def held(self) -> tuple[Lease, ...]:
        return tuple(self._leases.values())

    def watch(self, lease: Lease, callback: Callable[[LeaseEvent], None]) -> None:
        self._dispatch.add(lease, callback)

    def stop(self) -> None:
        self._running = False

    def abandon(self) -> None:
        """In a forked child: let go of the descriptors, say nothing on the wire."""
        if self._link is not None:
            self._link.close()
        if self._sock is not None:
            self._sock.close()
        self._selector.close()
        self.mailbox.abandon()
        self.events.abandon()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while self._running:
                self._turn()
        finally:
            self._shut()

    def _turn(self) -> None:
        for key, mask in self._selector.select(self._timers.timeout(time.monotonic(), 3600.0)):
            if key.fileobj is self.mailbox:
                self.mailbox.run()
            elif key.fileobj is self._link:
                if mask & selectors.EVENT_READ:
                    self._read()
            elif key.fileobj is self._sock:
                self._connected()
        for due in self._timers.pop_due(time.monotonic()):
            self._on_deadline(due)
        self._flush()

    def _shut(self) -> None:
        self._close_connection()
        if self._releasing:
            log.warning("%s: %d release(s) could not be delivered", self.target, len(self._releasing))
        error = PeerUnreachableError(f"{self.target}: the peer was closed")
        for request in tuple(self._waiting):
            _fail(request.done, error)
        self._waiting.clear()
        for lease in self._leases.values():  # left to the server: nobody renews them any more
            if lease._become(LeaseStatus.SUSPECT):
                self._announce(lease)
        self.mailbox.close()
        self._selector.close()
        self._dispatch.close()

    # --- connecting --------------------------------------------------------------------------------------------------

    def _connect(self, timeout: float = 3600.0) -> None:
        self._timers.set("attempt", time.monotonic() + min(timeout, ATTEMPT_S))
        try:
            self._addresses = _resolve(self.target)
        except ExchangeError as error:
            self._failed(error)
            return
        self._next_address("no address")

    def _next_address(self, why: str) -> None:
        """Begin TCP with the next address of the name; the last failure counts."""
        while self._addresses:
            family, kind, protocol, _, address = self._addresses.pop(0)
            try:
                sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
            except OSError as error:
                why = error.strerror or str(error)
                continue
            result = sock.connect_ex(address)
            if result in (0, errno.EINPROGRESS):
                self._sock = sock
                self._selector.register(sock, selectors.EVENT_WRITE)
                return
            sock.close()
            why = os.strerror(result)
        self._failed(
            PeerUnreachableError(
                f"{self.target}: {why}; does `obmm serve` (or `obmm bench serve`) run there, and is the port open?"
            )
        )

    def _connected(self) -> None:
        assert self._sock is not None
        sock, self._sock = self._sock, None
        self._selector.unregister(sock)
        result = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if result:
            sock.close()
            self._next_address(os.strerror(result))
            return
        target = self.target
        self._greeted = False
        self._session = ClientSession(target.mode, target.key, target.client)
        if target.context is None:
            self._link = Link(sock, PlainTransport(), self._session)
        else:
            transport = TlsTransport(target.context, server=False, server_name=target.server_name or target.host)
            self._link = Link(sock, transport, self._session)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._selector.register(self._link, selectors.EVENT_READ)

    def _established(self) -> None:
        assert self._session is not None
        assert self._session.welcome is not None
        self._greeted = True
        self._timers.cancel("attempt")
        self._backoff = BACKOFF_S[0]
        welcome = self._session.welcome
        if self.instance and welcome.instance != self.instance:
            log.warning("%s: the server was restarted", self.target)
        self.instance = welcome.instance
        log.info("connected to %s in %s mode", self.target, self.target.mode.name)
        self._timers.set("ping", time.monotonic() + welcome.idle_ms / 3000)
        again, self._waiting = self._waiting, []
        for request in again:
            self._submit(request)
        for lease in tuple(self._leases.values()):
            self._renew(lease)
        if self._first is not None:
            first, self._first = self._first, None
            first.set_result(None)

    def _failed(self, error: ExchangeError) -> None:
        """The connection, or the attempt to make one, is over; try again after a while."""
        self._close_connection()
        self._timers.cancel("attempt")
        self._last_error = error
        if self._first is not None:
            first, self._first = self._first, None
            first.set_exception(error)
            return
        log.warning("connection to %s lost: %s", self.target, (error.strerror or "").removeprefix(f"{self.target}: "))
        pause = self._backoff * (0.5 + random.random() / 2)
        self._backoff = min(2 * self._backoff, BACKOFF_S[1])
        self._timers.set("connect", time.monotonic() + pause)

    def _close_connection(self) -> None:
        for each in (self._link, self._sock):
            if each is not None:
                self._selector.unregister(each)
                each.close()
        self._link = self._sock = self._session = None
        self._waiting = [*self._in_flight.values(), *self._waiting]
        self._in_flight.clear()
        self._timers.cancel("ping")

    # --- reading and writing -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._link is not None
        assert self._session is not None
        link, session = self._link, self._session
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
            self._selector.modify(link, events)

    def _on_message(self, message: Message, number: int) -> None:
        if isinstance(message, Revoked):
            self._on_revoked(message)
            return
        if isinstance(message, ErrorMessage) and number == 0:
            raise ProtocolError(message.code, f"the server ended the session: {message.text}")
        request = self._in_flight.get(number)
        if request is None:
            return  # its deadline has passed
        if isinstance(message, ErrorMessage):
            self._finish(request)
            _fail(request.done, RequestRefusedError(message.code, f"{self.target}: {message.text}"))
            return
        if type(message) is not _ANSWERS[type(request.message)]:
            raise ProtocolError(
                Refusal.UNEXPECTED, f"a {message.KIND.name} frame in answer to {request.message.KIND.name}"
            )
        asked = getattr(request.message, "lease", None)
        if asked is not None and getattr(message, "lease", None) != asked:
            raise ProtocolError(Refusal.UNEXPECTED, f"a {message.KIND.name} frame about another lease")
        self._finish(request)
        if not request.done.done():
            request.done.set_result(message)

    def _submit(self, request: _Request) -> None:
        if self._session is None or self._link is None or not self._session.established:
            self._waiting.append(request)
            return
        self._number = self._number % 0xFFFFFFFF + 1
        request.number = self._number
        request.sent = time.monotonic()
        self._in_flight[request.number] = request
        self._link.send(request.message, request.number)
        if request.deadline == float("inf"):
            self._timers.set(request, request.sent + ANSWER_S)

    def _finish(self, request: _Request) -> None:
        self._timers.cancel(request)
        self._in_flight.pop(request.number, None)
        if request in self._waiting:
            self._waiting.remove(request)
        request.number = 0

    # --- deadlines ---------------------------------------------------------------------------------------------------

    def _on_deadline(self, due: _TimerKey) -> None:
        if isinstance(due, _Request):
            self._on_request_deadline(due)
        elif isinstance(due, _Patience):
            log.warning("%s: a release was not confirmed in time; it stays queued", self.target)
            due.done.set_result(False)
        elif isinstance(due, tuple):
            what, lease_id = due
            lease = self._leases.get(lease_id)
            if lease is None:
                return
            if what == "renew":
                self._renew(lease)
            elif lease._become(LeaseStatus.SUSPECT):
                log.error("%r from %s: not renewed for two thirds of its term: suspect", lease.name, self.target)
                self._announce(lease)
        elif due == "connect":
            self._connect()
        elif due == "attempt":
            self._failed(DeadlineError(f"{self.target}: no session in time; the network or the server is silent"))
        elif due == "ping" and self._session is not None and self._session.welcome is not None:
            idle_s = self._session.welcome.idle_ms / 1000
            self.request(Ping(), idle_s / 3)
            self._timers.set("ping", time.monotonic() + idle_s / 3)

    def _on_request_deadline(self, request: _Request) -> None:
        sent = request.number in self._in_flight
        what = request.message.KIND.name
        if request.deadline == float("inf"):
            if sent:  # it stays, and is sent again over a new connection
                self._failed(DeadlineError(f"{self.target}: no answer to {what} in time"))
            return
        self._finish(request)
        if sent:
            # A server that is silent for so long is no better than one that is gone.
            error: ExchangeError = DeadlineError(f"{self.target}: no answer to {what} in time")
            _fail(request.done, error)
            self._failed(error)
        else:
            _fail(
                request.done,
                DeadlineError(
                    f"{self.target}: {what} could not be sent in time; last problem: {self._last_error.strerror}"
                ),
            )

    # --- leases ------------------------------------------------------------------------------------------------------

    def _renewed(self, lease: Lease, since: float, term: float) -> None:
        lease._extend(since, term)
        self._timers.set(("renew", lease._id), since + term / 3)
        self._timers.set(("suspect", lease._id), since + term * 2 / 3)

    def _renew(self, lease: Lease) -> None:
        if lease.status in (LeaseStatus.REVOKED, LeaseStatus.STALE, LeaseStatus.LOST):
            return
        started = time.monotonic()
        answer = self.request(Renew(lease._id, lease.handle.generation), max(0.2, lease._term / 3))

        def finish(answer: Future[Message]) -> None:
            if lease._id not in self._leases:
                return
            error = answer.exception()
            if error is None:
                renewed = answer.result()
                assert isinstance(renewed, Renewed)
                self._renewed(lease, started, renewed.term_ms / 1000)
                if lease._become(LeaseStatus.ACTIVE):
                    log.info("%r from %s: renewed, no longer suspect", lease.name, self.target)
                    self._announce(lease)
            elif isinstance(error, RequestRefusedError) and error.reason in _VERDICTS:
                self._condemn(lease, _VERDICTS[error.reason])
            else:
                self._timers.set(("renew", lease._id), time.monotonic() + max(0.05, lease._term / 12))

        answer.add_done_callback(finish)

    def _condemn(self, lease: Lease, status: LeaseStatus, deadline: float | None = None) -> None:
        """The server has spoken: this lease will not be renewed again."""
        self._timers.cancel(("renew", lease._id))
        self._timers.cancel(("suspect", lease._id))
        if lease._become(status, deadline):
            log.warning("%r from %s: lease is %s", lease.name, self.target, status.value)
            self._announce(lease)

    def _on_revoked(self, message: Revoked) -> None:
        lease = self._leases.get(message.lease)
        if lease is not None:
            self._condemn(lease, LeaseStatus.REVOKED, time.monotonic() + message.deadline_ms / 1000)

    def _announce(self, lease: Lease) -> None:
        event = LeaseEvent(lease, lease.status, lease.revoke_deadline)
        self.events.put(event)
        self._dispatch.post(event)

    def _release(self, lease_id: bytes, timeout: float) -> Future[bool]:
        """Deliver a release, however long it takes; the future says whether that was within ``timeout``."""
        request = self._releasing.get(lease_id)
        if request is None:
            request = self._releasing[lease_id] = _Request(Release(lease_id), Future(), float("inf"))
            request.done.add_done_callback(lambda _: self._releasing.pop(lease_id, None))
            self._submit(request)
        patience = _Patience(Future())
        self._timers.set(patience, time.monotonic() + timeout)

        def finish(answer: Future[Message]) -> None:
            self._timers.cancel(patience)
            if not patience.done.done():
                # Refused means that the server knows nothing of this lease: then there is nothing to release.
                error = answer.exception()
                patience.done.set_result(error is None or isinstance(error, RequestRefusedError))

        request.done.add_done_callback(finish)
        return patience.done


_VERDICTS = {
    Refusal.STALE: LeaseStatus.STALE,
    Refusal.REVOKED: LeaseStatus.REVOKED,
    Refusal.UNKNOWN_LEASE: LeaseStatus.LOST,
}


class Dispatcher:
    """Runs callbacks in a thread of their own, which is started with the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._callbacks: dict[int, list[Callable[[LeaseEvent], None]]] = {}
        self._queue: queue.SimpleQueue[LeaseEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease, callback: Callable[[LeaseEvent], None]) -> None:
        self._callbacks.setdefault(id(lease), []).append(callback)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"obmm-events-{self._name}", daemon=True)
            self._thread.start()

    def post(self, event: LeaseEvent) -> None:
        if id(event.lease) in self._callbacks:
            self._queue.put(event)

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            for callback in self._callbacks.get(id(event.lease), ()):
                try:
                    callback(event)
                except Exception:
                    log.exception("a callback for %r raised", event.lease.name)


def _fail(future: Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _resolve(target: Target) -> list[tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise PeerUnreachableError(f"{target}: {error.strerror}") from None
    if target.loopback_only and not all(is_loopback(str(address[4][0])) for address in found):
        raise PeerUnreachableError(f"{target}: plain mode works on loopback only; use key=PATH or tls=...")
    return list(found)
