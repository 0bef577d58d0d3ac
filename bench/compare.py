# SPDX-License-Identifier: Apache-2.0
"""Two result files side by side, as ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from obmm.bench.results import Document

KEY = ("arm", "kind", "workload", "case", "row_bytes", "tables", "count", "threads", "temperature")
UNLIKE = ("cpu", "cpus", "kernel", "last_level_cache", "backend", "page_size")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One case in both files: the second's time over the first's; above 1 it got slower.

    A time of 0 is one that the clock could not tell from its own cost, `clock_ns`.
    """

    case: dict[str, Any]
    first_ns: float
    second_ns: float
    clock_ns: float = 0.0

    @property
    def ratio(self) -> float:
        """At least so much slower, or faster, where one of the two is below the clock."""
        if self.first_ns and self.second_ns:
            return self.second_ns / self.first_ns
        if self.second_ns:
            return max(1.0, self.second_ns / self.clock_ns) if self.clock_ns else math.inf
        return min(1.0, self.clock_ns / self.first_ns) if self.first_ns else 1.0


def ratios(first: Document, second: Document, percentile: str) -> list[Ratio]:
    """Of every case that both files have that percentile of."""
    before = {tuple(r[k] for k in KEY): r for r in first["results"]}
    clock = max(value for document in (first, second) for value in document["timer"].values())
    found = []
    for result in second["results"]:
        old = before.get(tuple(result[k] for k in KEY))
        if old is not None and old[percentile] is not None and result[percentile] is not None:
            found.append(Ratio(result, old[percentile], result[percentile], clock))
    return found


def missing(first: Document, second: Document, percentile: str) -> list[dict[str, Any]]:
    """Cases of the first that the second has not that percentile of: it did not run them, or not often enough."""
    there = {tuple(r[k] for k in KEY) for r in second["results"] if r[percentile] is not None}
    return [r for r in first["results"] if r[percentile] is not None and tuple(r[k] for k in KEY) not in there]


def differences(first: Document, second: Document) -> list[str]:
    """What makes the two runs hard to compare."""
    one, two = first["environment"], second["environment"]
    unlike = [f"{key}: {one.get(key)} / {two.get(key)}" for key in UNLIKE if one.get(key) != two.get(key)]
    if first["preset"]["footprint"] != second["preset"]["footprint"]:
        unlike.append(f"footprint: {first['preset']['footprint']} / {second['preset']['footprint']}")
    return unlike
