# SPDX-License-Identifier: Apache-2.0
"""Random steps and random faults for as long as asked (acceptance 15); nothing may grow.

python tests/prefetch/soak.py --seconds 3600
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fabric_tables
import numpy as np
from fabric_tables import published
from memory_source import MemorySource, MemoryTable, fault

import obmm
from obmm import emulator
from obmm.errors import ObmmError
from obmm.prefetch import CircuitBreaker, Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus

TABLES = {"a": MemoryTable(4_000, 264, neutral_zero=True, salt=1), "b": MemoryTable(3_000, 1364, neutral_zero=True)}
LAYERS = [PrefetchLayer(1, "a", 24), PrefetchLayer(14, "b", 12)]
MAX_TOKENS = 32


@dataclass
class Footprint:
    """What this process holds."""

    descriptors: int
    maps: int
    threads: int
    resident_kib: int

    @classmethod
    def now(cls) -> Footprint:
        gc.collect()
        status = Path("/proc/self/status").read_text()
        return cls(
            len(os.listdir("/proc/self/fd")),
            Path("/proc/self/maps").read_text().count("\n"),
            threading.active_count(),
            int(status.split("VmRSS:")[1].split()[0]),
        )

    def check_no_growth_since(self, before: Footprint) -> None:
        assert self.descriptors <= before.descriptors, (before, self)
        assert self.threads <= before.threads, (before, self)
        assert self.maps <= before.maps + 8, (before, self)
        assert self.resident_kib <= before.resident_kib + 8_192, (before, self)


@dataclass
class Outcome:
    steps: int = 0
    verified_rows: int = 0
    faults: int = 0
    statuses: dict[str, int] = field(default_factory=dict)


class Trouble:
    """Chooses what goes wrong in the source during the next step."""

    def __init__(self, source: MemorySource, random: np.random.Generator) -> None:
        self._source = source
        self._random = random

    def choose(self) -> None:
        source = self._source
        kind = self._random.choice(
            ["none", "fault", "slow", "late", "flip", "heartbeat", "canary"],
            p=[0.88, 0.04, 0.03, 0.02, 0.01, 0.01, 0.01],
        )
        source.before = {"fault": self._fault, "slow": self._slow, "late": self._late}.get(kind)
        source.flip = kind == "flip"
        source.alive = kind != "heartbeat"
        source.canary_ok = kind != "canary"

    def _fault(self) -> None:
        raise fault()

    def _slow(self) -> None:
        time.sleep(0.0005)

    def _late(self) -> None:
        time.sleep(0.008)


def one_life(source: MemorySource, random: np.random.Generator, outcome: Outcome, end: float) -> None:
    """One prefetcher, a few hundred steps, and its close."""
    policy: Any = [("retry", "zero"), "zero", "raise", "retry"][random.integers(4)]
    trouble = Trouble(source, random)
    with EngramPrefetcher(
        source,
        LAYERS,
        MAX_TOKENS,
        depth=int(random.integers(1, 4)),
        policy=policy,
        deadlines=Deadlines(decode=0.004, probe=0.01),
        breaker=CircuitBreaker(probe_interval=0.002),
    ) as prefetcher:
        for _ in range(int(random.integers(1, 400))):
            if time.monotonic() > end:
                break
            trouble.choose()
            one_step(prefetcher, random, outcome)
        source.before, source.flip, source.alive, source.canary_ok = None, False, True, True
        in_use = prefetcher.metrics.slots_in_use.values
        assert all(held <= 3 for held in in_use.values()), in_use


def one_step(prefetcher: EngramPrefetcher, random: np.random.Generator, outcome: Outcome) -> None:
    n_tokens = int(random.integers(0, MAX_TOKENS + 1))
    padded = int(random.integers(n_tokens, MAX_TOKENS + 1))
    ids = [random.integers(0, TABLES[layer.table].n_rows, (n_tokens, layer.columns)) for layer in LAYERS]
    try:
        prefetcher.begin(ids, n_tokens, padded)
    except ObmmError:
        outcome.faults += 1
        return
    if random.random() < 0.95:
        prefetcher.start()
    outcome.steps += 1
    if random.random() < 0.05:
        prefetcher.cancel("soak")
        return
    # begin took this version; flips after it make the gather fail, they never show in an OK row
    generation = int(next(iter(prefetcher.metrics.generation.values.values()), 0))
    for layer, layer_ids in zip(LAYERS, ids, strict=True):
        if random.random() < 0.03:
            continue
        rows = prefetcher.consume(layer.layer_id)
        outcome.statuses[rows.status.value] = outcome.statuses.get(rows.status.value, 0) + 1
        assert rows.buffer.shape == (padded, layer.columns, TABLES[layer.table].row_bytes)
        assert not rows.buffer[n_tokens:].any()
        if rows.status is RowsStatus.OK and n_tokens:
            assert np.array_equal(rows.buffer[:n_tokens], TABLES[layer.table].rows(layer_ids, generation))
            outcome.verified_rows += layer_ids.size
        elif rows.status is RowsStatus.FAILED:
            assert not rows.buffer.any()
    try:
        prefetcher.drain()
    except ObmmError:
        outcome.faults += 1


def fabric_life(fabric: emulator.Fabric, random: np.random.Generator, outcome: Outcome, end: float) -> None:
    """Export, publish, import, prefetch under publications, lose the memory, close everything."""
    cache: Any = ["cc", "nc"][random.integers(2)]
    hot_rows = [0, 100, 4000][random.integers(3)]
    with (
        obmm.open(fabric.device("a")) as a,
        obmm.open(fabric.device("b")) as b,
        published(a, b, cache, hot_rows) as tables,
    ):
        policy: Any = ["raise", "zero", ("retry", "zero")][random.integers(3)]
        with EngramPrefetcher(
            tables.store, fabric_tables.WANTED, MAX_TOKENS, policy=policy, deadlines=Deadlines(decode=5)
        ) as prefetcher:
            generation = 2
            for number in range(int(random.integers(1, 200))):
                if time.monotonic() > end:
                    break
                if number % 20 == 19:
                    generation += 2
                    tables.store.refresh(fabric_tables.fill(tables.owner, generation))
                fabric_step(prefetcher, random, outcome, generation)
            tables.take_away()
            for _ in range(5):
                fabric_step(prefetcher, random, outcome, None)
    for name, node in fabric.status()["nodes"].items():
        assert not any(node[kind] for kind in ("regions", "windows", "open_files")), (name, node)


def fabric_step(
    prefetcher: EngramPrefetcher, random: np.random.Generator, outcome: Outcome, generation: int | None
) -> None:
    """`generation` None: the memory is gone."""
    n_tokens = int(random.integers(1, MAX_TOKENS + 1))
    ids = [random.integers(0, layer.rows, (n_tokens, 6)) for layer in fabric_tables.LAYERS]
    try:
        prefetcher.begin(ids, n_tokens)
    except ObmmError:
        assert generation is None
        outcome.faults += 1
        return
    prefetcher.start()
    outcome.steps += 1
    for layer, layer_ids in zip(fabric_tables.LAYERS, ids, strict=True):
        rows = prefetcher.consume(layer.layer_id)
        outcome.statuses[rows.status.value] = outcome.statuses.get(rows.status.value, 0) + 1
        if generation is None:
            assert rows.status in (RowsStatus.FAILED, RowsStatus.ZEROED)
            assert not rows.buffer.any()
        else:
            assert rows.status is RowsStatus.OK
            assert np.array_equal(rows.buffer, fabric_tables.content(layer.layer_id, layer_ids, generation))
            outcome.verified_rows += layer_ids.size
    try:
        prefetcher.drain()
    except ObmmError:
        assert generation is None
        outcome.faults += 1


def soak(seconds: float, seed: int, steps: int = 0) -> Outcome:
    """Raises AssertionError for a wrong byte or for growth after the first fifth.

    A machine that is too busy for `steps` in that time goes on until it has them.
    """
    random = np.random.default_rng(seed)
    source = MemorySource(dict(TABLES))
    outcome = Outcome()
    began = time.monotonic()
    end = began + seconds
    warm: Footprint | None = None
    with emulator.start(nodes=2) as fabric:
        while (now := time.monotonic()) < end or outcome.steps < steps:
            one_life(source, random, outcome, now + seconds / 20)
            fabric_life(fabric, random, outcome, max(end, now + seconds / 5))
            if warm is None and time.monotonic() > began + seconds / 5:
                warm = Footprint.now()
        assert warm is not None
        Footprint.now().check_no_growth_since(warm)
    source.close()
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"soak: {options.seconds:.0f} s, seed {options.seed}", flush=True)
    print(f"soak: ok, {soak(options.seconds, options.seed)}")


if __name__ == "__main__":
    sys.exit(main())
