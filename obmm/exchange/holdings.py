# SPDX-License-Identifier: Apache-2.0
"""The leases of one client: fetched, renewed at a third of their term, watched, and given back however long it takes.

No sockets in here: requests go to the client's connection, which sends them again until they are answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from obmm.background import BackgroundLogger
from obmm.exchange.dispatcher import Dispatcher
from obmm.exchange.errors import PeerUnreachableError, ProtocolError, Refusal, RequestRefusedError
from obmm.exchange.events import EventQueue
from obmm.exchange.lease import Lease, LeaseEvent, LeaseStatus, Releaser, parse_manifest
from obmm.exchange.messages import Fetch, Grant, Message, Release, Renew, Renewed, Revoked
from obmm.exchange.requests import Patience, Request, Requester, fail, succeed

log = BackgroundLogger("obmm.exchange.client")

_VERDICTS = {
    Refusal.STALE: LeaseStatus.STALE,
    Refusal.REVOKED: LeaseStatus.REVOKED,
    Refusal.UNKNOWN_LEASE: LeaseStatus.LOST,
}


class Holdings:
    """Used from the client's loop only."""

    def __init__(self, requester: Requester, events: EventQueue[LeaseEvent], where: str) -> None:
        self._requester = requester
        self._timers = requester.timers
        self._events = events
        self._where = where
        self.over: Callable[[bytes], None] = lambda lease: None  # told of every lease that the server knows is over
        self._asked: set[bytes] = set()  # fetches under way
        self._leases: dict[bytes, Lease] = {}
        self._releasing: dict[bytes, Request] = {}
        self.dispatcher = Dispatcher(where)

    @property
    def held(self) -> tuple[Lease, ...]:
        return tuple(self._leases.values())

    @property
    def undelivered(self) -> int:
        """Releases that the server has not confirmed."""
        return len(self._releasing)

    @property
    def owes(self) -> bool:
        """Whether the server counts, or may count, something as ours."""
        return bool(self._asked or self._leases or self._releasing)

    def fetch(self, message: Fetch, timeout: float, releaser: Releaser) -> Future[Lease]:
        done: Future[Lease] = Future()
        started = time.monotonic()
        self._asked.add(message.lease)
        answer = self._requester.request(message, timeout)

        def finish(answer: Future[Message]) -> None:
            error = answer.exception()
            try:
                if error is None and message.lease in self._releasing:
                    raise PeerUnreachableError(f"{self._where}: the peer was closed")
                if error is not None:
                    if isinstance(error, RequestRefusedError):
                        self.over(message.lease)
                    else:
                        # The grant may be on its way: hand it back as soon as the server can be told.
                        self._release(message.lease, timeout)
                    done.set_exception(error)
                    return
                grant = answer.result()
                assert isinstance(grant, Grant)
                done.set_result(self._take(grant, message.name, started, releaser))
            except BaseException as problem:
                # Granted, but the caller has left: give it back to the owner.
                self._leases.pop(message.lease, None)
                self._release(message.lease, timeout)
                if not done.done():
                    done.set_exception(problem)
            self._asked.discard(message.lease)

        answer.add_done_callback(finish)
        return done

    def _take(self, grant: Grant, name: str, started: float, releaser: Releaser) -> Lease:
        try:
            manifest = parse_manifest(grant.manifest)
        except ValueError:
            raise ProtocolError(Refusal.PAYLOAD, f"the manifest of {name!r} is not a JSON object") from None
        lease = Lease(releaser, grant.lease, name, grant.handle, manifest)
        self._leases[grant.lease] = lease
        self._renewed(lease, started, grant.term_ms / 1000)
        log.info("lease %s of %r from %s", grant.lease[:4].hex(), name, self._where)
        return lease

    def release(self, lease: Lease, timeout: float) -> Future[bool]:
        """True once the server has confirmed, False when it did not within ``timeout``; it is then told later."""
        if lease._id not in self._leases and lease._id not in self._releasing:
            done: Future[bool] = Future()
            done.set_result(True)
            return done
        answer = self._release(lease._id, timeout)  # noted as owed before it is no lease any more
        if self._leases.pop(lease._id, None) is not None:
            lease._become(LeaseStatus.RELEASED)
            self._timers.cancel(("renew", lease._id))
            self._timers.cancel(("suspect", lease._id))
            self.dispatcher.forget(lease)
        return answer

    def give_back(self, timeout: float) -> Future[bool]:
        """Release what no region uses, then as `settled`."""
        for lease in self.held:
            if not lease.users:
                self.release(lease, timeout)
        return self.settled(timeout)

    def settled(self, timeout: float) -> Future[bool]:
        """Done when every release is confirmed, or after ``timeout`` seconds.

        A fetch that is under way is not waited for: its release follows it.
        """
        for lease_id in tuple(self._asked):
            self._release(lease_id, timeout)
        for lease_id, request in tuple(self._releasing.items()):
            if request.done.done():  # an interrupt came before the note of that
                self._released(lease_id, request.done)
            else:
                self._requester.again(request)
        patience = Patience(Future())
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

    def renewal(self, lease: Lease, message: Renew, timeout: float) -> Future[float]:
        """Renew now; the seconds that the lease then has.  Its status follows, also when the server refuses."""
        done: Future[float] = Future()
        self._ask_renewal(lease, message, timeout, done)
        return done

    def renew_all(self) -> None:
        """After a new connection: the server is to know where to find us."""
        for lease in tuple(self._leases.values()):
            self._renew(lease)

    def abandon_all(self) -> None:
        """The client ends: leases that are left are not renewed any more, and the server finds that out."""
        for lease in self._leases.values():
            if lease._become(LeaseStatus.SUSPECT):
                self._announce(lease)
        self.dispatcher.close()

    def on_revoked(self, message: Revoked) -> None:
        lease = self._leases.get(message.lease)
        if lease is not None:
            self._condemn(lease, LeaseStatus.REVOKED, time.monotonic() + message.deadline_ms / 1000)

    def on_due(self, due: tuple[str, bytes] | Patience) -> None:
        """A deadline of a lease, or of somebody who waits for a release."""
        if isinstance(due, Patience):
            log.warning("%s: a release was not confirmed in time; it stays queued", self._where)
            succeed(due.done, False)
            return
        what, lease_id = due
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        if what == "renew":
            self._renew(lease)
        elif lease._become(LeaseStatus.SUSPECT):
            log.error("%r from %s: not renewed for two thirds of its term: suspect", lease.name, self._where)
            self._announce(lease)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _renewed(self, lease: Lease, since: float, term: float) -> None:
        lease._extend(since, term)
        self._timers.set(("renew", lease._id), since + term / 3)
        self._timers.set(("suspect", lease._id), since + term * 2 / 3)

    def _renew(self, lease: Lease) -> None:
        if lease._status in (LeaseStatus.REVOKED, LeaseStatus.STALE, LeaseStatus.LOST):
            return
        # Whatever becomes of this one, there is a next one.
        self._timers.set(("renew", lease._id), time.monotonic() + max(0.2, lease._term / 3))
        self._ask_renewal(lease, Renew(lease._id, lease.handle.generation), max(0.2, lease._term / 3), Future())

    def _ask_renewal(self, lease: Lease, message: Renew, timeout: float, done: Future[float]) -> None:
        started = time.monotonic()
        answer = self._requester.request(message, timeout)

        def finish(answer: Future[Message]) -> None:
            try:
                take(answer.exception())
            finally:
                error = answer.exception()
                if error is None:
                    succeed(done, lease.remaining)
                else:
                    fail(done, error)

        def take(error: BaseException | None) -> None:
            if lease._id not in self._leases:
                return
            if error is None:
                renewed = answer.result()
                assert isinstance(renewed, Renewed)
                self._renewed(lease, started, renewed.term_ms / 1000)
                if lease._become(LeaseStatus.ACTIVE):
                    log.info("%r from %s: renewed, no longer suspect", lease.name, self._where)
                    self._announce(lease)
            elif isinstance(error, RequestRefusedError) and error.reason in _VERDICTS:
                self._condemn(lease, _VERDICTS[error.reason])
            else:
                self._timers.set(("renew", lease._id), time.monotonic() + max(0.05, lease._term / 12))

        answer.add_done_callback(finish)

    def _released(self, lease_id: bytes, answer: Future[Message]) -> None:
        self._releasing.pop(lease_id, None)
        error = answer.exception()
        if error is None or isinstance(error, RequestRefusedError):
            self.over(lease_id)

    def release_unknown(self, lease_id: bytes, timeout: float) -> Future[bool]:
        """Release a lease that somebody else held: a process that is dead."""
        return self._release(lease_id, timeout)

    def _condemn(self, lease: Lease, status: LeaseStatus, deadline: float | None = None) -> None:
        """The server has spoken: this lease will not be renewed again."""
        self._timers.cancel(("renew", lease._id))
        self._timers.cancel(("suspect", lease._id))
        if lease._become(status, deadline):
            log.warning("%r from %s: lease is %s", lease.name, self._where, status.value)
            self._announce(lease)

    def _announce(self, lease: Lease) -> None:
        event = LeaseEvent(lease, lease._status, lease.revoke_deadline)
        self._events.put(event)
        self.dispatcher.post(event)

    def _release(self, lease_id: bytes, timeout: float) -> Future[bool]:
        """Deliver a release, however long it takes; the future says whether that was within ``timeout``."""
        request = self._releasing.get(lease_id)
        if request is None:
            request = Request(Release(lease_id), Future(), float("inf"))
            request.done.add_done_callback(lambda answer: self._released(lease_id, answer))
            self._releasing[lease_id] = request
            self._requester.submit(request)
        patience = Patience(Future())
        self._timers.set(patience, time.monotonic() + timeout)

        def finish(answer: Future[Message]) -> None:
            self._timers.cancel(patience)
            # Refused means that the server does not know this lease: then there is nothing to release.
            error = answer.exception()
            succeed(patience.done, error is None or isinstance(error, RequestRefusedError))

        request.done.add_done_callback(finish)
        return patience.done
