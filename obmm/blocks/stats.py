# SPDX-License-Identifier: Apache-2.0
"""What a store has done so far."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm.blocks.reasons import SUCCESSES, Reason


class BlockStats:
    """Counters; added to by any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._hits = self._stored = self._existed = 0
        self._misses: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._bytes = Counter(loaded=0, stored=0)
        self._batches = Counter(get=0, put=0, lookup=0)
        self._seconds = {"get": 0.0, "put": 0.0, "lookup": 0.0}
        self._questions: Counter[str] = Counter()
        self._noticed = 0
        self._attached = 0

    def got(self, reasons: npt.NDArray[np.int8], moved: int, seconds: float) -> None:
        with self._mutex:
            hits = int((reasons == Reason.OK).sum())
            self._hits += hits
            self._batches["get"] += 1
            self._bytes["loaded"] += moved
            self._seconds["get"] += seconds
            if hits < len(reasons):
                self._count(self._misses, reasons)

    def put(self, reasons: npt.NDArray[np.int8], moved: int, seconds: float) -> None:
        with self._mutex:
            self._stored += int((reasons == Reason.OK).sum())
            self._existed += int((reasons == Reason.EXISTED).sum())
            self._batches["put"] += 1
            self._bytes["stored"] += moved
            self._seconds["put"] += seconds
            self._count(self._failed, reasons)

    def looked_up(self, keys: int, asked: int, seconds: float) -> None:
        with self._mutex:
            self._batches["lookup"] += 1
            self._seconds["lookup"] += seconds
            self._questions["keys"] += keys
            self._questions["keys_asked"] += asked

    def asked(self, what: str) -> None:
        with self._mutex:
            self._questions[what] += 1

    def noticed(self, evictions: int) -> None:
        with self._mutex:
            self._noticed += evictions

    def attached(self) -> None:
        with self._mutex:
            self._attached += 1

    def snapshot(self) -> dict[str, Any]:
        """All of it, ready for JSON; seconds and bytes are sums."""
        with self._mutex:
            return {
                "hits": self._hits,
                "misses": dict(self._misses),
                "stored": self._stored,
                "existed": self._existed,
                "not_stored": dict(self._failed),
                "bytes": dict(self._bytes),
                "batches": dict(self._batches),
                "seconds": dict(self._seconds),
                "questions": dict(self._questions),
                "evictions_noticed": self._noticed,
                "attached": self._attached,
            }

    def _count(self, where: Counter[str], reasons: npt.NDArray[np.int8]) -> None:
        for value, count in zip(*np.unique(reasons, return_counts=True), strict=True):
            reason = Reason(int(value))
            if reason not in SUCCESSES:
                where[reason.name.lower()] += int(count)
