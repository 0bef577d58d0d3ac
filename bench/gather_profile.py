# SPDX-License-Identifier: Apache-2.0
"""Where the time of a gather goes, measured, beside what torch and a bare loop take for the same rows.

    python -m bench.gather --profile                  all parts: about two minutes on 16 cores
    python -m bench.gather --profile --only calls     one part: threads, limit, kernels, waiting, calls, step

*calls*: of each call, what lies inside the native call, what Python adds around it, how many threads took part, and the
same call of torch with what its dispatch alone takes (one row); back to back, after 5 ms of sleep, and right after an OpenMP
team whose threads still spin, there also with our workers as ordinary threads.  *threads*: told, woke, came, last row, done,
for each worker.  *limit*: the same rows by an OpenMP team in C that is awake, with nothing around them, from memory and from
the caches; that team without work; what taking a piece of work costs.  *kernels*: one thread, our ways and the bare loop's,
with parts left out, and the processor's counters where they may be read.  *waiting*: CPU time of workers that wait.  *step*: a
prefetcher's step beside a model's work on all CPUs.

Medians, of this host's own memory, no fabric.  Each part runs in a process of its own: two teams that spin ruin each other.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import cores, cores_parts, cores_timeline, reference
from bench.counters import Counters
from obmm._native import ffi
from obmm.bench import machine
from obmm.bench.shared_table import AlignedPages, SharedTable, torch_index_select
from obmm.rows import GatherEngine

Record = dict[str, Any]
CASES = tuple((size, rows) for size in (264, 1360) for rows in (384, 1536, 6144))
SETTLE = 30e-3
NEVER = (1 << 32) - 1


def us(values: list[float]) -> float:
    return round(median(values), 1)


# --- whole calls ------------------------------------------------------------------------------------------------------


class Arm:
    """One way to gather: what each call took (microseconds), inside the native call, and on how many threads."""

    def __init__(self, name: str, call: Callable[[], object], outcome: Any = None, threads: int = 0) -> None:
        self.name, self.call, self.outcome, self.threads = name, call, outcome, threads
        self.whole_result = True
        self.whole: list[float] = []
        self.inside: list[float] = []
        self.took: list[int] = []

    def timed(self, keep: bool) -> None:
        began = time.perf_counter()
        self.call()
        took = time.perf_counter() - began
        if keep:
            self.whole.append(took * 1e6)
            if self.outcome is not None:
                self.inside.append(self.outcome[0].nanoseconds / 1e3)
                self.took.append(self.outcome[0].threads)

    def record(self) -> Record:
        found: Record = {"whole": us(self.whole)}
        if self.inside:
            found["inside"] = us(self.inside)
            found["around"] = us([whole - inside for whole, inside in zip(self.whole, self.inside, strict=True)])
            found["threads"] = sorted({n: self.took.count(n) for n in self.took}.items(), key=lambda pair: -pair[1])[:4]
        return found


def block(case: cores.Case, arm: Arm, pattern: str, calls: int, torch: Any) -> None:
    fresh = case.random.integers(0, case.n_rows, (calls + 3, case.count))
    if arm.threads:
        torch.set_num_threads(arm.threads)
    time.sleep(SETTLE)
    for number, ids in enumerate(fresh):
        if pattern == "after sleep":
            time.sleep(5e-3)
        elif pattern == "after a team":
            cores_parts.busy_team()
        np.copyto(case.ids, ids)
        if pattern != "back to back" and arm.outcome is not None:
            case.engine.expect(300e-6)
            cores.busy(200e-6)
        arm.timed(number >= 3)
    if arm.whole_result:
        case.wrong += case.table.wrong_rows(case.ids[:4096], case.out[:4096], case.stride)


def calls(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """Whole calls, inside and around."""
    torch, most = torch_index_select(), engine.threads + 1
    table = SharedTable(arguments.region << 20, huge=True)
    out = AlignedPages(98304 * 1360 if arguments.large else 6144 * 1360, huge=True)
    out.array[:] = 0
    for row_bytes, count in (*CASES, *(((264, 98304), (1360, 98304)) if arguments.large else ())):
        case = cores.Case(table, row_bytes, count, engine, out)
        outcome = inspect.getclosurevars(case.prepared).nonlocals["requests"].outcomes
        patterns = ("back to back",) if count > 6144 else arguments.patterns
        for pattern in patterns:
            arms = [Arm("default", case.prepared, outcome)]
            for n in {"back to back": (most // 2, most), "after sleep": (most,)}.get(pattern, ()):
                arms.append(Arm(f"x{n}", partial(case.prepared, n), outcome))
            if torch:
                rows = torch.from_numpy(table.rows(row_bytes, case.stride)[: case.n_rows])
                ids, target = torch.from_numpy(case.ids), torch.from_numpy(case.out)
                # the numbers of threads that have been its best ones
                for n in {"back to back": (most // 2, most), "after sleep": (1, min(4, most))}.get(pattern, (most,)):
                    select = partial(torch.index_select, rows, 0, ids, out=target)
                    arms.append(Arm(f"torch {n}", select, threads=n))
                select = partial(torch.index_select, rows, 0, ids[:1], out=target[:1])
                arms.append(Arm("torch, 1 row", select, threads=most))
                arms[-1].whole_result = False
            few = 9 if count > 6144 else 60 if pattern == "back to back" else 24
            for _ in range(3):
                for arm in random.sample(arms, len(arms)):
                    block(case, arm, pattern, few // 3 * (2 if pattern == "back to back" else 1), torch)
            if pattern == "after a team" and torch:  # last: they stay ordinary until the next pattern
                cores_parts.scheduled(os.SCHED_OTHER)
                arms.append(Arm("default, ordinary workers", case.prepared, outcome))
                block(case, arms[-1], pattern, few, torch)
                cores_parts.scheduled(os.SCHED_BATCH)
            found = {arm.name: arm.record() for arm in arms}
            peers = {name: arm["whole"] for name, arm in found.items() if name.startswith("torch ")}
            best = min(peers, key=peers.__getitem__) if peers else None
            record: Record = {"pattern": pattern, "row_bytes": row_bytes, "rows": count, "arms": found}
            record |= {"wrong_rows": case.wrong, "of_torch": best and round(found["default"]["whole"] / peers[best], 2)}
            fixed = [arm["whole"] for name, arm in found.items() if name.startswith("x")]
            record["default_over_best"] = round(found["default"]["whole"] / min(fixed), 2) if fixed else None
            ours = "; ".join(
                f"{name} {arm['whole']} (inside {arm['inside']}, around {arm['around']}, threads {arm['threads']})"
                for name, arm in found.items()
                if "inside" in arm
            )
            theirs = ", ".join(f"{name[6:]}: {arm['whole']}" for name, arm in found.items() if "inside" not in arm)
            record["text"] = (
                f"{pattern} {row_bytes} B x {count}: {ours} | torch {theirs} | {record['of_torch']} of {best}, "
                f"default/best {record['default_over_best']}"
            )
            yield record
        case.store.close()
    out.close()
    table.close()


# --- threads, and the limit ----------------------------------------------------------------------------------------------


def threads(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """Who did what when, on all threads."""
    for record in cores_timeline.timeline(argparse.Namespace(quick=True, region=arguments.region), engine):
        if record["threads"] in (1, engine.threads + 1):
            rate = record["helper_ns_per_row"] or record["caller_ns_per_row"]
            record["gigabytes_per_second_and_thread"] = round(record["row_bytes"] / rate, 2)
            record["text"] += f"; {record['gigabytes_per_second_and_thread']} GB/s each"
            yield record


def limit(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """The same rows by an OpenMP team in C, from memory and from the caches."""
    ref, library = reference.load_team()
    most = engine.threads + 1
    numbers = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < most] + [most]
    table = SharedTable(arguments.region << 20, huge=True)
    out = AlignedPages(98304 * 1360, huge=True)
    out.array[:] = 0
    target, source = (ref.cast("uint8_t *", address) for address in (out.array.ctypes.data, table.address))
    rng = np.random.default_rng(3)
    counters = ref.new("uint64_t[]", 8 * 257)
    claims, nothing = {}, {}
    for n in numbers:
        nothing[n] = us([library.ref_team_nothing(n) / 1e3 for _ in range(200)])
        pieces = 64 * n
        claims[n] = [
            round(
                median([library.ref_team_claims(counters, pieces, own, n) / 1e3 - nothing[n] for _ in range(50)])
                * 1e3
                / pieces,
                1,
            )
            for own in (0, 1)
        ]
    text = f"an OpenMP team without work, us by threads: {nothing}; a claim, ns: of one counter, of own ones: {claims}"
    yield {"nothing_us": nothing, "claim_ns": claims, "text": text}
    for row_bytes, count in (*CASES, (264, 98304), (1360, 98304)):
        n_rows, past = table.nbytes // row_bytes, int(count * row_bytes >= 4 << 20)
        record: Record = {"row_bytes": row_bytes, "rows": count}
        for name, among in (("from memory", n_rows), ("from the caches", (256 << 10) // row_bytes)):
            if count > 6144 and name != "from memory":
                continue
            times = {}
            for n in numbers if name == "from memory" else [1, most]:
                took = []
                for _ in range(9 if count > 6144 else 60):
                    ids = rng.integers(0, among, count)
                    given = (target, source, ref.from_buffer("int64_t[]", ids.data), count, row_bytes, row_bytes)
                    library.ref_team_nothing(n)  # as for back to back: awake
                    took.append(library.ref_team_gather(*given, past, n) / 1e3)
                times[n] = us(took)
            record[name] = times
            record[f"{name}, one thread over n"] = round(times[1] / most, 1)
            record[f"{name}, GB/s"] = {n: round(count * row_bytes / value / 1e3, 1) for n, value in times.items()}
        record["text"] = f"limit {row_bytes} B x {count}: " + "; ".join(
            f"{key} {value}" for key, value in record.items() if key.startswith("from")
        )
        yield record
    out.close()
    table.close()


# --- one thread ---------------------------------------------------------------------------------------------------------


def kernels(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """One thread: our ways with parts left out, and the bare loop's."""
    ref, library = reference.load()
    keys = ref.new("uint64_t[]", 2 * 98304)
    table = SharedTable(arguments.region << 20, huge=True)
    out = AlignedPages(98304 * 2048, huge=True)
    out.array[:] = 0
    counters = Counters()
    yield {"counters": counters.names, "text": f"counters of the processor: {counters.said}"}
    for row_bytes in (512, 1024, 1364, 2048):
        for count in (1536, 98304):
            store = table.store(row_bytes, engine, plan=True)
            ids, rows = np.zeros(count, np.int64), out.array[: count * row_bytes].reshape(count, row_bytes)
            spec, gather = store.tables["t"], store.prepare("t", ids, rows)
            one = store.prepare("t", ids[:1], rows[:1])
            requests = inspect.getclosurevars(gather).nonlocals["requests"]
            tuning = ffi.cast("struct obmm_table *", requests.array[0].table).tuning
            names = ("prefetch_bytes", "stream_bytes", "stream_row", "order_rows", "order_row", "stream_alone")
            planned = {name: getattr(tuning, name) for name in names}
            ways: dict[str, Record] = {
                "as planned": {},
                "no prefetch": {"prefetch_bytes": 0},
                "in order": {"order_rows": NEVER, "stream_bytes": NEVER, "stream_alone": NEVER},
                "in order, past caches": {"order_rows": NEVER, "stream_bytes": 0, "stream_row": 0},
                "by address": {"order_rows": 1, "order_row": 0, "stream_bytes": 0},
            }
            given = (
                ref.from_buffer("uint8_t[]", rows.data),
                ref.cast("uint8_t *", table.address),
                ref.from_buffer("int64_t[]", ids.data),
                count,
                row_bytes,
                spec.row_stride,
            )
            bare: dict[str, Callable[[], object]] = {
                "bare in order": partial(library.ref_in_order, *given, 0),
                "bare in order, past caches": partial(library.ref_in_order, *given, 1),
                "bare by address": partial(library.ref_by_address, *given, keys),
            }
            times: dict[str, list[float]] = {name: [] for name in (*ways, *bare, "one row")}
            counted: dict[str, list[list[float]]] = {name: [] for name in times}
            reads: dict[str, list[float]] = {name: [] for name in times}
            rng = np.random.default_rng(count)
            for _ in range(5 if count > 10000 else 60):
                for name in random.sample(list(times), len(times)):
                    ids[:] = rng.integers(0, spec.n_rows, count)
                    for key, value in (planned | ways.get(name, {})).items():
                        setattr(tuning, key, value)
                    call = bare.get(name) or partial(one if name == "one row" else gather, 1)
                    before, began = counters.read(), time.perf_counter()
                    call()
                    took, after = time.perf_counter() - began, counters.read()
                    times[name].append(took * 1e9)
                    began = time.perf_counter()
                    out.array[: count * row_bytes].view(np.uint64).sum()  # what reads the rows then
                    reads[name].append((time.perf_counter() - began) * 1e9)
                    counted[name].append([b - a for a, b in zip(before, after, strict=True)])
            per_row = {
                name: round(median(values) / (1 if name == "one row" else count), 1) for name, values in times.items()
            }
            record: Record = {"row_bytes": row_bytes, "rows": count, "ns_per_row": per_row, "planned": planned}
            record["ns_per_row_to_read"] = {name: round(median(values) / count, 1) for name, values in reads.items()}
            best = min(per_row[name] for name in bare)
            record["of_bare"] = round(best / per_row["as planned"], 3)
            # and what a user gets: rows that lie in memory when they are read have cost that, too
            read = {name: round(per_row[name] + record["ns_per_row_to_read"][name], 1) for name in (*ways, *bare)}
            record["of_bare_and_read"] = round(min(read[name] for name in bare) / read["as planned"], 3)
            record["text"] = (
                f"one thread {row_bytes} B x {count}, ns a row: {per_row}; to read them then {record['ns_per_row_to_read']}; {record['of_bare']} of the limit, {record['of_bare_and_read']} with one reading of the result; plan {planned}"
            )
            if counters.names:
                record["per_row"] = {
                    name: {
                        what: round(median(c[i] for c in values) / count, 2) for i, what in enumerate(counters.names)
                    }
                    for name, values in counted.items()
                }
                record["text"] += f"; per row {record['per_row']}"
            yield record
            store.close()
    out.close()
    table.close()


# --- waiting, and a step --------------------------------------------------------------------------------------------------


def waiting(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """CPU time of workers that wait, a hundred steps a second."""
    for untold in (0, 6):
        yield cores_parts.waiting(argparse.Namespace(quick=True), engine, untold)


def step(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """A prefetcher's step beside torch, with polite workers and with ordinary ones."""
    for name, policy in (("polite workers", os.SCHED_BATCH), ("ordinary workers", os.SCHED_OTHER)):
        cores_parts.scheduled(policy)
        for record in cores_parts.step(argparse.Namespace(quick=True), engine):
            yield record | {"workers": name, "text": f"{name}: {record['text']}"}


PARTS: dict[str, Callable[[argparse.Namespace, GatherEngine], Iterator[Record]]] = {
    "threads": threads,
    "limit": limit,
    "kernels": kernels,
    "waiting": waiting,
    "calls": calls,
    "step": step,
}


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS))
    parser.add_argument("--patterns", nargs="+", default=["back to back", "after sleep", "after a team"])
    parser.add_argument("--large", action="store_true", help="calls: 98,304 rows too")
    parser.add_argument("--label", default="", help="printed before each line")
    parser.add_argument("--region", type=int, default=1024, metavar="MIB", help="size of the table (default 1024)")
    parser.add_argument("--json", type=Path, help="add one record a line there")
    arguments = parser.parse_args(given)
    if len(arguments.only) > 1:
        codes = []
        for part in arguments.only:
            rest = [word for word in given if word not in ("--only", *PARTS)]
            codes.append(subprocess.call([sys.executable, "-m", "bench.gather_profile", *rest, "--only", part]))
        return max(codes)
    engine, wrong = GatherEngine(), 0
    part = arguments.only[0]
    for record in PARTS[part](arguments, engine):
        wrong += record.get("wrong_rows", 0)
        print(f"{arguments.label} {part}: {record['text']}".strip(), flush=True)
        if arguments.json:
            with arguments.json.open("a") as file:
                head = {"part": part, "label": arguments.label, "machine": machine.describe()}
                file.write(json.dumps(record | head) + "\n")
    if wrong:
        print(f"{wrong} rows were wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
