# SPDX-License-Identifier: Apache-2.0
"""Random batches under random injected faults for as long as asked (conformance list 34, 42): right bytes or an error, no
batch without an end, nothing that grows.

python -m tests.urma.soak --seconds 3600
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from obmm import urma
from obmm.errors import ObmmError, RemoteMemoryError
from obmm.rows import Manifest, RowStore, TableSpec
from obmm.urma.standin import StandIn

from .conftest import NBYTES, OwnerProcess
from .owner import content

ROW = 64
ROWS = NBYTES // ROW
TIMEOUT = 0.05
PATIENCE = 30.0
"""No batch may take so long, on however busy a machine."""
AFTERWARDS = 8
"""Batches over the segment of an owner that is dead: each waits until its deadline."""
ACTIONS = (
    *(f"status={status}" for status in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16)),
    *("drop", "delay=300", "late=300", "list=2", "poll", "import", "duplicate", "swap"),
)
"""All of 11.3 but two: `early` cannot be told from a completion (7.4), and `kill` ends an owner, which `Lives` does itself."""


@dataclass
class Outcome:
    batches: int = 0
    right: int = 0
    rows: int = 0
    killed: int = 0
    slowest: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items()))
        return (
            f"{self.batches} batches, {self.right} right, {self.rows} rows compared, {self.killed} owners killed, slowest "
            f"{self.slowest:.2f} s; errors: {told}"
        )


@dataclass
class Held:
    """What this process holds."""

    descriptors: int
    threads: int
    maps: int
    resident_kib: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        status = Path("/proc/self/status").read_text()
        return cls(
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            Path("/proc/self/maps").read_text().count("\n"),
            int(status.split("VmRSS:")[1].split()[0]),
        )

    def check_no_growth_since(self, before: Held) -> None:
        assert self.descriptors <= before.descriptors, (before, self)
        assert self.threads <= before.threads, (before, self)
        assert self.maps <= before.maps + 16, (before, self)
        assert self.resident_kib <= before.resident_kib + 16_384, (before, self)


class Soak:
    """An owner process on node b, and batches of this one."""

    def __init__(self, standin: StandIn, library: urma.Library, seed: int) -> None:
        self._standin, self._library = standin, library
        self._random = np.random.default_rng(seed)
        self.outcome = Outcome()

    def life(self, batches: int, end: float) -> None:
        """One context and one owner, which may be killed in the middle."""
        seed = int(self._random.integers(1 << 30))
        owner = OwnerProcess(self._standin)
        try:
            _, ticket = owner.register(seed)
            table = content(seed, NBYTES).reshape(ROWS, ROW)
            dies_at = int(self._random.integers(3 * batches))
            with urma.Context(library=self._library) as context, ExitStack() as stack:
                memory = stack.enter_context(urma.UrmaMemory(context, ticket, header=False, timeout=TIMEOUT))
                store = RowStore.attach(memory, Manifest((TableSpec("t", ROWS, ROW),)), verify="none", plan=False)
                queue = None
                for number in range(batches):
                    if time.monotonic() > end or number > dies_at + AFTERWARDS:
                        break
                    if number == dies_at:
                        owner.kill()
                        self.outcome.killed += 1
                    self._standin.mend()
                    if self._random.random() < 0.8:
                        self._inject()
                    queue = self._batch(context, ticket, table, store, queue)
                self._standin.mend()
        finally:
            owner.close()

    def _inject(self) -> None:
        action = ACTIONS[self._random.integers(len(ACTIONS))]
        which = "at" if self._random.random() < 0.5 else "every"
        self.outcome.actions[action] += 1
        self._standin.inject(f"{which}={int(self._random.integers(1, 60))},{action}")

    def _batch(self, context: Any, ticket: bytes, table: Any, store: RowStore, queue: Any) -> Any:
        """A few lists or a gather -> the queue to go on with; None when it died."""
        rows = int(self._random.integers(1, 300))
        ids = self._random.integers(0, ROWS, rows)
        out = context.buffer(rows * ROW)
        out[:] = 0xA5
        began, queue_died = time.monotonic(), False
        try:
            if self._random.random() < 0.4:
                found = store.gather("t", ids)
            else:
                queue = queue or context.queue(depth=512, list_max=int(self._random.integers(1, 300)))
                with queue.attach(ticket) as target:
                    target.read_many(ids * ROW, ROW, out, TIMEOUT)
                found = out.reshape(rows, ROW)
        except (urma.UrmaError, RemoteMemoryError) as error:
            self.outcome.errors[getattr(error, "name", None) or type(error).__name__] += 1
            queue_died = queue is not None and not queue.alive
        else:
            assert (found == table[ids]).all(), f"wrong bytes in {np.flatnonzero((found != table[ids]).any(axis=1))}"
            self.outcome.right += 1
            self.outcome.rows += rows
        if queue_died:
            queue.close()
            queue = None
        context.free(out)
        took = time.monotonic() - began
        assert took < PATIENCE, f"a batch took {took:.1f} s"
        self.outcome.slowest = max(self.outcome.slowest, took)
        self.outcome.batches += 1
        return queue


def soak(
    seconds: float, seed: int = 1, batches: int = 300, *, lives: int | None = None, standin: StandIn | None = None
) -> Outcome:
    """Lives of up to `batches` until `seconds` are over, or `lives` of them -> what happened.  AssertionError: a wrong byte, a
    batch without an end, or growth.
    """
    with ExitStack() as stack:
        if standin is None:
            standin = stack.enter_context(StandIn(("a", "b")))
            os.environ.update(standin.environment("a"))
        found = Soak(standin, urma.load(standin.library), seed)
        end, done, told = time.monotonic() + seconds, 0, time.monotonic()
        before: Held | None = None
        registry = _registry(standin)
        while time.monotonic() < end and (lives is None or done < lives):
            found.life(batches, end)
            done += 1
            assert _registry(standin) == registry
            if before is None:
                before = Held.now()  # the first life also loads code
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{end - told:.0f} s to go: {found.outcome}", file=sys.stderr, flush=True)
        if before is not None:
            Held.now().check_no_growth_since(before)
        return found.outcome


def _registry(standin: StandIn) -> dict[str, Any]:
    return {name: value for name, value in standin.status().items() if name in ("segments", "targets", "copying")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", file=sys.stderr, flush=True)
    try:
        print(soak(arguments.seconds, arguments.seed))
    except (AssertionError, ObmmError):
        print(f"seed {arguments.seed} failed", file=sys.stderr, flush=True)
        raise


if __name__ == "__main__":
    main()
