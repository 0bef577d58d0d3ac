# SPDX-License-Identifier: Apache-2.0
"""Processes whose teams gather from the same memory and are killed at random points, spinning workers and all."""

from __future__ import annotations

import mmap
import os
import random
import signal
import time

import numpy as np
import pytest

from obmm.rows import GatherEngine, LocalMemory, Manifest, RowStore, TableSpec

from .. import seeds

SECONDS = float(os.environ.get("OBMM_STORM_SECONDS", "4"))
SPEC = TableSpec("t", 8000, 264)
WRONG = 3


def content(ids: np.ndarray) -> np.ndarray:
    words = np.arange(33, dtype=np.uint64)
    return ((ids.astype(np.uint64)[:, None] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + words).view(np.uint8)


def gather_for_ever(mapped: mmap.mmap, manifest: Manifest, seed: int) -> None:
    """Told and untold, waited for and submitted, abandoned and dropped; exits with WRONG at the first wrong byte."""
    rng = random.Random(seed)
    engine = GatherEngine(rng.choice((1, 3, 7)))
    store = RowStore.attach(LocalMemory(mapped, header=True), manifest, plan=rng.random() < 0.3, engine=engine)
    numbers = np.random.default_rng(seed)
    while True:
        ids = numbers.integers(0, SPEC.n_rows, rng.randrange(1, 3000))
        out = np.zeros((len(ids), SPEC.row_bytes), np.uint8)
        if rng.random() < 0.7:
            store.expect(rng.uniform(0, 5e-4))
        if rng.random() < 0.5:
            store.gather_into("t", ids, out, threads=rng.randrange(5))
        else:
            tickets = [store.submit("t", ids, out)] + [store.submit("t", ids, np.zeros_like(out)) for _ in range(3)]
            tickets[-1].abandon()
            tickets.pop(1)
            tickets[0].result()
        if not np.array_equal(out, content(ids)):
            os._exit(WRONG)


@pytest.mark.timeout(SECONDS + 120)
def test_teams_gather_right_while_others_are_killed() -> None:
    seed = seeds.seed()
    rng = random.Random(seed)
    mapped = mmap.mmap(-1, 4096 + SPEC.end)
    LocalMemory.format(mapped, generation=1)
    engine = GatherEngine(3)
    owner = RowStore.attach(LocalMemory(mapped, header=True), Manifest((SPEC,)), verify="none", engine=engine)
    owner.populate("t", content(np.arange(SPEC.n_rows)))
    manifest = owner.publish()
    alive: list[int] = []
    killed = 0

    def spawn() -> int:
        pid = os.fork()
        if not pid:
            try:
                gather_for_ever(mapped, manifest, rng.getrandbits(32) ^ os.getpid())
            finally:
                os._exit(4)
        return pid

    try:
        alive = [spawn() for _ in range(5)]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or killed < SECONDS:
            time.sleep(rng.uniform(0, 0.1))
            victim = alive.pop(rng.randrange(len(alive)))
            done, status = os.waitpid(victim, os.WNOHANG)
            assert not done, f"a process on its own: {os.waitstatus_to_exitcode(status)}, seed {seed}"
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            killed += 1
            alive.append(spawn())
            # and we gather beside them
            ids = np.arange(rng.randrange(1, SPEC.n_rows))
            owner.expect()
            assert np.array_equal(owner.gather("t", ids), content(ids))
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        owner.close()
        engine.close()
