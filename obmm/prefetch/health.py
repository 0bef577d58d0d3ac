# SPDX-License-Identifier: Apache-2.0
"""Whether the peer may be asked for rows (Engram specification 11.3, rules 4 and 6)."""

from __future__ import annotations

import time

from obmm.errors import ObmmError
from obmm.prefetch.breaker import BreakerState, CircuitBreaker
from obmm.prefetch.failures import as_obmm_error, kind_of, peer_failed
from obmm.prefetch.metrics import PrefetchMetrics
from obmm.prefetch.source import Probe, RowSource

_SHOWN = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class PeerHealth:
    """The circuit breaker of one source, with its canary probe.  Nothing here waits."""

    def __init__(
        self,
        store: RowSource,
        breaker: CircuitBreaker,
        probe_deadline: float,
        max_abandoned: int,
        metrics: PrefetchMetrics,
    ) -> None:
        self._store = store
        self._breaker = breaker
        self._probe_deadline = probe_deadline
        self._max_abandoned = max_abandoned
        self._metrics = metrics
        self._probe: tuple[Probe, float] | None = None

    def __str__(self) -> str:
        state = self._breaker.state
        return "asking the peer" if state is BreakerState.CLOSED else f"not asking the peer: {self._breaker.reason}"

    def succeeded(self) -> None:
        self._breaker.succeeded()

    def failed(self, error: ObmmError) -> None:
        """A gather failed.  A table that was published again is not a sign of a sick peer, nor is one that lost some rows."""
        kind = kind_of(error)
        self._metrics.errors.add(kind)
        failed_rows = getattr(error, "failed_rows", None)
        if failed_rows is not None and not failed_rows.all():
            self._breaker.succeeded()
        elif kind != "generation":
            self._breaker.failed(type(error).__name__)

    def why_not(self, abandoned: int) -> ObmmError | None:
        """The reason not to start a gather now, or None; moves the probe on.

        `abandoned`: slots that late gathers from this source still hold.
        """
        if not self._store.healthy():
            self._breaker.trip("its heartbeat or lease connection is lost")
        if abandoned >= self._max_abandoned:
            self._breaker.trip(f"{abandoned} abandoned gathers have not returned")
        if self._breaker.state is not BreakerState.CLOSED:
            self._move_probe(abandoned)
        self._metrics.mapping_state.set(self._store.region, to=_SHOWN[self._breaker.state])
        if self._breaker.state is BreakerState.CLOSED:
            return None
        return peer_failed(self._breaker.reason)

    def _move_probe(self, abandoned: int) -> None:
        if self._probe is not None:
            ticket, sent = self._probe
            if ticket.done():
                self._probe = None
                self._judge(ticket)
            elif time.monotonic() - sent > self._probe_deadline and self._breaker.state is BreakerState.HALF_OPEN:
                # Not abandoned: one probe is out at most, and a late answer only makes room for the next.
                self._breaker.probe_failed()
        elif self._breaker.probe_due() and self._store.healthy() and abandoned < self._max_abandoned:
            try:
                self._probe = self._store.submit_probe(), time.monotonic()
            except Exception as error:
                self._metrics.errors.add(kind_of(as_obmm_error(error)))
                self._breaker.probe_failed()
            else:
                self._breaker.probing()

    def _judge(self, ticket: Probe) -> None:
        in_time = self._breaker.state is BreakerState.HALF_OPEN
        try:
            ticket.result()
        except Exception as error:
            self._metrics.errors.add(kind_of(as_obmm_error(error)))
            if in_time:
                self._breaker.probe_failed()
        else:
            if in_time:
                self._breaker.probe_succeeded()
