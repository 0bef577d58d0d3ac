# SPDX-License-Identifier: Apache-2.0
"""The lease desk: what is published, who has a lease on it, and what becomes of that.

No sockets in here: the service brings requests of connections, and sends what comes back.  Refusals are raised as
RequestRefusedError and travel as ERROR frames.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from obmm.exchange.connection import Connection
from obmm.exchange.errors import JournalError, Refusal, RequestRefusedError
from obmm.exchange.events import EventQueue
from obmm.exchange.journal import LeaseJournal
from obmm.exchange.leases import LeaseBook, LeaseRecord, LeaseState
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
    Status,
    StatusPage,
)
from obmm.exchange.publication import Publication
from obmm.exchange.timers import Timers

log = logging.getLogger("obmm.exchange.server")

STATUS_ITEMS = 200  # per page


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """Something that happened: ``kind`` is connected, granted, renewed, released, expired, revoked or closed."""

    kind: str
    region: str = ""
    lease: str = ""
    holder: str = ""


@dataclass(eq=False, slots=True)
class Revocation:
    """Waits for the leases on one export; `done` gets those that are still out at its deadline."""

    publication: Publication
    done: Future[tuple[LeaseRecord, ...]]


@dataclass(frozen=True, slots=True)
class _Granting:
    """A grant that waits for the journal."""

    connection: Connection
    request: int
    record: LeaseRecord
    publication: Publication


class LeaseDesk:
    """All of it for one server, used from the server's thread only."""

    def __init__(self, journal: LeaseJournal, term_s: float, limits: Limits, events: EventQueue[ServerEvent]) -> None:
        self.timers: Timers[bytes | Revocation] = Timers()
        self.closing = False
        self.term_ms = round(term_s * 1000)
        self._journal = journal
        self._limits = limits
        self._events = events
        self._book = LeaseBook()
        self._by_name: dict[str, Publication] = {}
        self._by_generation: dict[int, Publication] = {}
        self._holder: dict[bytes, Connection] = {}
        self._revocations: dict[int, Revocation] = {}
        self._granting: list[_Granting] = []
        for record in journal.recovered:
            self._book.add(record)
        if journal.recovered:
            log.warning(
                "journal %s: %d lease(s) of an earlier server are out and count as unknown until renewed or released",
                journal.path,
                len(journal.recovered),
            )

    @property
    def regions(self) -> int:
        """How many are published."""
        return len(self._by_name)

    @property
    def leases(self) -> int:
        """How many are out."""
        return len(self._book)

    # --- requests ------------------------------------------------------------------------------------------------

    def list(self, message: List) -> Listed:
        published = [each for each in self._by_name.values() if not each.revoked]
        page = published[message.first : message.first + Listed.PER_PAGE]
        entries = (
            RegionEntry(each.name, each.handle.length, each.generation, len(each.manifest), int(each.handle.flags))
            for each in page
        )
        return Listed(len(published), tuple(entries))

    def fetch(self, connection: Connection, message: Fetch, request: int) -> None:
        """Grant a lease; the answer comes with the next `commit`."""
        publication = self._by_name.get(message.name)
        if self.closing:
            raise RequestRefusedError(Refusal.CLOSING, "the server is closing")
        if publication is None or publication.revoked:
            raise RequestRefusedError(Refusal.NO_REGION, f"no region {message.name!r} is published here")
        record = self._book.get(message.lease)
        if record is not None:  # the client never saw our answer
            same = (record.region, record.generation, record.identity)
            if same != (publication.name, publication.generation, connection.identity):
                raise RequestRefusedError(Refusal.UNKNOWN_LEASE, "this lease id belongs to another lease")
            record.state = LeaseState.ACTIVE
        else:
            if len(self._book) >= self._limits.leases:
                raise RequestRefusedError(Refusal.LIMIT, "the server has as many leases out as it allows")
            if len(connection.leases) >= self._limits.leases_per_connection:
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
            self._book.add(record)
            self._journal.grant(record)
            publication.hold()
        self._attach(connection, record)
        self._granting.append(_Granting(connection, request, record, publication))

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
        if publication is None or publication.revoked:
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
        self._forget(record)
        self._journal.release(record)
        log.info("lease released: %s of %s by %s", record.short, record.region, record.holder)
        self._event("released", record)
        self._settle(self._by_generation.get(record.generation))
        return Released(message.lease)

    def status_page(self, message: Status, head: dict[str, Any]) -> StatusPage:
        page = list(self.items(message.first, message.first + STATUS_ITEMS))
        end = message.first + len(page)
        more = page and end < len(self._by_name) + len(self._book)
        return StatusPage(end if more else 0, json.dumps(head | {"items": page}, separators=(",", ":")).encode())

    def commit(self) -> Iterator[tuple[Connection, int, Grant | RequestRefusedError]]:
        """One fsync for all leases since the last call, before any of their handles leaves; then the answers."""
        granting, self._granting = self._granting, []
        failure: JournalError | None = None
        try:
            self._journal.commit()
            self._journal.compact(self._book)
        except JournalError as error:
            log.error("%s", error.strerror)
            failure = error
        for each in granting:
            record, publication = each.record, each.publication
            held = self._book.get(record.id) is record
            if failure is None and (not held or record.state is LeaseState.REVOKED):
                # Over before the grant left: its holder would have been told to let go before it knew the lease.  The
                # journal has the grant behind everything that was noted before this commit.
                if held:
                    self._forget(record)
                self._journal.release(record)
                self._settle(publication)
                problem = RequestRefusedError(Refusal.NO_REGION, f"no region {publication.name!r} is published here")
                yield each.connection, each.request, problem
            elif failure is None:
                log.info("lease granted: %s of %s to %s", record.short, record.region, record.holder)
                self._event("granted", record)
                grant = Grant(record.id, self.term_ms, publication.handle, publication.manifest)
                yield each.connection, each.request, grant
            else:
                if held:
                    self._forget(record)
                self._settle(publication)
                problem = RequestRefusedError(Refusal.INTERNAL, "the server cannot write its lease journal")
                yield each.connection, each.request, problem

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

    def close(self) -> None:
        self._journal.close()

    def abandon(self) -> None:
        """In a forked child."""
        self._journal.abandon()

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
            running = self._revocations[publication.generation] = Revocation(publication, Future())
        publication.revoked = True
        self.timers.set(running, time.monotonic() + timeout)
        leases = self._book.of(publication.generation)
        log.info("region %s: revoking %d lease(s), deadline %.1f s", name, len(leases), timeout)
        for record in leases:
            record.state = LeaseState.REVOKED
            self.timers.cancel(record.id)
            holder = self._holder.get(record.id)
            if holder is not None:
                holder.push(Revoked(record.id, min(round(timeout * 1000), 0xFFFFFFFF), reason))
            self._event("revoked", record)
        self._settle(publication)
        return running.done

    def force(self, name: str) -> None:
        """Forget the leases on a region that nobody released, and the region."""
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

    def items(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Items [start, stop) of the status: regions, then leases."""
        everything: Iterator[Publication | LeaseRecord] = chain(self._by_name.values(), self._book)
        for each in islice(everything, start, stop):
            yield self._lease_item(each) if isinstance(each, LeaseRecord) else self._region_item(each)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _event(self, kind: str, record: LeaseRecord) -> None:
        self._events.put(ServerEvent(kind, record.region, record.short, record.holder))

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
        self._book.remove(record)
        self.timers.cancel(record.id)
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

    def _end_revocation(self, revocation: Revocation) -> None:
        publication = revocation.publication
        self.timers.cancel(revocation)
        self._revocations.pop(publication.generation, None)
        outstanding = self._book.of(publication.generation)
        if not outstanding:
            self._withdraw(publication)
            log.info("region %s revoked: every lease is released", publication.name)
        for record in outstanding:
            log.error(
                "region %s: lease %s was not released by %s (%s)",
                publication.name,
                record.short,
                record.holder,
                record.state.value,
            )
        revocation.done.set_result(outstanding)

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
            "importer_eid": record.importer_eid.hex() if any(record.importer_eid) else "",
            "state": record.state.value,
            "connected": record.id in self._holder,
            "granted": record.granted,
            "expires_in_s": round(left, 1) if record.state is LeaseState.ACTIVE else None,
        }
