# SPDX-License-Identifier: Apache-2.0
"""Measures a mapping and chooses how its rows are gathered."""

from __future__ import annotations

import errno
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from obmm._native import ffi, lib
from obmm.errors import ObmmError
from obmm.mapping import guard
from obmm.mapping.native_rows import aim
from obmm.rows.bound import NEVER, BoundTable
from obmm.rows.engine import GatherEngine

_CHASES, _LOADS = 8, 512
_STEP_ROWS = 1536
_TEAM_ROWS = (384, 1536, 6144)  # batches for which the number of threads is measured, beside the large one
_BATCH_ROWS = 16384
_BATCH_BYTES = 16 << 20
_ALONE_BYTES = 512 << 10  # a smaller result stays in any core's own caches
_LEVELS = 14  # more than the numbers of threads that are told apart do no harm
_GAIN = 0.8  # what a way must need of the default's time before it replaces it: less could be the neighbours' noise
_SMALL_GAIN = 0.95  # ... and where the ways differ by a number only
_AHEAD = (8 << 10, 16 << 10, 64 << 10)  # bytes between a prefetch and its copy that are tried beside the default
_WAKE_NS = 12_000.0


Rates = tuple[tuple[int, float], ...]
"""Pairs of a number of threads and what a row takes with them, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was measured of one table, and what follows from it.

    Times in nanoseconds.  `by_threads`: ns per row of a large batch with so many threads.  `team`: for batches of so many
    rows, the same, with workers that were told to be ready.  Numbers of threads go on being tried while rows are gathered:
    what is written here is where that begins.  `asynchronous_rows`: from so many rows on a hand-over to the background
    costs less than a tenth of the gather.  `kept`, `not_kept`: ns per row that
    is taken from the hot-row cache, and that is looked for there in vain.

    Made by `RowStore.attach`, per `table` of `row_bytes`; `backend` and `path` say which memory, `isa` which instructions,
    `huge` whether its pages are.  `RowStore.plans` gives them.
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
    by_threads: Rates = ()
    team: tuple[tuple[int, Rates], ...] = ()
    measured: bool = False
    prefetch_bytes: int = 0
    stream_bytes: int = 0
    stream_alone: int = 0
    order_rows: int = 0
    dedupe: bool = False
    threads: int = 1
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
        order = "never" if self.order_rows == NEVER else f"from {self.order_rows} rows"
        pool = "threads as the row size suggests, then as it goes"
        if self.measured:
            best = ", ".join(
                f"{_best(rates)} for {rows}" for rows, rates in (*self.team, (_BATCH_ROWS, self.by_threads))
            )
            pool = f"threads to begin with: {best} rows"
        lines.append(
            f"  chosen: prefetch {ahead}; address order {order}{' with repeats read once' if self.dedupe else ''}; "
            f"streaming stores from {self.stream_bytes >> 20} MiB of result, {self.stream_alone >> 10} KiB by one thread; {pool}; "
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
    if "emulator:" in backend:
        return " (emulator: local memory, says nothing about hardware)"
    return " (stand-in: says nothing about hardware)" if "stand-in" in backend else ""


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
    if bound.fetched:
        return _of_lists(bound, meter)
    tuning = bound.struct.tuning
    tuning_was = _Tuning(tuning.prefetch_bytes, tuning.order_rows, tuning.order_row)
    bound.struct.totals = ffi.NULL
    try:
        latency = meter.latency()
        with_prefetch, without = _choose_prefetch(bound, meter, tuning_was.prefetch)
        batch = min(_BATCH_ROWS, meter.most)
        in_order, ordered = meter.compare(batch, _address_order(bound), 2)
        _choose_order(bound, tuning_was, in_order, ordered, batch)
        _choose_stores(bound, meter, batch)
        _choose_stores_alone(bound, meter)
        tuning.row_ns = max(1, int(with_prefetch))
        team = tuple((rows, meter.by_threads(rows)) for rows in _TEAM_ROWS if rows <= meter.most)
        by_threads = meter.by_threads(batch)
        not_kept, kept = meter.hot() if bound.hot is not None else (0.0, 0.0)
    finally:
        bound.struct.totals = bound.totals
    single = by_threads[0][1]
    plan = replace(
        default_plan(bound),
        measured=True,
        latency=latency,
        in_order=with_prefetch,
        without_prefetch=without,
        batch_in_order=in_order,
        batch_ordered=ordered,
        by_threads=by_threads,
        team=team,
        kept=kept,
        not_kept=not_kept,
        threads=_best(by_threads),
        asynchronous_rows=max(1, int(10 * _WAKE_NS / single)),
    )
    return _of_tuning(plan, bound)


def _of_lists(bound: BoundTable, meter: _Meter) -> Plan:
    """Rows that are fetched by requests: only what a list costs, there is nothing to choose."""
    bound.struct.totals = ffi.NULL
    try:
        one = meter.ns_per_row(1)
        per_row = meter.ns_per_row(min(_STEP_ROWS, meter.most))
        batch = meter.ns_per_row(min(_BATCH_ROWS, meter.most))
    finally:
        bound.struct.totals = bound.totals
    plan = replace(
        default_plan(bound),
        measured=True,
        latency=one,
        in_order=per_row,
        without_prefetch=per_row,
        batch_in_order=batch,
        batch_ordered=batch,
        by_threads=((1, batch),),
        asynchronous_rows=max(1, int(10 * _WAKE_NS / per_row)),
    )
    return _of_tuning(plan, bound)


def _best(rates: Rates) -> int:
    """The number of threads, 1 unless more of them gain something."""
    return min(rates, key=lambda pair: pair[1] * (1.03 if pair[0] > 1 else 1.0))[0]


def _choose_prefetch(bound: BoundTable, meter: _Meter, default: int) -> tuple[float, float]:
    """How far ahead rows are asked for -> ns per row of a step with the choice, and without any."""
    sizes = tuple(dict.fromkeys((default, 0, *(_AHEAD if default else ()))))

    def set_way(way: int) -> None:
        bound.struct.tuning.prefetch_bytes = sizes[way]

    times = dict(zip(sizes, meter.compare(min(_STEP_ROWS, meter.most), set_way, len(sizes)), strict=True))
    best = min(sizes, key=times.__getitem__)
    if times[best] > _SMALL_GAIN * times[default]:
        best = default
    bound.struct.tuning.prefetch_bytes = best
    return times[best or default], times[0]


def _choose_stores(bound: BoundTable, meter: _Meter, batch: int) -> None:
    """Whether results of this size are better kept in the caches, which many cores have many of."""
    tuning, size = bound.struct.tuning, batch * bound.spec.row_bytes
    past_caches = tuning.stream_bytes
    if bound.memory.nc or size < past_caches:
        return

    def set_way(way: int) -> None:
        tuning.stream_bytes = 2 * size if way else past_caches

    past, through = meter.compare(batch, set_way, 2, meter.most_threads)
    tuning.stream_bytes = 2 * size if through < _GAIN * past else past_caches


def _choose_stores_alone(bound: BoundTable, meter: _Meter) -> None:
    """Whether one thread alone writes a step's rows past the caches: if both that and reading them once then are faster.

    Many threads have the caches of many cores, and write the same part of the result from step to step.
    """
    tuning, rows = bound.struct.tuning, min(_STEP_ROWS, meter.most)
    size = rows * bound.spec.row_bytes
    if bound.memory.nc or not _ALONE_BYTES <= size < tuning.stream_bytes:
        return
    times = [float("inf")] * 2
    for _ in range(6):
        for way, threshold in enumerate((NEVER, size)):
            tuning.stream_alone = threshold
            times[way] = min(times[way], meter.ns_per_row(rows, rounds=1) * rows + meter.ns_to_read(size))
    tuning.stream_alone = size if times[1] < _SMALL_GAIN * times[0] else NEVER


def _address_order(bound: BoundTable) -> Callable[[int], None]:
    def set_way(way: int) -> None:
        tuning = bound.struct.tuning
        tuning.order_rows, tuning.order_row = (1, 0) if way else (NEVER, 0)

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
    elif batch < min(_BATCH_ROWS, _BATCH_BYTES // bound.spec.row_bytes) or (
        batch * bound.spec.row_bytes < tuning.stream_bytes
    ):
        # too small a table to tell: what the row size suggests
        tuning.order_rows, tuning.order_row = defaults.order_rows, defaults.order_row
    elif ordered < _GAIN * in_order:
        tuning.order_rows, tuning.order_row = defaults.order_rows, 0
    elif in_order < _SMALL_GAIN * ordered:
        tuning.order_rows, tuning.order_row = NEVER, 0  # sorting that gains nothing is not done for its own sake
    else:
        tuning.order_rows, tuning.order_row = defaults.order_rows, defaults.order_row


def _of_tuning(plan: Plan, bound: BoundTable) -> Plan:
    tuning = bound.struct.tuning
    usable = tuning.order_row <= bound.spec.row_bytes
    return replace(
        plan,
        prefetch_bytes=tuning.prefetch_bytes,
        stream_bytes=tuning.stream_bytes,
        stream_alone=min(tuning.stream_alone, tuning.stream_bytes),
        order_rows=tuning.order_rows if usable else NEVER,
        dedupe=bound.memory.nc,
        asynchronous_rows=plan.asynchronous_rows or int(10 * _WAKE_NS / max(tuning.row_ns, 1)),
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

    def ns_to_read(self, size: int) -> float:
        """What it takes to read the result that was gathered last."""
        result = np.frombuffer(self._out, np.uint64, size // 8)
        began = time.perf_counter_ns()
        result.sum()
        return float(time.perf_counter_ns() - began)

    @property
    def most_threads(self) -> int:
        return self._engine.threads + 1

    def compare(self, rows: int, set_way: Callable[[int], None], ways: int, threads: int = 1) -> tuple[float, ...]:
        """ns per row in each way, turn and turn about so that the neighbours' noise meets all of them."""
        best = [float("inf")] * ways
        for _ in range(4):
            for way in range(ways):
                set_way(way)
                best[way] = min(best[way], self.ns_per_row(rows, threads, rounds=1))
        return tuple(best)

    def by_threads(self, rows: int) -> Rates:
        """ns per row with so many threads that are ready; the table's pace begins with it."""
        rates: list[tuple[int, float]] = []
        for n in dict.fromkeys(int(lib.obmm_pace_threads(level)) for level in range(_LEVELS)):
            if n > self.most_threads:
                break
            ns = self.ns_per_row(rows, n)
            lib.obmm_pace_learn(self._bound.pace, rows, True, n, int(ns * rows))
            rates.append((n, ns))
        lib.obmm_pace_begin(self._bound.pace, rows, True, _best(tuple(rates)))
        return tuple(rates)

    def hot(self) -> tuple[float, float]:
        """ns per row of a batch that is new to the hot-row cache, and of the same again."""
        bound = self._bound
        request, outcome = ffi.new("struct obmm_request *", bound.template[0]), ffi.new("struct obmm_outcome *")
        rows = min(self.most, _STEP_ROWS, int(lib.obmm_hot_rows(request.hot)) // 2)
        aim(request, self._numbers, 8, rows, self._target)
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
