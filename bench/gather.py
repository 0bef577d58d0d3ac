# SPDX-License-Identifier: Apache-2.0
"""Gathering rows against NumPy, torch, the naive loop and the limit of the machine, in one run.

    python -m bench.gather              every row size, 4 KiB and 2 MiB pages, one and two threads
    python -m bench.gather --scaling    one to sixteen threads
    python -m bench.gather --sweep      1e2 to 1e6 rows; 64 MiB to 8 GiB
    python -m bench.gather --step       a decode step: what starting costs, what stays blocked; call costs
    python -m bench.gather --hot        the hot-row cache: Zipf row numbers, with and without it
    python -m bench.gather --profile    where the time goes: inside and around the call, by thread, against bare loops
    python -m bench.gather --cores      all cores against torch with 1, 4 and all: back to back, after sleep, after work, with
                                        targets; hand-over, two ranks, a whole step (more options: python -m bench.cores)

Row numbers are uniform, new for every timed call and drawn before the clock runs.  All candidates write into the same
2 MiB-aligned buffer and take turns in random order; a figure is the median of the rounds, a ratio the median of the
rounds' ratios: only ratios mean anything on a machine that others use.  Every byte is checked after timing.  The memory
is this host's own (shared memory), not a fabric.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import cores, gather_profile, reference
from bench.zipf import Zipf
from obmm._native import ffi, lib
from obmm.bench import machine
from obmm.bench.shared_table import AlignedPages, SharedTable, describe_pages, torch_index_select
from obmm.bench.timing import percentiles
from obmm.rows import HOT_ROWS, GatherEngine

SIZES = (64, 128, 256, 512, 1024, 1364, 2048, 4096)
COUNTS = (128, 1536, 98304)
MOST_THREADS = 16
Record = dict[str, Any]

# times faster than take(out=, mode="clip"), 98304 rows: target and gate
TARGETS = {
    "4K": {64: (1.0, 0.9), 128: (1.0, 0.9), 256: (1.15, 0.9), 512: (1.1, 0.9), 1024: (1.4, 1.1)},
    "2M": {64: (1.2, 0.95), 128: (1.2, 0.95), 256: (1.1, 0.95), 512: (1.3, 0.95), 1024: (1.3, 1.1)},
}


class Arms:
    """The candidates for one table, row size and batch size, over common buffers."""

    def __init__(
        self, table: SharedTable, row_bytes: int, count: int, engine: GatherEngine, buffer: AlignedPages, plan: bool
    ) -> None:
        self._ref, self._library = reference.load()
        self.table, self.row_bytes, self.count = table, row_bytes, count
        self.store = table.store(row_bytes, engine, plan=plan)
        self.stride = self.store.tables["t"].row_stride
        self.packed = table.rows(row_bytes)
        self.n_rows = min(len(self.packed), self.store.tables["t"].n_rows)
        self.ids: NDArray[np.int64] = np.zeros(count, np.int64)
        self.out = buffer.array[: count * row_bytes].reshape(count, row_bytes)
        self._prepared = self.store.prepare("t", self.ids, self.out)
        self._source = self._ref.cast("uint8_t *", table.address)
        self._target = self._ref.from_buffer("uint8_t[]", self.out.data)
        self._numbers = self._ref.from_buffer("int64_t[]", self.ids.data)
        self._torch = torch_index_select()
        if self._torch:
            self._tensors = tuple(self._torch.from_numpy(a) for a in (self.packed, self.ids, self.out))
        self._random = np.random.default_rng(1)
        self.wrong = 0

    def calls(self, threads: tuple[int, ...]) -> dict[str, Callable[[], object]]:
        """Name -> the call to time."""
        calls: dict[str, Callable[[], object]] = {"naive": self._naive, "sequential": self._sequential}
        calls["take"] = lambda: np.take(self.packed, self.ids, axis=0, out=self.out, mode="clip")
        if self._torch:
            packed, ids, out = self._tensors
            calls["index_select"] = lambda: self._torch.index_select(packed, 0, ids, out=out)
        for n in threads:
            calls[f"gather x{n}"] = partial(self._prepared, n)
        return calls

    def fresh(self) -> None:
        """New row numbers, in place."""
        self.ids[:] = self._random.integers(0, self.n_rows, self.count)

    def check(self) -> None:
        """Count wrong rows in the output of the gather that ran last."""
        self.wrong += self.table.wrong_rows(self.ids, self.out, self.stride)

    def _naive(self) -> None:
        self._library.ref_gather(self._target, self._source, self._numbers, self.count, self.row_bytes, self.row_bytes)

    def _sequential(self) -> None:
        left, done = self.count * self.row_bytes, 0
        whole = self.table.nbytes // 64 * 64
        start = int(self.ids[0]) * self.row_bytes % max(whole - left, 1) // 64 * 64
        while left:
            part = min(left, whole - start)
            self._library.ref_sequential(self._target + done, self._source + start, part)
            left, done, start = left - part, done + part, 0


def measure(arms: Arms, threads: tuple[int, ...], rounds: int, *, cpu_time: bool = False) -> Record:
    """Rounds of all candidates in random order.

    `cpu_time`: the calling thread's CPU time in place of the wall clock, one thread only: other processes' turns on a
    crowded machine then do not count (what they do to caches and memory still does).
    """
    clock = time.thread_time_ns if cpu_time else time.perf_counter_ns
    if cpu_time:
        threads = (1,)
    calls = arms.calls(threads)
    repeat = max(1, 20_000 // (arms.count * max(arms.row_bytes // 64, 1)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            spent = 0
            for _ in range(repeat):
                arms.fresh()
                began = clock()
                calls[name]()
                spent += clock() - began
            times[name].append(spent / repeat / arms.count)
            if name.startswith("gather") and round_ in (0, rounds - 1):
                arms.check()
    over = {name: median(t / g for t, g in zip(times[name], times["gather x1"], strict=True)) for name in times}
    record: Record = {
        "pages": describe_pages(arms.table.huge),
        "clock": "thread" if cpu_time else "wall",
        "region_bytes": arms.table.nbytes,
        "row_bytes": arms.row_bytes,
        "rows": arms.count,
        "ns_per_row": {name: round(median(values), 2) for name, values in times.items()},
        "times_gather_x1": {name: round(ratio, 3) for name, ratio in over.items()},
        "share_of_sequential": round(over["sequential"], 3),
        "wrong_rows": arms.wrong,
        "plan": arms.store.explain(),
    }
    return record


def judged(record: Record) -> str:
    """How the record stands to the target against take, where there is one."""
    if record["rows"] != 98304:
        return ""
    target, gate = TARGETS[record["pages"]][min(record["row_bytes"], 1024)]
    ratio = record["times_gather_x1"]["take"]
    record["target"], record["gate"] = target, gate
    return f"target {target}: {'met' if ratio >= target else 'gate met' if ratio >= gate else 'MISSED'}"


def show(record: Record) -> None:
    ratios = " ".join(
        f"{name}={ratio:.2f}"
        for name, ratio in record["times_gather_x1"].items()
        if name not in ("gather x1", "sequential")
    )
    wrong = f"  {record['wrong_rows']} WRONG ROWS" if record["wrong_rows"] else ""
    print(
        f"{record['pages']} {record['region_bytes'] >> 20:6d} MiB {record['row_bytes']:5d} B {record['rows']:7d} rows "
        f"{record['ns_per_row']['gather x1']:8.1f} ns/row  {ratios}  share={record['share_of_sequential']:.2f}  "
        f"{judged(record)}{wrong}",
        flush=True,
    )


def sizes(arguments: argparse.Namespace, engine: GatherEngine) -> list[Record]:
    """The main table."""
    records = []
    for huge in (False, True):
        table = SharedTable(arguments.region, huge=huge)
        if huge and not table.huge:
            print("2 MiB pages were refused by this kernel (MADV_COLLAPSE, Linux 6.1): not measured")
            continue
        buffer = AlignedPages(max(arguments.counts) * max(arguments.sizes), huge=True)
        for count in arguments.counts:
            for row_bytes in arguments.sizes:
                arms = Arms(table, row_bytes, count, engine, buffer, plan=True)
                records.append(measure(arms, (1, 2), arguments.rounds, cpu_time=arguments.cpu_time))
                show(records[-1])
        buffer.close()
        table.close()
    return records


def scaling(arguments: argparse.Namespace, engine: GatherEngine) -> list[Record]:
    """One to sixteen threads, in one run."""
    most = min(engine.threads + 1, MOST_THREADS)
    threads = tuple(n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n <= most)
    records = []
    for huge in (False, True):
        table = SharedTable(arguments.region, huge=huge)
        if huge and not table.huge:
            print("2 MiB pages were refused by this kernel: not measured")
            continue
        buffer = AlignedPages(98304 * max(arguments.sizes), huge=True)
        for row_bytes in arguments.sizes:
            arms = Arms(table, row_bytes, 98304, engine, buffer, plan=False)
            record = measure(arms, threads, arguments.rounds)
            record["speedup"] = {str(n): round(1 / record["times_gather_x1"][f"gather x{n}"], 3) for n in threads}
            records.append(record)
            show(record)
            print("    speed-up: " + "  ".join(f"{n}: {s:.2f}" for n, s in record["speedup"].items()), flush=True)
        buffer.close()
        table.close()
    return records


def sweep(arguments: argparse.Namespace, engine: GatherEngine) -> list[Record]:
    """Rows per call at one region size; region sizes at one batch size."""
    records = []
    buffer = AlignedPages(1_000_000 * 1364, huge=True)
    for huge in (False, True):
        table = SharedTable(arguments.region, huge=huge)
        if table.huge == huge:
            for row_bytes in (64, 256, 1364):
                for count in (100, 1_000, 10_000, 100_000, 1_000_000):
                    records.append(measure(Arms(table, row_bytes, count, engine, buffer, True), (1,), arguments.rounds))
                    show(records[-1])
        table.close()
        size = 64 << 20
        while size <= arguments.largest:
            table = SharedTable(size, huge=huge)
            if table.huge == huge:
                for row_bytes in (64, 256, 1364):
                    arms = Arms(table, row_bytes, 98304, engine, buffer, True)
                    records.append(measure(arms, (1,), arguments.rounds))
                    show(records[-1])
            table.close()
            size *= 2
    buffer.close()
    return records


def step(arguments: argparse.Namespace, engine: GatherEngine) -> list[Record]:
    """Twelve tables of 128 rows of 1,364 bytes with 200 microseconds of work between start and need; call costs."""
    table = SharedTable(arguments.region, huge=True)
    store = table.store(1364, engine, plan=True)
    rng = np.random.default_rng(2)
    out = np.zeros((12, 128, 1364), np.uint8)
    ids = np.zeros((12, 128), np.int64)
    gathers = [("t", ids[i], out[i]) for i in range(12)]
    prepared = store.prepare_many(gathers)
    started, blocked, alone = [], [], []
    for n in range(max(400, arguments.rounds * 40)):
        ids[:] = rng.integers(0, store.tables["t"].n_rows, ids.shape)
        if n % 4 == 3:
            began = time.perf_counter()
            for gather in gathers:
                store.gather_into(*gather)
            alone.append(time.perf_counter() - began)
            continue
        began = time.perf_counter()
        tickets = prepared.submit()
        then = time.perf_counter()
        while time.perf_counter() < then + 200e-6:
            pass
        needed = time.perf_counter()
        for ticket in tickets:
            ticket.result()
        blocked.append(time.perf_counter() - needed)
        started.append(then - began)
    wrong = table.wrong_rows(ids.reshape(-1), out.reshape(-1, 1364), store.tables["t"].row_stride)
    micro = {
        name: {f"p{p}": round(value * 1e6, 1) for p, value in zip((50, 99), percentiles(values, 50, 99), strict=True)}
        for name, values in (("start", started), ("blocked", blocked), ("synchronous", alone))
    }
    record: Record = {"step": "12 x 128 rows of 1364 B", "us": micro, "wrong_rows": wrong, "plan": store.explain()}
    print(f"step of 12 x 128 rows of 1,364 B, 200 us of work between (us): {json.dumps(micro)}")
    return [record, call_costs(store)]


def call_costs(store: Any) -> Record:
    """Nanoseconds of calls that gather nothing, against a bare C call."""
    ref, library = reference.load()
    ids, out = np.empty(0, np.int64), np.empty(0, np.uint8)
    prepared = store.prepare("t", ids, out)
    calls: dict[str, Callable[[], object]] = {
        "prepared": prepared,
        "gather_into": lambda: store.gather_into("t", ids, out),
        "empty function through cffi": lib.obmm_fence_store,
    }
    n = 20_000
    costs = dict.fromkeys((*calls, "bare C"), 1e99)
    numbers, target, null = ref.new("int64_t[]", 1_000_000), ref.new("uint8_t[]", 64), ref.NULL
    for _ in range(15):
        for name, call in calls.items():
            began = time.thread_time_ns()
            for _ in range(n):
                call()
            costs[name] = min(costs[name], (time.thread_time_ns() - began) / n)
        began = time.thread_time_ns()
        library.ref_reads(null, target, target, numbers, 1_000_000, 0)
        costs["bare C"] = min(costs["bare C"], (time.thread_time_ns() - began) / 1e6)
    record: Record = {"calls_ns": {name: round(ns, 1) for name, ns in costs.items()}}
    record["times_bare_c"] = {name: round(ns / costs["bare C"], 1) for name, ns in costs.items()}
    print(f"a call that gathers nothing (ns): {json.dumps(record['calls_ns'])}; x bare C: {record['times_bare_c']}")
    return record


_SLOW_READ = (
    1270.0  # ns for a row of five lines over a non-cacheable import: Engram specification 9.1, not of this machine
)


def hot(arguments: argparse.Namespace, engine: GatherEngine) -> list[Record]:
    """64 tokens x 24 rows of 264 bytes, with the usual cache and without one, turn and turn about on the same ids."""
    rows, row_bytes = 1536, 264
    table = SharedTable(arguments.region, huge=False, header=True)
    plain = table.store(row_bytes, engine, plan=True)
    cached = table.store(row_bytes, engine, plan=True, hot_rows=HOT_ROWS)
    spec, kept = cached.tables["t"], cached.hot["t"]
    print(cached.explain())
    ids, out = np.zeros(rows, np.int64), np.zeros((rows, row_bytes), np.uint8)
    calls = {"without": plain.prepare("t", ids, out), "with": cached.prepare("t", ids, out)}
    records = []
    for exponent in (0.0, 0.8, 1.0, 1.2):
        draw = Zipf(spec.n_rows, exponent, seed=3)
        for _ in range(300):  # until the cache holds what it will hold
            ids[:] = draw(rows)
            calls["with"]()
        before, wrong = (kept.hits, kept.misses), 0
        times: dict[str, list[float]] = {name: [] for name in calls}
        for round_ in range(max(100, arguments.rounds * 20)):
            ids[:] = draw(rows)
            for name in random.sample(list(calls), len(calls)):
                out[:] = 0
                began = time.perf_counter_ns()
                calls[name](1)
                times[name].append((time.perf_counter_ns() - began) / rows)
                if round_ % 50 == 0:
                    wrong += table.wrong_rows(ids, out, spec.row_stride)
        hits, misses = kept.hits - before[0], kept.misses - before[1]
        ratio = median(one / other for one, other in zip(times["without"], times["with"], strict=True))
        # what was measured, with every row that was read from the table costing what it would there
        cost = {name: median(values) for name, values in times.items()}
        slow = cost["with"] + misses / (hits + misses) * (_SLOW_READ - cost["without"])
        record: Record = {
            "hot": f"Zipf exponent {exponent}",
            "hit_ratio": round(hits / (hits + misses), 3),
            "ns_per_row": {name: round(ns, 1) for name, ns in cost.items()},
            "without_over_with": round(ratio, 2),
            "calculated_for_reads_of_1270_ns": round(_SLOW_READ / slow, 2),
            "wrong_rows": wrong,
            "plan": cached.explain(),
        }
        records.append(record)
        print(
            f"{record['hot']}: {record['hit_ratio']:.1%} hits; ns per row {json.dumps(record['ns_per_row'])}, without / with "
            f"{ratio:.2f}; ordinary memory of this host, no fabric; calculated, not measured, for reads of {_SLOW_READ:.0f} ns: "
            f"{_SLOW_READ / slow:.2f}"
        )
    return records


MODES = {"sizes": sizes, "scaling": scaling, "sweep": sweep, "step": step, "hot": hot}


def main() -> int:
    if "--cores" in sys.argv[1:]:
        return cores.main([argument for argument in sys.argv[1:] if argument != "--cores"])
    if "--profile" in sys.argv[1:]:
        return gather_profile.main([argument for argument in sys.argv[1:] if argument != "--profile"])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for mode in ("scaling", "sweep", "step", "hot"):
        parser.add_argument(f"--{mode}", dest="mode", action="store_const", const=mode, default="sizes")
    parser.add_argument("--json", type=Path, help="write all records there")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--region", type=int, default=2048, metavar="MIB", help="region size (default 2048)")
    parser.add_argument("--largest", type=int, default=8192, metavar="MIB", help="largest region of --sweep")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="BYTES")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), metavar="ROWS")
    parser.add_argument("--cpu-time", action="store_true", help="main table: CPU time of one thread, no wall clock")
    parser.add_argument("--threads", type=int, help="workers of the engine (default: CPUs - 1, at least 1)")
    arguments = parser.parse_args()
    arguments.region <<= 20
    arguments.largest <<= 20
    with_engine = GatherEngine(arguments.threads)
    result: Record = {
        "benchmark": "gather",
        "mode": arguments.mode,
        "machine": machine.describe(),
        "engine": repr(with_engine),
        "kernels": ffi.string(lib.obmm_gather_isa()).decode(),
        "memory": "this host's shared memory, no fabric",
    }
    print(f"{result['machine']}  {with_engine}")
    result["records"] = MODES[arguments.mode](arguments, with_engine)
    result["machine_after"] = machine.describe()
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    wrong = sum(record.get("wrong_rows", 0) for record in result["records"])
    if wrong:
        print(f"{wrong} rows were wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
