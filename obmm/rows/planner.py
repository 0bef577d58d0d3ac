# SPDX-License-Identifier: Apache-2.0
"""Measures a mapping and chooses how its rows are gathered."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from obmm import guard
from obmm._native import ffi, lib
from obmm.errors import ObmmError
from obmm.rows.bound import BoundTable
from obmm.rows.engine import GatherEngine

_CHASES, _LOADS = 8, 512
_STEP_ROWS = 1536
_BATCH_ROWS = 16384
_BATCH_BYTES = 16 << 20
_NEVER = (1 << 32) - 1
_GAIN = 0.8  # what a way must need of the default's time before it replaces it: less could be the neighbours' noise
_WAKE_NS = 12_000.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What was measured of one table, and what follows from it.

    Times in nanoseconds.  `by_threads`: ns per row of a large batch with so many threads.  `asynchronous_rows`: from so
    many rows on a hand-over to the background costs less than a tenth of the gather.  `kept`, `not_kept`: ns per row that
    is taken from the hot-row cache, and that is looked for there in vain.
    """

    table: str
    row_bytes: int
    backend: str
    path: str
    isa: str
    huge: bool
    latency: float = 0.0
    in_order: float = 0.0
    without_prefetch: float = 0.0
    batch_in_order: float = 0.0
    batch_ordered: float = 0.0
    by_threads: tuple[tuple[int, float], ...] = ()
    measured: bool = False
    prefetch_bytes: int = 0
    stream_bytes: int = 0
    order_rows: int = 0
    dedupe: bool = False
    threads: int = 1
    thread_rows: int = 0
    asynchronous_rows: int = 0
    hot_rows: int = 0
    hot_bytes: int = 0
    kept: float = 0.0
    not_kept: float = 0.0

    @property
    def paying_hits(self) -> float | None:
        """The part of the rows that must be found in the hot-row cache before it pays; None: it never does here."""
        if not self.measured or not self.hot_rows or self.kept >= self.in_order:
            return None
        return max(0.0, (self.not_kept - self.in_order) / (self.not_kept - self.kept))

    def explain(self) -> str:
        """The choice and its numbers, as every benchmark result repeats them."""
        pages = "2 MiB or larger" if self.huge else "4 KiB"
        lines = [
            f"table {self.table}: rows of {self.row_bytes} B, {self.path}, pages of {pages}, kernels {self.isa}, "
            f"on {self.backend}"
        ]
        if self.measured:
            rates = ", ".join(f"{n} thread{'s' * (n > 1)} {ns:.1f}" for n, ns in self.by_threads)
            lines += [
                f"  measured{_caveat(self.backend)}: dependent load {self.latency:.0f} ns; ns per row: as given {self.in_order:.1f}, "
                f"without prefetch {self.without_prefetch:.1f}; large batch as given {self.batch_in_order:.1f}, in address "
                f"order {self.batch_ordered:.1f}; by threads: {rates}"
            ]
        else:
            lines.append("  not measured: defaults for this row size")
        ahead = f"{self.prefetch_bytes >> 10} KiB ahead" if self.prefetch_bytes else "none"
        order = "never" if self.order_rows == _NEVER else f"from {self.order_rows} rows"
        pool = f"up to {self.threads} threads, one more for every {self.thread_rows} rows"
        if self.thread_rows == _NEVER:
            pool = "on the caller's thread"
        lines.append(
            f"  chosen: prefetch {ahead}; address order {order}{' with repeats read once' if self.dedupe else ''}; "
            f"streaming stores from {self.stream_bytes >> 20} MiB of result; {pool}; "
            f"background from {self.asynchronous_rows} rows"
        )
        return "\n".join((*lines, self._explain_hot()))

    def _explain_hot(self) -> str:
        if not self.hot_rows:
            return "  hot-row cache: none, hot_rows= of attach did not ask for one"
        size = f"  hot-row cache: asked for, {self.hot_rows} rows in {self.hot_bytes / 1e6:.1f} MB; "
        if not self.measured:
            return size + "not measured, pays where a read costs more than a copy"
        costs = f"ns per row: kept {self.kept:.1f}, not kept {self.not_kept:.1f}, without it {self.in_order:.1f}: "
        pays = self.paying_hits
        return size + costs + ("does not pay on this memory" if pays is None else f"pays from {pays:.0%} hits on")


def _caveat(backend: str) -> str:
    """What has to stand beside times of an emulated fabric's memory."""
    return " (emulator: local memory, says nothing about hardware)" if "emulator:" in backend else ""


def default_plan(bound: BoundTable) -> Plan:
    """What the row size alone suggests."""
    return _of_tuning(
        Plan(
            table=repr(bound.spec.table_id),
            row_bytes=bound.spec.row_bytes,
            backend=bound.memory.backend,
            path=bound.memory.path,
            isa=ffi.string(lib.obmm_gather_isa()).decode(),
            huge=bound.huge,
            hot_rows=bound.hot.rows if bound.hot is not None else 0,
            hot_bytes=bound.hot.nbytes if bound.hot is not None else 0,
        ),
        bound,
    )


def measure(bound: BoundTable, engine: GatherEngine) -> Plan:
    """Measure the table through `engine` and set its tuning: some milliseconds, more on a slow fabric.

    RemoteMemoryError when the memory faults meanwhile.
    """
    meter = _Meter(bound, engine)
    tuning = bound.struct.tuning
    tuning_was = _Tuning(tuning.prefetch_bytes, tuning.order_rows, tuning.order_row)
    bound.struct.totals = ffi.NULL
    try:
        latency = meter.latency()
        with_prefetch, without = meter.compare(min(_STEP_ROWS, meter.most), _prefetch(bound, tuning_was.prefetch))
        tuning.prefetch_bytes = 0 if without < _GAIN * with_prefetch else tuning_was.prefetch
        batch = min(_BATCH_ROWS, meter.most)
        in_order, ordered = meter.compare(batch, _address_order(bound))
        _choose_order(bound, tuning_was, in_order, ordered, batch)
        by_threads = meter.by_threads(batch)
        not_kept, kept = meter.hot() if bound.hot is not None else (0.0, 0.0)
    finally:
        bound.struct.totals = bound.totals
    single = by_threads[0][1]
    threads, best = min(by_threads, key=lambda pair: pair[1])
    if best > _GAIN * single:
        threads = 1
    if threads == 1:
        tuning.thread_rows = _NEVER
    else:
        # another thread pays when its share is worth several wake-ups
        tuning.thread_rows = max(64, min(_NEVER, int(4 * _WAKE_NS / single)))
    plan = replace(
        default_plan(bound),
        measured=True,
        latency=latency,
        in_order=with_prefetch,
        without_prefetch=without,
        batch_in_order=in_order,
        batch_ordered=ordered,
        by_threads=by_threads,
        kept=kept,
        not_kept=not_kept,
        threads=threads,
        asynchronous_rows=max(1, int(10 * _WAKE_NS / single)),
    )
    return _of_tuning(plan, bound)


def _prefetch(bound: BoundTable, size: int) -> Callable[[int], None]:
    def set_way(way: int) -> None:
        bound.struct.tuning.prefetch_bytes = 0 if way else size

    return set_way


def _address_order(bound: BoundTable) -> Callable[[int], None]:
    def set_way(way: int) -> None:
        tuning = bound.struct.tuning
        tuning.order_rows, tuning.order_row = (1, 0) if way else (_NEVER, 0)

    return set_way


@dataclass(frozen=True, slots=True)
class _Tuning:
    prefetch: int
    order_rows: int
    order_row: int


def _choose_order(bound: BoundTable, defaults: _Tuning, in_order: float, ordered: float, batch: int) -> None:
    tuning = bound.struct.tuning
    if bound.memory.nc:
        tuning.order_rows, tuning.order_row = defaults.order_rows, defaults.order_row
    elif batch < _BATCH_ROWS or batch * bound.spec.row_bytes < tuning.stream_bytes:
        # too small a table to tell: what the row size suggests
        tuning.order_rows, tuning.order_row = defaults.order_rows, defaults.order_row
    elif ordered < _GAIN * in_order:
        tuning.order_rows, tuning.order_row = defaults.order_rows, 0
    elif in_order < _GAIN * ordered:
        tuning.order_rows, tuning.order_row = _NEVER, 0
    else:
        tuning.order_rows, tuning.order_row = defaults.order_rows, defaults.order_row


def _of_tuning(plan: Plan, bound: BoundTable) -> Plan:
    tuning = bound.struct.tuning
    usable = tuning.order_row <= bound.spec.row_bytes
    return replace(
        plan,
        prefetch_bytes=tuning.prefetch_bytes,
        stream_bytes=tuning.stream_bytes,
        order_rows=tuning.order_rows if usable else _NEVER,
        dedupe=bound.memory.nc,
        thread_rows=tuning.thread_rows,
        asynchronous_rows=plan.asynchronous_rows or tuning.thread_rows,
    )


class _Meter:
    """Buffers for measuring one table, given back with it."""

    def __init__(self, bound: BoundTable, engine: GatherEngine) -> None:
        self._bound = bound
        self._engine = engine
        row = bound.spec.row_bytes
        self.most = max(1, min(_BATCH_ROWS, _BATCH_BYTES // row, 8 * bound.spec.n_rows))
        self._out = mmap.mmap(-1, max(self.most * row, mmap.PAGESIZE))
        self._target = ffi.from_buffer("uint8_t[]", self._out)
        ffi.memmove(self._target, bytes(len(self._target)), len(self._target))
        self._ids = np.empty(self.most, np.int64)
        self._numbers = ffi.from_buffer("int64_t[]", self._ids)
        self._seed = 0x9E3779B97F4A7C15

    def latency(self) -> float:
        spec = self._bound.spec
        found, fault = ffi.new("double *"), ffi.new("struct obmm_fault *")
        length = spec.end - spec.base_offset
        if length < 128:
            return 0.0
        best = float("inf")
        for _ in range(_CHASES):
            result = lib.obmm_probe_latency(self._bound.struct, length, _LOADS, self._next(), found, fault)
            if result:
                raise self._failed(result, fault)
            best = min(best, float(found[0]))
        return best

    def ns_per_row(self, rows: int, threads: int = 1, rounds: int = 3) -> float:
        found, outcome = ffi.new("double *"), ffi.new("struct obmm_outcome *")
        result = lib.obmm_probe_gather(
            self._engine.pointer,
            self._bound.struct,
            self._numbers,
            self._target,
            rows,
            rounds,
            threads,
            self._next(),
            found,
            outcome,
        )
        if result:
            raise self._failed(result, outcome.fault)
        return float(found[0])

    def compare(self, rows: int, set_way: Callable[[int], None]) -> tuple[float, float]:
        """ns per row in way 0 and in way 1, turn and turn about so that the neighbours' noise meets both."""
        best = [float("inf")] * 2
        for _ in range(4):
            for way in (0, 1):
                set_way(way)
                best[way] = min(best[way], self.ns_per_row(rows, rounds=1))
        return best[0], best[1]

    def by_threads(self, rows: int) -> tuple[tuple[int, float], ...]:
        counts, n = [], 1
        while n < self._engine.threads + 1:
            counts.append(n)
            n *= 2
        counts.append(self._engine.threads + 1)
        return tuple((n, self.ns_per_row(rows, n)) for n in counts)

    def hot(self) -> tuple[float, float]:
        """ns per row of a batch that is new to the hot-row cache, and of the same again."""
        bound = self._bound
        request, outcome = ffi.new("struct obmm_request *", bound.template[0]), ffi.new("struct obmm_outcome *")
        rows = min(self.most, _STEP_ROWS, int(lib.obmm_hot_rows(request.hot)) // 2)
        request.ids, request.id_bytes, request.count, request.out = self._numbers, 8, rows, self._target
        best = [float("inf")] * 2
        for _ in range(4):
            self._ids[:rows] = np.random.default_rng(self._next()).integers(0, bound.spec.n_rows, rows)
            for way in (0, 1):
                result = lib.obmm_engine_gather(self._engine.pointer, request, 1, outcome)
                if result < 0:
                    raise self._failed(int(result), outcome.fault)
                best[way] = min(best[way], outcome.nanoseconds / rows)
        return best[0], best[1]

    def _next(self) -> int:
        self._seed = (self._seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return self._seed

    def _failed(self, result: int, fault: object) -> ObmmError:
        if result == -errno.EFAULT:
            kind = guard.fault_kind(fault.signo)  # type: ignore[attr-defined]
            return self._bound.memory.fault("measuring", fault.address, kind, fault.code)  # type: ignore[attr-defined]
        return ObmmError(-result, f"GATHER: measuring table {self._bound.spec.table_id!r} failed", operation="GATHER")
