# SPDX-License-Identifier: Apache-2.0
"""Rows that are there when the layer needs them (Engram specification 7, 10, 11 and 13.4)."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from obmm.arguments import whole
from obmm.closing import Closing, tell_of_forks
from obmm.errors import MappingBusyError, ObmmError, StaleHandleError
from obmm.prefetch import step_ids
from obmm.prefetch.breaker import CircuitBreaker
from obmm.prefetch.deadlines import Deadlines, Phase
from obmm.prefetch.device import DeviceCopy, checked
from obmm.prefetch.failures import as_obmm_error, refused
from obmm.prefetch.flight import Flight, FlightStep, PrefetchLayer, refuse_bad_layers
from obmm.prefetch.gatherer import Gatherer
from obmm.prefetch.health import PeerHealth
from obmm.prefetch.landing import LandingDevice
from obmm.prefetch.metrics import PrefetchMetrics
from obmm.prefetch.policy import Policy, Step
from obmm.prefetch.readers import Readers
from obmm.prefetch.rows import Rows, RowsStatus, StepReport
from obmm.prefetch.slots import Allocate, LayerBuffers, anonymous_memory
from obmm.prefetch.source import Expectant, Invalid, RowSource
from obmm.prefetch.step_ids import Ids

_clock = time.perf_counter


class EngramPrefetcher(Closing):
    """Gathers every engram layer of a step in the background, into buffers that never move.

    Per step, on one thread: `begin`, `start`, one `consume` for each layer, `drain`.  Up to `depth` steps may be begun
    and not drained; `consume` and `drain` speak of the oldest, `start` and `cancel` of the newest.

    `layers`: the engram layers, in the order in which the forward reaches them.
    `max_tokens`: the largest padded batch; `begin` refuses more, nothing ever grows.
    `device`: the plug-in that copies to an accelerator; None keeps rows in host memory.
    `store`: where rows come from, `deadlines` in seconds; `breaker` and `max_abandoned` say when the peer counts as failed.
    `policy`: what a remote fault leads to, see `Policy.of`; "zero" is refused unless every table is neutral to zeros.
    `invalid`: "error" refuses a batch with an id outside its table, "zero" makes it a zero row that is not read
    (engines mark "no row" by -1).
    `staging`: "pinned" (the device's pinned memory, or plain pages without a device), or a function that makes a writable
    buffer of so many bytes, for staging in shared memory.
    `replica`: a source on this node for the policy "local".
    `recheck`: on a cacheable import, memory is asked whether the owner has published again before rows are called OK
    (by the gathering threads: one UPDATE_RANGE for all that they have read).  Without it the owner must revoke before it
    publishes.

    A remote fault never raises in `consume`: a raise in the middle of a forward leaves the other ranks of a collective
    waiting for ever.  It gives complete bytes and a status; `drain` raises.  MappingBusyError in the middle of a step, and
    ObmmArgumentError for calls out of order, change nothing.  `padding`: "zero".  `obmm.prefetch` has an example.
    """

    def __init__(
        self,
        store: RowSource,
        layers: Sequence[PrefetchLayer],
        max_tokens: int,
        depth: int = 2,
        device: DeviceCopy | None = None,
        policy: Step | Sequence[Step] = "raise",
        padding: Literal["zero"] = "zero",
        staging: Literal["pinned"] | Allocate = "pinned",
        *,
        invalid: Invalid = "error",
        replica: RowSource | None = None,
        deadlines: Deadlines | None = None,
        breaker: CircuitBreaker | None = None,
        max_abandoned: int = 2,
        recheck: bool = True,
    ) -> None:
        max_tokens, depth = whole("PREFETCH", "max_tokens", max_tokens), whole("PREFETCH", "depth", depth)
        max_abandoned = whole("PREFETCH", "max_abandoned", max_abandoned)
        if max_tokens < 1 or depth < 1 or max_abandoned < 1 or padding != "zero":
            raise refused(
                f"max_tokens={max_tokens}, depth={depth}, max_abandoned={max_abandoned}, padding={padding!r}",
                'use at least 1 for the three, and padding="zero"',
                "13.4",
            )
        if invalid not in get_args(Invalid) or not (staging == "pinned" or callable(staging)):
            raise refused(
                f"invalid={invalid!r}, staging={staging!r}",
                'use "error" or "zero", and "pinned" or a function that makes buffers',
                "13.4",
            )
        self._layers = tuple(layers)
        self._policy = Policy.of(policy)
        if self._policy.local and replica is None:
            raise refused('policy "local" without a replica', "pass replica=, a source on this node", "11.2")
        refuse_bad_layers(self._layers, store, self._policy)
        self._max_tokens = max_tokens
        self._depth = depth
        self._invalid: Invalid = invalid
        self._recheck = recheck
        self._deadlines = deadlines or Deadlines()
        self._steps: deque[FlightStep] = deque()
        self._begun = 0
        self._oldest: dict[int, Flight] = {}  # of the step that is consumed
        self._readers = Readers(device) if isinstance(device, LandingDevice) else None
        self._open = True
        tell_of_forks(self)
        self.metrics = PrefetchMetrics()
        pinned: Allocate = anonymous_memory if device is None else checked(device).allocate_pinned
        allocate = staging if callable(staging) else pinned
        # Later layers first: when memory is tight, they have the longer window and gain the most (7.2).
        self._buffers = {
            layer.layer_id: LayerBuffers(
                max_tokens,
                layer.columns,
                store.tables[layer.table].row_bytes,
                depth,
                allocate,
                device,
                partial(self.metrics.h2d.record, str(layer.layer_id)),
            )
            for layer in reversed(self._layers)
        }
        for layer_id, buffers in self._buffers.items():
            self.metrics.slots_in_use.watch(str(layer_id), source=partial(getattr, buffers, "in_use"))
            self.metrics.slots_abandoned.watch(str(layer_id), source=partial(getattr, buffers, "abandoned"))
        self._replica = replica
        self._max_abandoned = max_abandoned
        self._adopt(store, breaker or CircuitBreaker())

    def attach(self, store: RowSource, breaker: CircuitBreaker | None = None) -> None:
        """Go on with another store of the same tables: the owner published or exported again.

        Every buffer and every address stays, so that a captured graph stays valid; row sizes must be the same, row
        counts may differ.  No step may be begun.  The earlier store is the caller's to close.
        """
        self._check_open()
        if self._steps:
            raise _busy(f"{len(self._steps)} steps are begun", "drain() or cancel() them, then attach()")
        refuse_bad_layers(self._layers, store, self._policy)
        for layer in self._layers:
            before, now = (each.tables[layer.table].row_bytes for each in (self._store, store))
            if before != now:
                raise refused(
                    f"rows of {now} bytes in table {layer.table!r}, the buffers are made for {before}",
                    "make another prefetcher",
                    "7.2",
                )
        for buffers in self._buffers.values():
            buffers.forgive()
        self._adopt(store, breaker or CircuitBreaker())

    def _adopt(self, store: RowSource, breaker: CircuitBreaker) -> None:
        self._store = store
        self._expect = store.expect if isinstance(store, Expectant) else _nothing_to_do
        self.metrics.watch_region(store)
        self.metrics.watch_hot(store)
        self._limits = np.array([store.tables[layer.table].n_rows for layer in self._layers])
        self._health = PeerHealth(store, breaker, self._deadlines.probe, self._max_abandoned, self.metrics)
        self._gatherer = Gatherer(
            store, self._replica, self._policy, self._invalid, self._health, self.metrics, self._recheck
        )

    # --- one step -------------------------------------------------------------------------------------------------

    def begin(
        self,
        ids: Ids,
        n_tokens: int,
        padded_tokens: int | None = None,
        step: int | None = None,
        *,
        phase: Phase = "decode",
    ) -> None:
        """Take the row numbers of a step; the last place where an exception may leave the prefetcher before `drain`.

        `ids`: int32 or int64 ``[n_tokens, layers, columns]``, or one ``[n_tokens, columns]`` per layer; copied.
        `padded_tokens`: how many tokens `consume` returns; those behind `n_tokens` are zero bytes and never read.
        `step`: a number for the report.  `phase` chooses the deadline.

        Waits for no gather.  A raise leaves nothing pending: ObmmArgumentError for shapes and for an id outside its
        table, MappingBusyError when `depth` steps are not drained, PeerFailedError or StaleHandleError when the peer is
        known to be unwell or publishing and the policy has nothing in its place.
        """
        self._check_open()
        if phase not in get_args(Phase):
            raise refused(f"phase={phase!r}", f"use one of {get_args(Phase)}", "11.3")
        n_tokens = whole("PREFETCH", "n_tokens", n_tokens)
        padded = n_tokens if padded_tokens is None else whole("PREFETCH", "padded_tokens", padded_tokens)
        if not 0 <= n_tokens <= padded <= self._max_tokens:
            raise refused(
                f"n_tokens={n_tokens}, padded_tokens={padded}, max_tokens={self._max_tokens}",
                "make the prefetcher with the largest padded batch",
                "7.2",
            )
        if len(self._steps) == self._depth:
            raise _busy(
                f"{self._depth} steps are begun and not drained", "drain() or cancel() first, or make it deeper"
            )
        self._expect()
        per_layer = step_ids.per_layer(ids, n_tokens, self._layers)
        if self._invalid == "error" and n_tokens:
            self._check_bounds(ids, per_layer)
        for buffers in self._buffers.values():
            buffers.reclaim()
        generation, blind = self._admit()
        if blind is not None and not (self._policy.local or self._policy.zero):
            self.metrics.steps.add(phase, "refused")
            raise blind
        limit: float = getattr(self._deadlines, phase)
        flights: dict[int, Flight] = {}
        try:
            for layer, layer_ids in zip(self._layers, per_layer, strict=True):
                buffers = self._buffers[layer.layer_id]
                slot = buffers.acquire(oldest=not self._steps)
                in_spare = slot is None
                if in_spare:
                    slot = buffers.acquire_spare(oldest=not self._steps)
                flight = Flight(
                    layer, buffers, slot, in_spare, n_tokens, padded, limit, generation, blind, not self._steps
                )
                flights[layer.layer_id] = flight
                flight.take_ids(layer_ids)
        except BaseException:  # an interrupt
            for flight in flights.values():
                flight.let_go()
            raise
        number = self._begun if step is None else step
        self._begun += 1
        self._steps.append(FlightStep(number, phase, n_tokens, generation, flights))
        self._oldest = self._steps[0].flights

    def start(self) -> None:
        """Queue the gathers of all layers, first layer first, in one call; returns at once."""
        self._check_open()
        if not self._steps or self._steps[-1].started:
            raise refused("start() without a newly begun step", "begin() a step, then start() it once", "7.1")
        step = self._steps[-1]
        step.started = True
        # A layer that was consumed before has its rows, and somebody may be reading them.
        self._gatherer.submit(f for f in step.flights.values() if f.rows is None and f.blind is None and not f.in_spare)

    def consume(self, layer: int, stream: Any = None) -> Rows:
        """The rows of `layer` for the oldest step; waits for this layer only, and not past its deadline.

        `stream`: with a device, the stream that will read the rows.  Never raises for a remote fault.
        """
        began = _clock()
        if not self._open:
            self._check_open()
        flight = self._oldest.get(layer)
        if flight is None:
            return self._nothing(layer, stream)
        rows = flight.rows
        if rows is not None:
            return rows
        # Rows that are there are what a step waits for if anything: what can be counted later is.
        ticket, rows = flight.ticket, flight.promised
        if (
            rows is not None
            and ticket is not None
            and ticket.ready(flight.generation)
            and (self._readers is None or self._readers.joined(flight, stream))
        ):
            flight.settled = False
        else:
            self._gatherer.settle(self._oldest.values())
            rows = self._gatherer.rows(flight, stream)
            if self._readers is not None:
                self._readers.note(stream)
        flight.rows = rows
        flight.blocked = _clock() - began
        return rows

    def poll(self, layer: int) -> bool:
        """Whether `consume` of this layer would not wait; if its rows are good, their copy to the device is on its way."""
        self._check_open()
        buffers = self._buffers_of(layer)
        if not self._steps:
            return True
        flight = self._steps[0].flights[layer]
        if not flight.ready:
            if self._steps[0].started:
                self._gatherer.catch_up(flight)  # or a loop around poll would never end
            return False
        # Only rows that will be consumed as they are: what failed is replaced in its slot first.
        if (
            flight.ticket is not None
            and flight.slot is not None
            and flight.rows is None
            and flight.ticket.ready(flight.generation)
        ):
            buffers.stage(flight.slot, flight.padded)
        return True

    def cancel(self, reason: str = "aborted step") -> None:
        """Forget the newest step, for `reason`: rejected drafts, an aborted request.  No step is not an error."""
        self._check_open()
        if self._steps:
            step = self._steps.pop()
            self._oldest = self._steps[0].flights if self._steps else {}
            self._finish(step, reason)
            self.metrics.steps.add(step.phase, "cancelled")

    def drain(self) -> StepReport | None:
        """End the oldest step: its buffers may be overwritten.  None when no step was begun.

        Raises the step's first error under the policy "raise": publish none of its tokens.  Takes part in no
        collective and waits for nothing.
        """
        self._check_open()
        if not self._steps:
            return None
        step = self._steps.popleft()
        self._oldest = self._steps[0].flights if self._steps else {}
        unused = self._finish(step, "not consumed")
        if self._readers is not None:
            self._readers.end_step(self._oldest.values())
        flights = step.flights.values()
        error = next((flight.error for flight in flights if flight.error is not None), None)
        self.metrics.steps.add(step.phase, "ok" if error is None else "failed")
        if error is not None:
            raise error
        return StepReport(
            step=step.number,
            phase=step.phase,
            n_tokens=step.n_tokens,
            generation=step.generation,
            statuses={f.layer.layer_id: f.rows.status for f in flights if f.rows is not None},
            blocked={f.layer.layer_id: f.blocked for f in flights},
            gather={f.layer.layer_id: f.gather for f in flights},
            unused=unused,
        )

    def rows_u8(self, layer: int) -> Any:
        """What `consume` hands out, whole: uint8 ``[max_tokens, columns, row_bytes]``, for graph capture.

        The address stays for the prefetcher's life.  Without a device there is one exception: while a gather that was
        given up may still write there, `consume` hands out another slot.
        """
        return self._buffers_of(layer).home

    def close(self, force: bool = False, timeout: float = 1.0) -> None:
        """Cancel what is pending and wait up to `timeout` seconds for gathers that still run.  Idempotent.

        MappingBusyError when some still run, unless `force`: their tickets keep the memory they write to.  The store
        stays open; it is not the prefetcher's.
        """
        if not self._open:
            return
        while self._steps:
            self.cancel("closed")
        deadline = time.monotonic() + timeout
        running = 0
        for buffers in self._buffers.values():
            running += buffers.wait_for_gathers(deadline)
        if running and not force:
            raise _busy(f"{running} gathers still run after {timeout} s", "close() again later, or close(force=True)")
        self._open = False

    def _leave(self, failed: bool) -> None:
        self.close(force=failed)

    def __repr__(self) -> str:
        if not self._open:
            return "<EngramPrefetcher closed>"
        return (
            f"<EngramPrefetcher {len(self._layers)} layers, {self._max_tokens} tokens, depth {self._depth}, "
            f"policy {self._policy}, {self._health}, over {self._store!r}>"
        )

    # --- inside ---------------------------------------------------------------------------------------------------

    def _buffers_of(self, layer: int) -> LayerBuffers:
        try:
            return self._buffers[layer]
        except KeyError:
            raise self._no_layer(layer) from None

    def _nothing(self, layer: int, stream: Any) -> Rows:
        """Zeros for a profiling or warm-up forward."""
        buffers = self._buffers_of(layer)
        if self._steps:
            raise self._no_layer(layer)
        buffer, slot = buffers.deliver_zeros(self._max_tokens, stream)
        if slot is not None:
            buffers.release(slot)
        return Rows(buffer, 0, RowsStatus.EMPTY)

    def _no_layer(self, layer: int) -> ObmmError:
        return refused(f"layer {layer}", f"use one of {sorted(self._buffers)}", "13.4")

    def _check_bounds(self, ids: Any, per_layer: Sequence[NDArray[Any]]) -> None:
        outside = step_ids.first_outside(ids, per_layer, self._layers, self._limits)
        if outside is not None:
            self.metrics.errors.add("bounds")
            raise refused(
                outside,
                'hash with the table\'s manifest; invalid="zero" makes ids without a row zeros',
                "10, condition 13",
            )

    def _admit(self) -> tuple[int, ObmmError | None]:
        """The content version to gather from, or why there is none."""
        blind = self._health.why_not(sum(buffers.blamed for buffers in self._buffers.values()))
        if blind is not None:
            return 0, blind
        try:
            generation = self._store.generation()
        except Exception as error:
            fault = as_obmm_error(error)
            self._health.failed(fault)
            return 0, fault
        self.metrics.generation.set(self._store.region, to=generation)
        if generation % 2:
            return 0, StaleHandleError(
                errno.ESTALE,
                f"PREFETCH: the tables are being published, generation {generation} is odd [Engram specification 5.3]; "
                "fix: begin the step again",
                operation="PREFETCH",
                reason="state",
            )
        return generation, None

    def _finish(self, step: FlightStep, reason: str) -> tuple[int, ...]:
        unused = tuple(
            layer_id for layer_id, flight in step.flights.items() if flight.rows is None and flight.ticket is not None
        )
        if unused:
            self.metrics.unused.add(reason, by=len(unused))
        self._gatherer.settle(step.flights.values())
        for flight in step.flights.values():
            if flight.rows is not None:
                self._gatherer.account(flight)
            flight.let_go()
        return unused


def _busy(problem: str, fix: str) -> MappingBusyError:
    return MappingBusyError(errno.EBUSY, f"PREFETCH: {problem}; fix: {fix}", operation="PREFETCH")


def _nothing_to_do() -> None:
    """For sources that are always ready."""
