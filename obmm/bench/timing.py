# SPDX-License-Identifier: Apache-2.0
"""Clocks: nothing but the call itself is between two readings, and the readings' own cost is subtracted."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.bench.compiled import library, pointer
from obmm.errors import ObmmError

QUANTILES = np.linspace(0.0, 1.0, 101)
NEEDED = {"p50": 1, "p90": 10, "p99": 100, "p99_9": 1000}
BLOCKS = 5
MOST_FAILURES = 100
MOST_FAILING_S = 15.0


def percentiles(values: Sequence[float] | NDArray[np.number[Any]], *quantiles: float) -> tuple[float, ...]:
    """Of one or more values, in their unit; `quantiles` in percent.  Between two values it is interpolated."""
    return tuple(float(each) for each in np.percentile(values, quantiles))


@dataclass(frozen=True, slots=True)
class Timer:
    """Nanoseconds that an empty measurement takes, from C and from Python."""

    c_ns: float
    python_ns: float

    @classmethod
    def measure(cls) -> Timer:
        empty = np.zeros(20_000, np.uint64)
        library().bench_timer(len(empty), pointer("uint64_t[]", empty))
        nothing = _nothing
        times = []
        for _ in range(20_000):
            began = time.perf_counter_ns()
            nothing()
            times.append(time.perf_counter_ns() - began)
        return cls(float(np.median(empty)), float(np.median(times)))


def _nothing() -> None:
    """What the Python timer's overhead is measured on."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one operation needs, as counted in an untimed one."""

    round_trips: int
    system_calls: int


class Series:
    """Times of one case, one per operation; operations that failed are counted."""

    def __init__(self, timer: Timer, seed: int = 0) -> None:
        self._timer = timer
        self.seed = seed
        """What its random numbers follow from."""
        self._times: list[float] = []
        self.busy_ns = 0.0
        """How long the clock ran, of the time that passed."""
        self.failures = 0
        self.timeouts = 0
        """Of the failures, those that ended at a deadline."""
        self.reason = ""
        self._failing: float | None = None
        """Since when nothing has worked: an operation may fail by a time-out of its own."""
        self.counts: Counts | None = None
        self.steps: dict[str, Series] = {}

    def step(self, name: str) -> Series:
        """The times of one step of each operation; made when first asked for."""
        return self.steps.setdefault(name, Series(self._timer, self.seed))

    def random(self, thread: int = 0) -> np.random.Generator:
        """The random numbers of one thread of this case, shared with no other."""
        return np.random.default_rng((self.seed, thread))

    @property
    def times(self) -> list[float]:
        """Of all operations, in their order, nanoseconds."""
        return self._times

    @property
    def samples(self) -> int:
        return len(self._times)

    def failed(self, reason: ObmmError) -> None:
        """Count an operation that failed; the hundredth is raised, or the one after which nothing worked for 15 seconds."""
        self.failures += 1
        self.timeouts += reason.errno in (errno.ETIMEDOUT, errno.ETIME)
        self.reason = self.reason or str(reason)
        now = time.monotonic()
        if self._failing is None:
            self._failing = now
        if self.failures >= MOST_FAILURES or now - self._failing > MOST_FAILING_S:
            raise reason

    def loop(
        self,
        draw: Callable[[], object],
        call: Callable[[], object],
        check: Callable[[], object],
        most: int,
        seconds: float,
    ) -> None:
        """`draw` the indices, then time `call`, then `check`: at least 100 times if `most` allows, else for `seconds`."""
        clock = time.perf_counter_ns
        draw()
        call()  # the first one faults pages in and is not a sample
        check()
        end = time.monotonic() + seconds
        for done in range(most):
            if done >= min(NEEDED["p99"], most) and time.monotonic() > end:
                break
            draw()
            began = clock()
            try:
                call()
            except ObmmError as error:
                self.failed(error)
                continue
            took = clock() - began
            check()
            self.add(took)

    def add(self, ns: float) -> None:
        """One operation, timed from Python."""
        self._failing = None
        self.busy_ns += ns
        self._times.append(max(ns - self._timer.python_ns, 0.0))

    def add_c(self, ns: NDArray[np.uint64], parts: int = 1, at_once: int = 1) -> None:
        """Samples of a C loop; `parts`: a sample is so many operations; `at_once`: so many threads ran such a loop."""
        self.busy_ns += float(ns.sum()) / at_once
        self._times.extend((np.maximum(ns.astype(np.float64) - self._timer.c_ns, 0.0) / parts).tolist())

    def summary(self) -> dict[str, object]:
        """What `summarised` says of the times, and how many operations failed."""
        return {**summarised(self._times), "failures": self.failures, "timeouts": self.timeouts}


def summarised(samples: Sequence[float]) -> dict[str, object]:
    """Percentiles in nanoseconds, None where there are too few samples to speak of one; `blocks`: the medians of
    consecutive fifths, which tell how much a figure wanders by itself.
    """
    times = np.array(samples)
    shown: dict[str, object] = {"samples": len(times)}
    for name, needed in NEEDED.items():
        (value,) = percentiles(times, float(name[1:].replace("_", "."))) if len(times) >= needed else (None,)
        shown[name] = value
    cdf = [round(float(v), 1) for v in np.quantile(times, QUANTILES)]
    blocks = [float(np.median(part)) for part in np.array_split(times, BLOCKS)] if len(times) >= 4 * BLOCKS else []
    return {**shown, "max": float(times.max()), "mean": float(times.mean()), "cdf": cdf, "blocks": blocks}
