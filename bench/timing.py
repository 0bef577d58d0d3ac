# SPDX-License-Identifier: Apache-2.0
"""Clocks: nothing but the call itself is between two readings, and the readings' own cost is subtracted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from obmm.bench.compiled import ffi, library

QUANTILES = np.linspace(0.0, 1.0, 101)
NEEDED = {"p50": 1, "p90": 10, "p99": 100, "p99_9": 1000}


@dataclass(frozen=True, slots=True)
class Timer:
    """Nanoseconds that an empty measurement takes, from C and from Python."""

    c_ns: float
    python_ns: float

    @classmethod
    def measure(cls) -> Timer:
        empty = np.zeros(20_000, np.uint64)
        library().bench_timer(len(empty), ffi.from_buffer("uint64_t[]", empty))
        nothing = _nothing
        times = []
        for _ in range(20_000):
            began = time.perf_counter_ns()
            nothing()
            times.append(time.perf_counter_ns() - began)
        return cls(float(np.median(empty)), float(np.median(times)))


def _nothing() -> None:
    """What the Python timer's overhead is measured on."""


class Series:
    """Times of one case, one per operation."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._times: list[float] = []
        self.busy_ns = 0.0

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
        end = time.monotonic() + seconds
        draw()
        call()  # the first one faults pages in and is no sample
        check()
        for done in range(most):
            if done >= min(NEEDED["p99"], most) and time.monotonic() > end:
                break
            draw()
            began = clock()
            call()
            took = clock() - began
            check()
            self.add(took)

    def add(self, ns: float, overhead: float | None = None) -> None:
        self.busy_ns += ns
        self._times.append(max(ns - (self._timer.python_ns if overhead is None else overhead), 0.0))

    def add_c(self, ns: NDArray[np.uint64], parts: int = 1) -> None:
        """Samples of C loops; `parts`: a sample is so many operations."""
        self.busy_ns += float(ns.sum())
        self._times.extend((np.maximum(ns.astype(np.float64) - self._timer.c_ns, 0.0) / parts).tolist())

    def summary(self) -> dict[str, object]:
        """Percentiles in nanoseconds, None where there are too few samples to speak of one."""
        times = np.array(self._times)
        shown: dict[str, object] = {"samples": len(times)}
        for name, needed in NEEDED.items():
            quantile = float(name[1:].replace("_", ".")) / 100
            shown[name] = float(np.quantile(times, quantile)) if len(times) >= needed else None
        cdf = [round(float(v), 1) for v in np.quantile(times, QUANTILES)]
        return {**shown, "max": float(times.max()), "mean": float(times.mean()), "cdf": cdf}
