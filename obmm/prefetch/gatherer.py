# SPDX-License-Identifier: Apache-2.0
"""From row numbers to bytes, whatever the peer does (Engram specification 7 and 11)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.errors import ObmmError
from obmm.prefetch.failures import as_obmm_error, changed, no_slot
from obmm.prefetch.flight import Flight
from obmm.prefetch.health import PeerHealth
from obmm.prefetch.metrics import PrefetchMetrics, token_bucket
from obmm.prefetch.policy import Policy
from obmm.prefetch.rows import Rows, RowsStatus
from obmm.prefetch.slots import Slot
from obmm.prefetch.source import Faulty, Invalid, Prepared, RowSource, Ticket
from obmm.rows.errors import late

log = logging.getLogger("obmm.prefetch")

_PREPARED = 128  # steps that are kept ready: buffers are few, batch sizes may be many


class Gatherer:
    """Starts gathers, waits for them up to their deadline, and puts the policy's bytes in the place of failed ones."""

    def __init__(
        self,
        store: RowSource,
        replica: RowSource | None,
        policy: Policy,
        invalid: Invalid,
        health: PeerHealth,
        metrics: PrefetchMetrics,
        recheck: bool,
    ) -> None:
        self._store = store
        self._recheck = recheck
        self._path = store.path
        self._replica = replica
        self._policy = policy
        self._invalid: Invalid = invalid
        self._faulty: Faulty = "zero" if policy.zero else "error"
        self._health = health
        self._metrics = metrics
        self._next_log = 0.0
        self._steps: dict[tuple[int, ...], Prepared] = {}

    def submit(self, flights: Iterable[Flight]) -> None:
        """One call for all of them.  A store that refuses leaves its error in the flights."""
        going = [(flight, flight.slot) for flight in flights if flight.slot is not None and flight.n_tokens]
        if not going:
            return
        now = time.monotonic()
        try:
            prepared = self._prepared(going)
            for flight, slot in going:
                if slot.landing is not None:
                    flight.buffers.arm(slot, flight.padded if flight.in_turn else 0)
            tickets = prepared.submit()
        except Exception as error:
            for flight, _ in going:
                flight.ticket = None  # of an earlier try, whose outcome is not this one's
                flight.error = as_obmm_error(error)
            return
        for (flight, slot), ticket in zip(going, tickets, strict=True):
            flight.ticket = ticket
            flight.submitted = now
            if slot is flight.buffers.front_slot:
                flight.promised = self._delivered(flight, slot, slot.front(flight.padded))
            elif slot.landing is not None:
                flight.promised = self._delivered(flight, slot, flight.buffers.device_front(flight.padded))

    def catch_up(self, flight: Flight) -> None:
        """Start the gather of a flight that has none: it came too late for a slot, or for `start`."""
        if flight.ticket is None and flight.error is None:
            self._metrics.sync_fallback.add("no slot" if flight.in_spare else "not started")
            self.submit([flight])

    def account(self, flight: Flight) -> None:
        """Count a consumed flight once its waiters have left."""
        metrics, layer = self._metrics, flight.layer
        metrics.blocked.observe(str(layer.layer_id), value=flight.blocked)
        if not flight.gathered or flight.ticket is None:
            return
        flight.gather = flight.ticket.seconds
        labels = str(layer.table), self._path
        metrics.rows.add(*labels, by=flight.rows_read)
        metrics.unique.observe(labels[0], value=flight.rows_read / (flight.n_tokens * layer.columns))
        metrics.bytes.add(*labels, by=flight.rows_read * self._store.tables[layer.table].row_bytes)
        metrics.gather.observe(*labels, token_bucket(flight.n_tokens), value=flight.gather)
        if flight.gather:
            metrics.hidden.set(str(layer.layer_id), to=max(0.0, 1 - flight.blocked / flight.gather))

    def _prepared(self, going: Sequence[tuple[Flight, Slot]]) -> Prepared:
        """The same slots and the same number of tokens come again and again: decode steps above all."""
        key = (going[0][0].n_tokens, *(id(slot) for _, slot in going))
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) == _PREPARED:
                del self._steps[next(iter(self._steps))]
            requests = [flight.request(slot) for flight, slot in going]
            after = [slot.landing.then if slot.landing else None for _, slot in going]
            more = {"then": after} if any(after) else {}
            found = self._store.prepare_many(
                requests, invalid=self._invalid, faulty=self._faulty, recheck=self._recheck, **more
            )
            self._steps[key] = found
        return found

    def settle(self, flights: Iterable[Flight]) -> None:
        """Account for gathers whose end was seen in passing."""
        for flight in flights:
            if not flight.settled:
                flight.settled = True
                self._gathered(flight)

    def rows(self, flight: Flight, stream: Any) -> Rows:
        """The bytes of a flight; never raises for what the peer did."""
        if not flight.n_tokens:
            return self._deliver(flight, RowsStatus.OK, stream)
        if flight.blind is not None:
            error: ObmmError | None = flight.blind
        else:
            error = self._gathered(flight)
            if error is not None and self._policy.retry:
                error = self._again(flight, error)
        if error is None:
            return self._deliver(flight, RowsStatus.OK, stream)
        failed_rows = getattr(error, "failed_rows", None)
        if self._policy.local:
            if self._from_replica(flight):
                return self._deliver(flight, RowsStatus.REPLICA, stream)
            failed_rows = None  # the replica may have written over the rows that came
        if self._policy.zero:
            return self._zeroed(flight, failed_rows, stream)
        flight.error = error
        self._count_zeros(flight, flight.n_tokens, "failed")
        return self._deliver_zeros(flight, RowsStatus.FAILED, None, stream)

    def _gathered(self, flight: Flight) -> ObmmError | None:
        """Wait for the gather; why it failed, or None."""
        if flight.slot is None:
            self._metrics.errors.add("slots")
            return no_slot(flight.layer.table)
        self.catch_up(flight)
        if flight.ticket is not None:
            flight.error = self._result(flight, flight.slot, flight.ticket)
        error, flight.error = flight.error, None
        if error is None:
            self._health.succeeded()
        else:
            self._health.failed(error)
        return error

    def _result(self, flight: Flight, slot: Slot, ticket: Ticket) -> ObmmError | None:
        if not ticket.done() and not ticket.wait(max(flight.submitted + flight.limit - time.monotonic(), 0.0)):
            flight.buffers.leave(slot, ticket, abandoned=True)
            flight.ticket = None
            return late(flight.layer.table, flight.limit)
        lost = None
        try:
            flight.rows_read = ticket.result()
        except Exception as error:
            lost = as_obmm_error(error)
            if getattr(lost, "failed_rows", None) is None:
                return lost
        generation = ticket.generation
        if generation != flight.generation and generation:
            return changed(flight.layer.table, flight.generation, generation)
        flight.gathered = lost is None
        return lost

    def _again(self, flight: Flight, error: ObmmError) -> ObmmError | None:
        """One more try with what is left of the deadline."""
        left = flight.submitted + flight.limit - time.monotonic()
        if left <= 0 or not self._has_clean_slot(flight):
            return error
        self.submit([flight])
        flight.limit = left
        return self._gathered(flight)

    def _from_replica(self, flight: Flight) -> bool:
        """Whether the replica had the rows."""
        assert self._replica is not None
        if not self._has_clean_slot(flight) or flight.slot is None:
            return False
        flight.buffers.arm(flight.slot, 0)  # whatever was sent on is not what will be consumed
        try:
            (ticket,) = self._replica.prepare_many([flight.request(flight.slot)], invalid=self._invalid).submit()
            if not ticket.wait(flight.limit):
                flight.buffers.leave(flight.slot, ticket, abandoned=True)
                flight.slot.blamed = False  # it says nothing about the peer
                raise late(flight.layer.table, flight.limit)
            rows = ticket.result()
        except Exception as error:
            log.error("the local replica failed: %s", error)
            self._metrics.errors.add("replica")
            return False
        self._metrics.rows.add(str(flight.layer.table), "replica", by=rows)
        return True

    def _has_clean_slot(self, flight: Flight) -> bool:
        """Whether the flight has a slot that no late gather writes; moves its ids to another one if need be."""
        taken = flight.slot
        if taken is None or not taken.abandoned:
            return taken is not None
        flight.slot = flight.buffers.acquire_spare(oldest=True)
        if flight.slot is None:
            flight.slot = taken
            return False
        flight.take_ids(taken.ids[: flight.n_tokens])
        return True

    def _zeroed(self, flight: Flight, failed_rows: NDArray[np.bool_] | None, stream: Any) -> Rows:
        """Zeros for the tokens that lost a row (None: all of them did); the others keep theirs."""
        slot = flight.slot
        if failed_rows is None or slot is None or slot.abandoned:
            everything = np.ones(flight.n_tokens, np.bool_)
            self._count_zeros(flight, flight.n_tokens, "policy")
            return self._deliver_zeros(flight, RowsStatus.ZEROED, everything, stream)
        failed = np.logical_or.reduce(failed_rows.reshape(flight.n_tokens, -1), axis=1)
        flight.buffers.arm(slot, 0)
        slot.rows[: flight.n_tokens][failed] = 0
        self._count_zeros(flight, int(failed.sum()), "policy")
        return self._deliver(flight, RowsStatus.ZEROED, stream, failed)

    def _deliver(
        self, flight: Flight, status: RowsStatus, stream: Any, failed: NDArray[np.bool_] | None = None
    ) -> Rows:
        if flight.slot is None:
            return self._deliver_zeros(flight, status, failed, stream)
        buffer, slot = flight.buffers.deliver(flight.slot, flight.padded, stream)
        flight.slot = slot
        if status is RowsStatus.OK:
            return self._delivered(flight, slot, buffer)
        return Rows(buffer, flight.n_tokens, status, failed)

    def _delivered(self, flight: Flight, slot: Slot, buffer: Any) -> Rows:
        rows = slot.delivered
        if rows is None or rows.buffer is not buffer or rows.n_tokens != flight.n_tokens:
            rows = slot.delivered = Rows(buffer, flight.n_tokens, RowsStatus.OK)
        return rows

    def _deliver_zeros(self, flight: Flight, status: RowsStatus, failed: NDArray[np.bool_] | None, stream: Any) -> Rows:
        if flight.slot is not None and not flight.slot.abandoned:
            flight.buffers.release(flight.slot)
        buffer, flight.slot = flight.buffers.deliver_zeros(flight.padded, stream)
        return Rows(buffer, flight.n_tokens, status, failed)

    def _count_zeros(self, flight: Flight, tokens: int, reason: str) -> None:
        """No silent zero (11.3-9)."""
        self._metrics.zero_rows.add(str(flight.layer.table), reason, by=tokens * flight.layer.columns)
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + 1.0
            log.warning(
                "layer %d: the rows of %d tokens are zeros (%s); at most one line a second",
                flight.layer.layer_id,
                tokens,
                reason,
            )
