# SPDX-License-Identifier: Apache-2.0
"""Every core, every size: gathers against `torch.index_select` on 1, 4 and all threads, in one run.

    python -m bench.cores                 all parts: five to seven minutes on 16 cores
    python -m bench.cores --quick         fewer calls, 2 MiB pages only
    python -m bench.cores --ordinary      workers in the ordinary scheduling class: what their politeness costs
    python -m bench.cores --only peers    one part: team, timeline, peers, kernels, ranks, step, small_pages

*team*: hand-over, and what waiting costs.  *timeline*: which thread did what and when, the profile behind the figures.  *kernels*: one thread against the obvious loop.  *ranks*: two
processes at once.  *step*: a prefetcher's step beside a model's work on all CPUs.  *small_pages*: *peers* on 4 KiB pages, as
far as --minutes allow.  *peers*: 384 to 98,304 rows of 264 and 1,360 bytes, back to back, after 5 ms of sleep, after 5 ms of the caller's own work,
and right after an OpenMP team whose threads still spin.  Each arm runs in blocks of its own, in random order and several
passes, with a pause before it, in which the other team's threads fall asleep: two teams that spin ruin each other.  *told*:
the engine is told a fifth of a millisecond before (`expect`, as the prefetcher's `begin` does), *at once*: told in the call,
*untold*: never.  Row numbers are new for every call.  The last result of every block is compared.

Times are medians in microseconds, of this host's own memory, no fabric.  Without torch there is nothing to compare with,
and only our own times are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import cores_parts, cores_timeline
from obmm.bench import machine
from obmm.bench.shared_table import AlignedPages, SharedTable, describe_pages, torch_index_select
from obmm.bench.timing import percentiles
from obmm.rows import GatherEngine

Record = dict[str, Any]
ROWS, SIZES, LARGE = (384, 1536, 6144), (264, 1360), 98304
PAUSE, LEAD, SETTLE = 5e-3, 200e-6, 40e-3  # seconds
PARTS = ("team", "timeline", "peers", "kernels", "ranks", "step", "small_pages")


@dataclass
class Arm:
    """One way to gather, and the times of its calls in seconds."""

    name: str
    call: Callable[[], object]
    told: float | None = None
    """Seconds between `expect` and the call; None: never told."""
    before: Callable[[], object] | None = None
    """What makes it ready, once for each block."""
    times: list[float] = field(default_factory=list)

    def summary(self) -> Record:
        p50, p99 = percentiles(self.times, 50, 99)
        return {"p50_us": round(p50 * 1e6, 1), "p99_us": round(p99 * 1e6, 1), "calls": len(self.times)}


class Case:
    """One table, row size and number of rows, over common buffers."""

    def __init__(self, table: SharedTable, row_bytes: int, count: int, engine: GatherEngine, out: AlignedPages) -> None:
        self.table, self.row_bytes, self.count, self.engine = table, row_bytes, count, engine
        self.store = table.store(row_bytes, engine, plan=True)
        self.stride = self.store.tables["t"].row_stride
        self.n_rows = self.store.tables["t"].n_rows
        self.ids: NDArray[np.int64] = np.zeros(count, np.int64)
        self.out = out.array[: count * row_bytes].reshape(count, row_bytes)
        self.prepared = self.store.prepare("t", self.ids, self.out)
        self.random = np.random.default_rng(count * row_bytes)
        self.wrong = 0

    def arms(self, threads: tuple[int, ...]) -> list[Arm]:
        prepared = self.prepared
        arms = [Arm("told", prepared, LEAD), Arm("at once", prepared, 0.0), Arm("untold", prepared)]
        for n in threads:
            arms.append(Arm(f"x{n}", partial(prepared, n), LEAD))
        torch = torch_index_select()
        if torch:
            rows = torch.from_numpy(self.table.rows(self.row_bytes, self.stride)[: self.n_rows])
            ids, out = torch.from_numpy(self.ids), torch.from_numpy(self.out)
            for n in sorted({1, 4, max(threads) // 2, max(threads)} - {0}):
                if n <= max(threads):
                    select = partial(torch.index_select, rows, 0, ids, out=out)
                    arms.append(Arm(f"torch {n}", select, before=partial(torch.set_num_threads, n)))
        return arms

    def block(self, arm: Arm, pattern: str, calls: int) -> None:
        """So many calls of one arm, each after what the pattern says."""
        clock, expect = time.perf_counter, self.engine.expect
        fresh = self.random.integers(0, self.n_rows, (calls + 3, self.count))
        if arm.before:
            arm.before()
        time.sleep(SETTLE)
        for number, ids in enumerate(fresh):
            if pattern == "after sleep":
                time.sleep(PAUSE)
            elif pattern == "after work":
                busy(PAUSE)
            elif pattern == "after a team":
                cores_parts.busy_team()
            np.copyto(self.ids, ids)
            if arm.told is not None and pattern != "back to back":
                expect(arm.told + 100e-6)
                busy(arm.told)
            began = clock()
            arm.call()
            took = clock() - began
            if number >= 3:
                arm.times.append(took)
        self.wrong += self.table.wrong_rows(self.ids[:8192], self.out[:8192], self.stride)


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def compare(case: Case, arms: list[Arm], pattern: str, calls: int, passes: int) -> Record:
    """All arms in one pattern, and how ours stand to torch's best and to our own best number of threads."""
    for arm in arms:
        arm.times = []
    for _ in range(passes):
        for arm in random.sample(arms, len(arms)):
            case.block(arm, pattern, max(5, calls // passes))
    medians = {arm.name: median(arm.times) for arm in arms}
    ours = medians["told"]
    fixed = {name: value for name, value in medians.items() if name.startswith("x")}
    peers = {name: value for name, value in medians.items() if name.startswith("torch")}
    best = min(fixed, key=fixed.__getitem__)
    record: Record = {
        "part": "peers",
        "pages": describe_pages(case.table.huge),
        "pattern": pattern,
        "row_bytes": case.row_bytes,
        "rows": case.count,
        "arms": {arm.name: arm.summary() for arm in arms},
        "best_threads": best,
        "default_over_best": round(ours / fixed[best], 3),
        "wrong_rows": case.wrong,
    }
    if peers:
        peer = min(peers, key=peers.__getitem__)
        record |= {"best_torch": peer, "of_torch": round(ours / peers[peer], 3)}
        record |= {"untold_of_torch": round(medians["untold"] / peers[peer], 3)}
        record |= {"at_once_of_torch": round(medians["at once"] / peers[peer], 3)}
    return record


def target_of(record: Record) -> tuple[float, float]:
    """Of torch's best time: target and gate."""
    return (0.6, 0.8) if record["rows"] == LARGE else (0.8, 1.0)


def show(record: Record) -> None:
    times = {name: arm["p50_us"] for name, arm in record["arms"].items()}
    ours = " ".join(f"{name} {us:g}" for name, us in times.items() if not name.startswith("torch"))
    theirs = " / ".join(f"{us:g}" for name, us in times.items() if name.startswith("torch"))
    line = f"{record['pages']} {record['pattern']:<13} {record['row_bytes']:>5} B x {record['rows']:<6} {ours}"
    if "of_torch" in record:
        target, gate = target_of(record)
        verdict = judge(record["of_torch"], target, gate)
        line += f" | torch {theirs} | {record['of_torch']:.2f} of {record['best_torch']} ({target}: {verdict})"
    line += f" | default/best {record['default_over_best']:.2f} ({judge(record['default_over_best'], 1.1, 1.3)})"
    print(line + (f"  {record['wrong_rows']} WRONG ROWS" if record["wrong_rows"] else ""), flush=True)


def judge(value: float, target: float, gate: float) -> str:
    return "met" if value <= target else "gate met" if value <= gate else "BEHIND"


def peers(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """Every size in every pattern, on 2 MiB pages."""
    patterns = ("back to back", "after sleep", "after work") + (("after a team",) if torch_index_select() else ())
    patterns = tuple(each for each in patterns if not arguments.patterns or each in arguments.patterns)
    yield from _peers(arguments, engine, patterns, huge=True)


def small_pages(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """The same on 4 KiB pages, two patterns."""
    if not arguments.quick:
        yield from _peers(arguments, engine, ("back to back", "after sleep"), huge=False)


def _peers(
    arguments: argparse.Namespace, engine: GatherEngine, patterns: tuple[str, ...], *, huge: bool
) -> Iterator[Record]:
    most = engine.threads + 1
    threads = (*(n for n in (1, 2, 4, 8, 16, 32, 64) if n < most), most)
    calls, passes = (45, 3) if arguments.quick else (120, 3)
    table = SharedTable(arguments.region << 20, huge=huge)
    if huge and not table.huge:
        print("2 MiB pages were refused by this kernel (MADV_COLLAPSE, Linux 6.1): not measured", flush=True)
    out = AlignedPages(LARGE * max(SIZES), huge=True)
    out.array[:] = 0
    for row_bytes in SIZES:
        for count in (*ROWS, LARGE):
            if time.monotonic() > arguments.end:
                print(f"{describe_pages(table.huge)} {row_bytes} B x {count}: no time left, not measured", flush=True)
                continue
            case = Case(table, row_bytes, count, engine, out)
            arms = case.arms(threads)
            for pattern in (
                patterns[:1] if count == LARGE and patterns[0] == "back to back" else () if count == LARGE else patterns
            ):
                few = 18 if count == LARGE else calls if pattern == "back to back" else calls // 2
                yield compare(case, arms, pattern, few, passes)
            if count == 1536:
                print(case.store.explain(), flush=True)
            case.store.close()
            del arms, case
    out.close()
    table.close()


def behind(records: list[Record]) -> list[str]:
    """Every target that was not met, in words."""
    lines = []
    for record in records:
        if record["part"] != "peers":
            lines += [f"{record['part']}: {text}" for text in record.get("behind", ())]
            continue
        what = f"{record['pages']} {record['pattern']} {record['row_bytes']} B x {record['rows']}"
        target, _ = target_of(record)
        if record.get("of_torch", 0) > target:
            lines.append(f"{what}: {record['of_torch']} of {record['best_torch']}, target {target}")
        if record["default_over_best"] > 1.1:
            lines.append(
                f"{what}: the default takes {record['default_over_best']} of {record['best_threads']}, target 1.1"
            )
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer calls, 2 MiB pages only")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--patterns", nargs="+", help="of the comparison: only these, for example 'after a team'")
    parser.add_argument("--ordinary", action="store_true", help="workers as SCHED_OTHER threads, not SCHED_BATCH")
    parser.add_argument("--region", type=int, default=1024, metavar="MIB", help="size of the table (default 1024)")
    parser.add_argument("--json", type=Path, help="write all records there")
    parser.add_argument(
        "--minutes", type=float, default=7.0, help="begin no more comparisons after so long (default 7)"
    )
    arguments = parser.parse_args(argv)
    arguments.end = time.monotonic() + 60 * arguments.minutes
    torch = torch_index_select()
    result: Record = {"benchmark": "cores", "machine": machine.describe(), "torch": torch and torch.__version__}
    records: list[Record] = []
    parts: dict[str, Callable[[argparse.Namespace, GatherEngine], Iterator[Record]]] = {
        "team": cores_parts.team,
        "timeline": cores_timeline.timeline,
        "peers": peers,
        "kernels": cores_parts.kernels,
        "ranks": cores_parts.ranks,
        "step": cores_parts.step,
        "small_pages": small_pages,
    }
    result["records"] = records
    began = time.monotonic()
    with_engine = GatherEngine()
    result["engine"] = repr(with_engine)
    if arguments.ordinary:
        cores_parts.scheduled(os.SCHED_OTHER)
    print(f"{result['machine']}  torch {result['torch']}  {with_engine}  pid {os.getpid()}", flush=True)
    for part in arguments.only:
        print(f"-- {part} ({time.monotonic() - began:.0f} s)", flush=True)
        for record in parts[part](arguments, with_engine):
            records.append(record)
            show(record) if record["part"] == "peers" else print(record["text"], flush=True)
            if arguments.json:  # what there is survives a run that is cut short
                arguments.json.write_text(json.dumps(result, indent=1))
    print(f"-- behind its target ({time.monotonic() - began:.0f} s)")
    print("\n".join(behind(records)) or "nothing")
    result["behind"] = behind(records)
    result["machine_after"] = machine.describe()
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    wrong = sum(record.get("wrong_rows", 0) for record in records)
    if wrong:
        print(f"{wrong} rows were wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
