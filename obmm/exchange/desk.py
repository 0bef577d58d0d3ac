# SPDX-License-Identifier: Apache-2.0
"""The lease desk: what is published, who has a lease on it, and what becomes of that.

No sockets and no disk in here: the service brings requests, and sends what comes back; grants leave once their journal
lines are on the disk.  Refusals travel as ERROR frames.  What can fail comes before what changes, or is undone: a handle
never leaves without a line in the journal, an entry in the book and a hold on its region.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

from obmm.background import BackgroundLogger
from obmm.exchange.access import EVERYONE, Access
from obmm.exchange.audit import AuditLog
from obmm.exchange.call_messages import Status, StatusPage
from obmm.exchange.connection import Connection
from obmm.exchange.errors import JournalError, Refusal, RequestRefusedError
from obmm.exchange.events import EventQueue
from obmm.exchange.journal import Batch, LeaseJournal
from obmm.exchange.journal_lines import grant_line
from obmm.exchange.leases import LeaseBook, LeaseFilter, LeaseRecord, LeaseState
from obmm.exchange.limits import Limits
from obmm.exchange.messages import (
    Fetch,
    Grant,
    List,
    Listed,
    RegionEntry,
    Release,
    Released,
    Renew,
    Renewed,
    Revoked,
    RevokeReason,
)
from obmm.exchange.pending import Granting, PendingGrants
from obmm.exchange.publication import Publication
from obmm.exchange.revocation import Revocation, Revocations
from obmm.exchange.server_event import ServerEvent
from obmm.exchange.status_items import by_state, items
from obmm.exchange.timers import Timers

log = BackgroundLogger("obmm.exchange.server")

STATUS_ITEMS = 200  # per page
AGAIN_S = 1.0  # a hold that could not be let go is tried again


Answer = tuple[Connection, int, Grant | RequestRefusedError]


class LeaseDesk:
    """All of it for one server, used from the server's thread only."""

    def __init__(
        self,
        journal: LeaseJournal,
        term_s: float,
        limits: Limits,
        events: EventQueue[ServerEvent],
        access: Access = EVERYONE,
    ) -> None:
        self.timers: Timers[bytes | Revocation | Publication] = Timers()
        self.closing = False
        self.term_ms = round(term_s * 1000)
        self.access = access
        self.journal = journal
        self.audit = AuditLog()
        self._limits = limits
        self._events = events
        self._book = LeaseBook()
        self._by_name: dict[str, Publication] = {}
        self._by_generation: dict[int, Publication] = {}
        self._holder: dict[bytes, Connection] = {}
        self._revocations = Revocations()
        self._pending = PendingGrants()
        self._happened: Counter[str] = Counter()
        for record in journal.recovered:
            self._book.add(record)
        if journal.recovered:
            log.warning(
                "journal %s: %d lease(s) of an earlier server are out and count as unknown until renewed or released",
                journal.path,
                len(journal.recovered),
            )

    @property
    def sizes(self) -> tuple[int, int]:
        """How many regions are published, how many leases are out."""
        return len(self._by_name), len(self._book)

    # --- requests ------------------------------------------------------------------------------------------------

    def list(self, connection: Connection, message: List) -> Listed:
        published = [
            each
            for each in self._by_name.values()
            if not each.revoked and self.access.allows(connection.identity, each.name)
        ]
        page = published[message.first : message.first + Listed.PER_PAGE]
        entries = (
            RegionEntry(each.name, each.handle.length, each.generation, len(each.manifest), int(each.handle.flags))
            for each in page
        )
        return Listed(len(published), tuple(entries))

    def fetch(self, connection: Connection, message: Fetch, request: int) -> None:
        """Grant a lease; the answer comes once its line is on the disk, from `written`."""
        if self.closing:
            raise RequestRefusedError(Refusal.CLOSING, "the server is closing")
        publication = self._by_name.get(message.name)
        allowed = self.access.allows(connection.identity, message.name)
        if publication is None or publication.revoked or not allowed:
            # the same words for what is not there and what is not allowed: names are not given away
            self.audit.refused(connection, message.name, "no such region" if allowed else "not allowed")
            raise RequestRefusedError(Refusal.NO_REGION, f"no region {message.name!r} is published here")
        if len(self._pending) >= self._limits.grants_waiting:
            raise RequestRefusedError(
                Refusal.LIMIT, "the server's disk is behind with what was granted; ask again later"
            )
        record = self._book.get(message.lease)
        if record is not None:  # the client never saw our answer
            same = (record.region, record.generation, record.identity)
            if same != (publication.name, publication.generation, connection.identity):
                raise RequestRefusedError(Refusal.UNKNOWN_LEASE, "this lease id belongs to another lease")
            publication.hold()
            record.state = LeaseState.ACTIVE
            self._attach(connection, record)
            self._pending.add(Granting(connection, request, record, publication))
        else:
            self._grant(connection, message, request, publication)

    def _grant(self, connection: Connection, message: Fetch, request: int, publication: Publication) -> None:
        if len(self._book) >= self._limits.leases:
            self.audit.refused(connection, message.name, "too many leases")
            raise RequestRefusedError(Refusal.LIMIT, "the server has as many leases out as it allows")
        if len(connection.leases) >= self._limits.leases_per_connection:
            self.audit.refused(connection, message.name, "too many leases of one connection")
            raise RequestRefusedError(Refusal.LIMIT, "this connection has as many leases as one may have")
        record = LeaseRecord(
            id=message.lease,
            region=publication.name,
            generation=publication.generation,
            client=connection.client,
            address=connection.address,
            identity=connection.identity,
            importer_eid=message.importer_eid,
            granted=time.time(),
        )
        publication.hold()
        try:
            self._book.add(record)
            self._attach(connection, record)
            self._pending.add(Granting(connection, request, record, publication))
            self.journal.grant(record)
        except BaseException:
            self._pending.retract(record)
            self._forget(record)
            self._settle(publication)
            raise

    def renew(self, connection: Connection, message: Renew) -> Renewed:
        record = self._book.get(message.lease)
        if record is None or record.identity != connection.identity:
            raise RequestRefusedError(Refusal.UNKNOWN_LEASE, "no such lease is out")
        # Also when it is refused below: what there is to say about this lease is said here from now on.
        self._attach(connection, record)
        record.client, record.address = connection.client, connection.address
        publication = self._by_name.get(record.region)
        if message.generation != record.generation:
            raise RequestRefusedError(Refusal.STALE, f"the lease is for another export of {record.region!r}")
        if publication is not None and publication.generation != record.generation:
            raise RequestRefusedError(Refusal.STALE, f"{record.region!r} was exported again since")
        if publication is None or publication.revoked or not self.access.allows(connection.identity, record.region):
            raise RequestRefusedError(Refusal.REVOKED, f"{record.region!r} is withdrawn")
        if record.state is not LeaseState.ACTIVE:
            log.info("lease back: %s of %s, holder %s", record.short, record.region, record.holder)
            record.state = LeaseState.ACTIVE
            self._event("renewed", record)
        return Renewed(record.id, self.term_ms)

    def release(self, connection: Connection, message: Release) -> Released:
        """A release that is asked for twice (its answer got lost) is answered twice."""
        record = self._book.get(message.lease)
        if record is None:
            return Released(message.lease)
        if record.identity != connection.identity:
            raise RequestRefusedError(Refusal.UNKNOWN_LEASE, "no such lease is out")
        self.journal.release(record)
        self._forget(record)
        log.info("lease released: %s of %s by %s", record.short, record.region, record.holder)
        self._event("released", record)
        self._settle(self._by_generation.get(record.generation))
        return Released(message.lease)

    def status_page(self, connection: Connection, message: Status, head: dict[str, Any]) -> StatusPage:
        page = list(self.items(message.first, message.first + STATUS_ITEMS, connection.identity))
        more = len(page) == STATUS_ITEMS
        text = json.dumps(head | {"items": page}, separators=(",", ":")).encode()
        return StatusPage(message.first + len(page) if more else 0, text)

    # --- the journal ---------------------------------------------------------------------------------------------

    def take_batch(self) -> Batch | None:
        """What the journal must write before the grants since the last call may leave; None when there is nothing."""
        if not self._pending.filling and not self.journal.noted:
            return None
        batch = self.journal.take()
        self._pending.take()
        return batch

    def lines_out(self) -> tuple[bytes, ...]:
        """The journal's lines of all leases that are out."""
        return tuple(grant_line(record) for record in self._book)

    def written(self, batches: int, failure: JournalError | None) -> tuple[Answer, ...]:
        """The oldest ``batches`` of `take_batch` are on the disk, or could not be written; the answers that now leave."""
        if failure is not None:
            log.error("%s", failure.strerror)
        return tuple(
            (each.connection, each.request, self._answer_to(each, failure)) for each in self._pending.pop(batches)
        )

    def _answer_to(self, each: Granting, failure: JournalError | None) -> Grant | RequestRefusedError:
        try:
            return self._verdict(each, failure)
        except BaseException:  # an answer that cannot be made does not keep the others' back
            log.exception("lease %s of %s: no answer could be made", each.record.short, each.record.region)
            self.journal.release(each.record)
            self._forget(each.record)
            self._settle(each.publication)
            return RequestRefusedError(Refusal.INTERNAL, "internal error of the server")

    def _verdict(self, each: Granting, failure: JournalError | None) -> Grant | RequestRefusedError:
        record, publication = each.record, each.publication
        held = self._book.get(record.id) is record
        if failure is None and held and record.state is not LeaseState.REVOKED:
            log.info("lease granted: %s of %s to %s", record.short, record.region, record.holder)
            self._event("granted", record)
            return Grant(record.id, self.term_ms, publication.handle, publication.manifest)
        if held:  # over before the grant left: its holder would have been told to let go before it knew the lease
            self.journal.release(record)
            self._forget(record)
        self._settle(publication)
        if failure is None:
            return RequestRefusedError(Refusal.NO_REGION, f"no region {publication.name!r} is published here")
        self.audit.refused(each.connection, publication.name, "the journal cannot be written")
        return RequestRefusedError(Refusal.INTERNAL, "the server cannot write its lease journal")

    # --- connections and time ------------------------------------------------------------------------------------

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone, its leases are not: the fabric may live although TCP is cut."""
        for lease in connection.leases:
            if self._holder.get(lease) is connection:
                del self._holder[lease]

    def expire(self, now: float) -> None:
        """Look at the deadlines of leases and revocations."""
        for due in self.timers.pop_due(now):
            if isinstance(due, Revocation):
                self._end_revocation(due)
                continue
            if isinstance(due, Publication):
                self._settle(due)
                continue
            record = self._book.get(due)
            if record is None or record.state is not LeaseState.ACTIVE:
                continue
            record.state = LeaseState.UNKNOWN
            log.warning(
                "lease expired without release: %s of %s, holder %s; the region stays exported until it is released",
                record.short,
                record.region,
                record.holder,
            )
            self._event("expired", record)

    # --- what the owner asks for -----------------------------------------------------------------------------------

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
        if self._book.of(publication.generation):
            publication.hold()
        self._by_name[publication.name] = publication
        self._by_generation[publication.generation] = publication
        log.info("region published: %s, %d bytes", publication.name, publication.handle.length)

    def revoke(self, name: str, timeout: float, reason: RevokeReason) -> Future[tuple[LeaseRecord, ...]]:
        """Ask every holder to let go; the future has the leases that are still out at the deadline."""
        publication = self._by_name.get(name)
        if publication is None:
            raise RequestRefusedError(Refusal.NO_REGION, f"no region {name!r} is published here")
        revocation = self._revocations.begin(publication)
        first, publication.revoked = not publication.revoked, True
        self.timers.set(revocation, time.monotonic() + timeout)
        leases = self._book.of(publication.generation)
        told = [each for each in leases if each.state is not LeaseState.REVOKED]
        if told or first:  # who asks again, to wait longer, is not a news
            log.info("region %s: revoking %d lease(s), deadline %.1f s", name, len(told), timeout)
        for record in leases:
            news, record.state = record.state is not LeaseState.REVOKED, LeaseState.REVOKED
            self.timers.cancel(record.id)
            holder = self._holder.get(record.id)
            if holder is not None:
                holder.push(Revoked(record.id, min(round(timeout * 1000), 0xFFFFFFFF), reason))
            if news:
                self._event("revoked", record)
        self._settle(publication)
        return revocation.done

    def force(self, name: str) -> None:
        """Forget the unreleased leases on a region, those on earlier exports of the name too, and the region."""
        publication = self._by_name.get(name)
        self.end(LeaseFilter(region=name))
        if publication is not None:
            self._unhold(publication)
            self._withdraw(publication)

    def find(self, which: LeaseFilter) -> tuple[LeaseRecord, ...]:
        """The leases that fit."""
        return tuple(record for record in self._book if which.fits(record))

    def counts(self) -> dict[str, Any]:
        """For a monitor."""
        figures = {"regions": len(self._by_name), "leases": by_state(self._book), "events": dict(self._happened)}
        return figures | {"grants_waiting": len(self._pending), "closing": int(self.closing)}

    def end(self, which: LeaseFilter) -> tuple[LeaseRecord, ...]:
        """Give up the leases that fit, of any holder, and tell the holders that are connected."""
        ended = self.find(which)
        for record in ended:
            log.error("lease given up by force: %s of %s, holder %s", record.short, record.region, record.holder)
            self.journal.release(record, forced=True)
            holder = self._holder.get(record.id)
            self._forget(record)
            if holder is not None and record.state is not LeaseState.REVOKED:
                holder.push(Revoked(record.id, 0, RevokeReason.WITHDRAWN))
            self._event("ended", record)
        for generation in {record.generation for record in ended}:
            self._settle(self._by_generation.get(generation))
        return ended

    def begin_closing(self) -> tuple[str, ...]:
        """No new leases from now on; the names that are still published."""
        self.closing = True
        return tuple(self._by_name)

    def items(self, start: int = 0, stop: int | None = None, who: str | None = None) -> Iterator[dict[str, Any]]:
        """Items [start, stop) of the status: regions, then leases; only those that ``who`` may fetch, if given."""
        allowed = None if who is None else partial(self.access.allows, who)
        return islice(items(tuple(self._by_name.values()), self._book, self._holder, allowed), start, stop)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _event(self, kind: str, record: LeaseRecord) -> None:
        self._happened[kind] += 1
        self._events.put(ServerEvent(kind, record.region, record.short, record.holder))
        self.audit.lease(kind, record)

    def _attach(self, connection: Connection, record: LeaseRecord) -> None:
        """The lease lives with this connection now, for a whole term from now."""
        previous = self._holder.get(record.id)
        if previous is not None:
            previous.leases.discard(record.id)
        self._holder[record.id] = connection
        connection.leases.add(record.id)
        record.expires = time.monotonic() + self.term_ms / 1000
        self.timers.set(record.id, record.expires)

    def _forget(self, record: LeaseRecord) -> None:
        """Can be done twice, and after half of it."""
        self._book.remove(record)
        self.timers.cancel(record.id)
        holder = self._holder.pop(record.id, None)
        if holder is not None:
            holder.leases.discard(record.id)

    def _settle(self, publication: Publication | None) -> None:
        """After a lease went: let go of the region if that was the last one."""
        if publication is None or self._book.of(publication.generation):
            return
        if not self._unhold(publication):
            return
        for revocation in self._revocations.of(publication.generation):
            self._end_revocation(revocation)

    def _unhold(self, publication: Publication) -> bool:
        """Let the region be closed; what refuses is tried again, since no other code would."""
        try:
            publication.unhold()
        except BaseException:
            log.exception("region %s: its hold could not be let go; tried again", publication.name)
            self.timers.set(publication, time.monotonic() + AGAIN_S)
            return False
        return True

    def _withdraw(self, publication: Publication) -> None:
        if self._by_name.get(publication.name) is publication:
            del self._by_name[publication.name]
        self._by_generation.pop(publication.generation, None)

    def _end_revocation(self, revocation: Revocation) -> None:
        publication = revocation.publication
        self.timers.cancel(revocation)
        self._revocations.end(revocation)
        outstanding = self._book.of(publication.generation)
        if not outstanding:
            self._withdraw(publication)
            log.info("region %s revoked: every lease is released", publication.name)
        for record in publication.not_reported(outstanding):
            log.error(
                "region %s: lease %s was not released by %s (%s)",
                publication.name,
                record.short,
                record.holder,
                record.state.value,
            )
        if not revocation.done.done():
            revocation.done.set_result(outstanding)
