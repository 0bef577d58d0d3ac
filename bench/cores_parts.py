# SPDX-License-Identifier: Apache-2.0
"""The parts of `bench.cores` beside the comparison itself: kernels, the team, two ranks, a prefetcher's whole step."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import reference
from obmm._native import ffi, lib
from obmm.bench.shared_table import AlignedPages, SharedTable, describe_pages, torch_index_select
from obmm.bench.timing import percentiles
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer
from obmm.rows import GatherEngine

Record = dict[str, Any]


def busy_team() -> None:
    """What a model leaves behind: an OpenMP team on all CPUs that has just finished, and still spins."""
    torch = torch_index_select()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    matrix = _matrices(torch)
    torch.mm(matrix, matrix)


def scheduled(policy: int) -> None:
    """The workers' scheduling class: ordinary threads may take a CPU from one that spins on it, batch threads do not."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith("obmm-gather"):
            os.sched_setscheduler(int(task.name), policy, os.sched_param(0))


_kept: list[Any] = []


def _matrices(torch: Any) -> Any:
    if not _kept:
        _kept.append(torch.rand(256, 256))
    return _kept[0]


def kernels(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """One thread, 512 B to 2 KiB, against the limit of one core (the better of its two ways) and a naive loop."""
    ref, library = reference.load()
    keys = ref.new("uint64_t[]", 2 * 98304)
    for huge in (True,) if arguments.quick else (True, False):
        table = SharedTable(arguments.region << 20, huge=huge)
        out = AlignedPages(98304 * 2048, huge=True)
        out.array[:] = 0
        pages = describe_pages(table.huge)
        for row_bytes in (512, 1024, 1364, 2048):
            for count in (1536, 98304):
                store = table.store(row_bytes, engine, plan=True)
                spec = store.tables["t"]
                ids, rows = np.zeros(count, np.int64), out.array[: count * row_bytes].reshape(count, row_bytes)
                given = (
                    ref.from_buffer("uint8_t[]", rows.data),
                    ref.cast("uint8_t *", table.address),
                    ref.from_buffer("int64_t[]", ids.data),
                    count,
                    row_bytes,
                    spec.row_stride,
                )
                calls: dict[str, Callable[[], object]] = {
                    "ours": partial(store.prepare("t", ids, rows), 1),
                    "naive": partial(library.ref_gather, *given),
                    "in order": partial(library.ref_in_order, *given, int(count * row_bytes >= 4 << 20)),
                    "by address": partial(library.ref_by_address, *given, keys),
                }
                times: dict[str, list[float]] = {name: [] for name in calls}
                rng, wrong = np.random.default_rng(count), 0
                for number in range(7 if count > 10000 else 80):
                    for name in random.sample(list(calls), len(calls)):
                        ids[:] = rng.integers(0, spec.n_rows, count)
                        began = time.perf_counter()
                        calls[name]()
                        times[name].append(time.perf_counter() - began)
                        if not number:  # the limit gathers, too
                            wrong += table.wrong_rows(ids[:4096], rows[:4096], spec.row_stride)
                medians = {name: median(values) for name, values in times.items()}
                best = min(("in order", "by address"), key=medians.__getitem__)
                share = medians[best] / medians["ours"]
                record: Record = {
                    "part": "kernels",
                    "pages": pages,
                    "row_bytes": row_bytes,
                    "rows": count,
                    "ns_per_row": {name: round(value / count * 1e9, 1) for name, value in medians.items()},
                    "of_reference": round(share, 3),
                    "wrong_rows": wrong,
                    "text": f"{pages} one thread {row_bytes:>5} B x {count:<6} ns a row: "
                    + ", ".join(f"{name} {value / count * 1e9:.1f}" for name, value in medians.items())
                    + f"; {share:.2f} of the limit ({best})",
                }
                if share < 0.95:
                    record["behind"] = [f"{row_bytes} B x {count} on {pages}: {share:.2f} of the limit, target 0.95"]
                yield record
                store.close()
        out.close()
        table.close()


def team(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """Hand-over, and what waiting costs."""
    rounds = 100 if arguments.quick else 400
    first, every = ffi.new("uint64_t[]", rounds), ffi.new("uint64_t[]", rounds)
    most = engine.threads + 1
    for name, pause, lead in (("told 0.2 ms ahead", 2e-3, 200e-6), ("told at once", 2e-3, 1e-9), ("untold", 2e-3, 0.0)):
        for threads in sorted({2, min(4, most), max(2, most // 2), most}):
            result = lib.obmm_probe_handover(
                engine.pointer, threads, rounds, int(pause * 1e9), int(lead * 1e9), first, every
            )
            assert not result, result
            shown: dict[str, Any] = {}
            for what, found in (("first", first), ("all", every)):
                there = [ns / 1e3 for ns in found if ns != (1 << 64) - 1]
                shown[what] = [round(us, 1) for us in percentiles(there, 50, 99)] if there else None
                shown[f"{what}_missing"] = rounds - len(there)
            late = []
            if lead > 1e-6 and (shown["first"] is None or shown["first"][0] > 3):
                late = [f"hand-over to {threads} threads {name}: {shown['first']} us, target 3"]
            text = f"hand-over, {threads} threads, {name}: us p50, p99 until the first is there {shown['first']}, until all are {shown['all']}"
            text += f" (never within 2 ms: {shown['first_missing']}, {shown['all_missing']} of {rounds})"
            yield {"part": "team", "handover": name, "threads": threads, **shown, "text": text, "behind": late}
    yield waiting(arguments, engine)
    yield waiting(arguments, engine, untold=6)


def waiting(arguments: argparse.Namespace, engine: GatherEngine, untold: int = 0) -> Record:
    """CPU time of the workers at 100 steps a second: of one gather told 0.2 ms ahead, or of so many in a row, `untold`."""
    table = SharedTable(256 << 20, huge=True)
    store = table.store(1360, engine, plan=True)
    ids, out = np.zeros(1536, np.int64), np.zeros((1536, 1360), np.uint8)
    gather, rng = store.prepare("t", ids, out), np.random.default_rng(5)
    steps = 150 if arguments.quick else 400
    numbers = rng.integers(0, store.tables["t"].n_rows, (max(untold, 1), len(ids)))
    cpu, (spun, in_vain), gathered = worker_cpu(), engine.spun, store.stats().seconds
    began = time.monotonic()
    for step in range(steps):
        time.sleep(max(0.0, began + step * 0.01 - time.monotonic()))
        if not untold:
            engine.expect(300e-6)
            end = time.perf_counter() + 200e-6
            while time.perf_counter() < end:
                pass
        for each in numbers:
            ids[:] = each
            gather()
        numbers = (numbers + 7919) % store.tables["t"].n_rows
    elapsed = time.monotonic() - began
    shares = {
        "worker_cpu": (worker_cpu() - cpu) / elapsed,
        "spinning": (engine.spun[0] - spun) / elapsed,
        "in_vain": (engine.spun[1] - in_vain) / elapsed,
        "gathering": (store.stats().seconds - gathered) / elapsed,
    }
    table.close()
    steps_of = f"{untold} gathers in a row, untold" if untold else "one gather, told 0.2 ms ahead"
    shown = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    text = f"at 100 steps a second of {steps_of}, of one CPU: {shown}"
    late = (
        [f"{steps_of}: workers spin in vain for {shares['in_vain']:.2%} of a CPU, target 1 %"]
        if shares["in_vain"] > 0.01
        else []
    )
    return {"part": "team", "waiting": shares, "untold": untold, "text": text, "behind": late}


def worker_cpu() -> float:
    """Seconds of CPU that the workers of this process have had."""
    total = 0.0
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().startswith("obmm-gather"):
                total += int((task / "schedstat").read_text().split()[0]) * 1e-9
        except OSError:
            continue
    return total


# --- two processes ----------------------------------------------------------------------------------------------------


def _rank(pipe: Connection, seed: int, mib: int) -> None:
    """One rank: gathers so many steps whenever it is told to, and says how long they took."""
    table = SharedTable(mib << 20, huge=True)
    store = table.store(1360, GatherEngine(), plan=True)
    ids, out = np.zeros(1536, np.int64), np.zeros((1536, 1360), np.uint8)
    gather, rng = store.prepare("t", ids, out), np.random.default_rng(seed)
    numbers = rng.integers(0, store.tables["t"].n_rows, (64, len(ids)))
    pipe.send("ready")
    while steps := pipe.recv():
        began = time.perf_counter()
        for step in range(steps):
            ids[:] = numbers[step % len(numbers)]
            store.expect()
            gather()
        pipe.send((time.perf_counter() - began, table.wrong_rows(ids, out, store.tables["t"].row_stride)))


def ranks(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """Two processes that gather at once, against one after the other."""
    context = multiprocessing.get_context("spawn")
    pipes, processes, steps, wrong = [], [], 300, 0
    for seed in range(2):
        here, there = context.Pipe()
        process = context.Process(target=_rank, args=(there, seed, 512), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    ratios, alone_us, together_us = [], [], []
    for _ in range(9):
        times = []
        for pipe in pipes:
            time.sleep(1.2)  # who was silent for a second is not counted as gathering
            pipe.send(100)
            pipe.recv()
            pipe.send(steps)
            took, bad = pipe.recv()
            times.append(took)
            wrong += bad
        for pipe in pipes:
            pipe.send(100)
        for pipe in pipes:
            pipe.recv()
        time.sleep(0.3)
        began = time.perf_counter()
        for pipe in pipes:
            pipe.send(steps)
        for pipe in pipes:
            wrong += pipe.recv()[1]
        both = time.perf_counter() - began
        ratios.append(both / sum(times))
        alone_us.append(sum(times) / 2 / steps * 1e6)
        together_us.append(both / steps * 1e6)
    for pipe in pipes:
        pipe.send(0)
    for process in processes:
        process.join(10)
    ratio = median(ratios)
    text = (
        f"two ranks, 1,536 x 1,360 B each: alone {median(alone_us):.0f} us a step, both at once {median(together_us):.0f} us; "
        f"at once / one after the other {ratio:.2f} (lowest {min(ratios):.2f}, highest {max(ratios):.2f})"
    )
    late = [f"two ranks at once take {ratio:.2f} of one after the other, target 1.0"] if ratio > 1 else []
    yield {
        "part": "ranks",
        "at_once_over_one_after_the_other": ratios,
        "wrong_rows": wrong,
        "text": text,
        "behind": late,
    }


# --- a whole step -------------------------------------------------------------------------------------------------------


def step(arguments: argparse.Namespace, engine: GatherEngine) -> Iterator[Record]:
    """12 layers x 128 rows of 1,360 bytes, each before some work of torch: with the prefetcher, in the layer.

    On all CPUs, and with one CPU that torch leaves to the prefetcher.
    """
    torch = torch_index_select()
    if not torch:
        yield {"part": "step", "text": "a whole step needs torch: not measured"}
        return
    most = len(os.sched_getaffinity(0))
    for threads in dict.fromkeys((most, max(most - 1, 1))):
        yield _step(arguments, engine, torch, threads, "all CPUs" if threads == most else "all CPUs but one")


def _step(arguments: argparse.Namespace, engine: GatherEngine, torch: Any, threads: int, where: str) -> Record:
    table = SharedTable(1 << 30, huge=True)
    store = table.store(1360, engine, plan=True)
    torch.set_num_threads(threads)
    n_layers, n_rows, n_table = 12, 128, store.tables["t"].n_rows
    layers = [PrefetchLayer(layer, "t", 1) for layer in range(n_layers)]
    matrix = torch.rand(384, 384)
    tensor = torch.from_numpy(table.rows(1360, store.tables["t"].row_stride))
    rng = np.random.default_rng(4)
    result = torch.empty(n_rows, 1360, dtype=torch.uint8)
    arms = ("work alone", "prefetcher", "index_select in the layer")
    parts = ("begin and start", "torch beside it", "consume, first layer", "consume, the others")
    taken: dict[str, list[float]] = {name: [] for name in (*arms, *parts)}
    wrong = 0
    with EngramPrefetcher(store, layers, n_rows, depth=1, deadlines=Deadlines(decode=10)) as prefetcher:
        for number in range(60 if arguments.quick else 200):
            ids = rng.integers(0, n_table, (n_rows, n_layers, 1))
            by_layer = [torch.from_numpy(np.ascontiguousarray(ids[:, layer, 0])) for layer in range(n_layers)]
            for name in random.sample(arms, len(arms)):
                time.sleep(2e-3)
                spent = dict.fromkeys(parts, 0.0)
                began = time.perf_counter()
                if name == "prefetcher":
                    prefetcher.begin(ids, n_rows)
                    prefetcher.start()
                    spent["begin and start"] = time.perf_counter() - began
                for layer in range(n_layers):
                    at = time.perf_counter()
                    torch.mm(matrix, matrix)
                    if name == "prefetcher":
                        done = time.perf_counter()
                        got = prefetcher.consume(layer)
                        spent["torch beside it"] += done - at
                        spent["consume, the others" if layer else "consume, first layer"] += time.perf_counter() - done
                        if number % 20 == 0:
                            rows = np.asarray(got.buffer).reshape(n_rows, -1)
                            wrong += table.wrong_rows(ids[:, layer, 0], rows, store.tables["t"].row_stride)
                    elif name != "work alone":
                        torch.index_select(tensor, 0, by_layer[layer], out=result)
                if number % 20 or name != "prefetcher":  # comparing takes longer than the step
                    taken[name].append(time.perf_counter() - began)
                if name == "prefetcher":
                    for part, seconds in spent.items():
                        taken[part].append(seconds)
                    prefetcher.drain()
    store.close()
    table.close()
    us = {name: [round(value * 1e6, 1) for value in percentiles(times, 50, 99)] for name, times in taken.items()}
    added = us["prefetcher"][0] - us["work alone"][0]
    other = us["index_select in the layer"][0] - us["work alone"][0]
    text = f"a step of 12 layers with torch on {where}, us p50, p99: {us}; added to the work: {added:.0f} by the prefetcher, {other:.0f} by index_select"
    late = [f"torch on {where}: the prefetcher adds {added:.0f} us, index_select {other:.0f}"] if added > other else []
    return {
        "part": "step",
        "threads": threads,
        "us": us,
        "added": [added, other],
        "wrong_rows": wrong,
        "text": text,
        "behind": late,
    }
