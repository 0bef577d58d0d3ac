# SPDX-License-Identifier: Apache-2.0
"""Two result files side by side, as ratios, and whether a ratio is more than what the figures wander by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from obmm.bench.results import Document

KEY = ("arm", "kind", "workload", "case", "row_bytes", "tables", "count", "threads", "temperature")
UNLIKE = (
    *("cpu", "cpus", "kernel", "last_level_cache", "backend", "page_size", "governor", "numa_nodes"),
    *("driver_profile", "shared_memory_huge_pages", "git_revision", "machine", "python", "numpy"),
)
TAIL = 3.0
"""A p99 that grew by so many times the threshold is told, whatever the percentile that was asked for did."""
USUAL = 1.1
"""What is called slower when no threshold is given."""
Verdict = Literal["slower", "faster", "same", "no spread"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One case in both files: the second's time over the first's; above 1 it got slower.

    A time of 0 is one that the clock could not tell from its own cost, `clock_ns`.  `noise`: how far such a figure wanders
    between repetitions, and between the fifths of one run, as a part of itself; None where no file says.  `busy`: measured
    while other processes used the machine, in either file.
    """

    case: dict[str, Any]
    first_ns: float
    second_ns: float
    clock_ns: float = 0.0
    noise: float | None = None
    busy: bool = False
    tail: float | None = None
    """The same of the p99s."""

    @property
    def ratio(self) -> float:
        """At least so much slower, or faster, where one of the two is below the clock."""
        return _ratio(self.first_ns, self.second_ns, self.clock_ns)

    def verdict(self, threshold: float = USUAL) -> Verdict:
        """Whether the second is slower or faster by more than `threshold` and by more than its noise."""
        if self.noise is None:
            return "no spread"
        least = max(threshold, 1 + self.noise)
        if self.ratio > least:
            return "slower"
        return "faster" if self.ratio * least < 1 else "same"

    def beyond(self, threshold: float) -> bool:
        """Whether it is slower, or its tail is, by more than `threshold`: as `verdict`, and without a known noise too."""
        least = max(threshold, 1 + (self.noise or 0.0))
        return self.ratio > least or (self.tail is not None and not self.busy and self.tail > TAIL * least)


def _ratio(first: float, second: float, clock: float) -> float:
    if first and second:
        return second / first
    if second:
        return max(1.0, second / clock) if clock else math.inf
    return min(1.0, clock / first) if first else 1.0


def ratios(first: Document, second: Document, percentile: str) -> list[Ratio]:
    """Of every case that both files have that percentile of."""
    before = {tuple(r[k] for k in KEY): r for r in first["results"]}
    clock = max(value for document in (first, second) for value in document["timer"].values())
    wander = {arm["name"]: between_runs((first, second), arm["name"], percentile) for arm in second["arms"]}
    found = []
    for result in second["results"]:
        old = before.get(tuple(result[k] for k in KEY))
        if old is None or old[percentile] is None or result[percentile] is None:
            continue
        tails = (old["p99"], result["p99"])
        tail = None if percentile == "p99" or None in tails else _ratio(*tails, clock)
        between = wander.get(result["arm"])
        noise = None if between is None else max(between, _within(old), _within(result))
        busy = old["busy"] or result["busy"]
        found.append(Ratio(result, old[percentile], result[percentile], clock, noise, busy, tail))
    return found


def between_runs(documents: Sequence[Document], arm: str, percentile: str) -> float | None:
    """The largest spread of an arm's headline figures of that kind, p99s or the others, over the repetitions of each file;
    None unless all files were repeated.  Of an arm without any: the largest of all arms.
    """
    if any(document["repeat"] < 2 for document in documents):
        return None
    figures = [f for document in documents for f in document["headlines"] if f["spread"] is not None]
    alike = [f for f in figures if f["title"].endswith("p99") == (percentile == "p99")] or figures
    own = [f for f in alike if f["arm"] == arm] or alike
    return max((f["spread"] for f in own), default=None)


def _within(result: dict[str, Any]) -> float:
    """How far the fifths of a case lie apart."""
    blocks = sorted(result["blocks"])
    return (blocks[-1] - blocks[0]) / blocks[len(blocks) // 2] if blocks and blocks[len(blocks) // 2] else 0.0


def missing(first: Document, second: Document, percentile: str) -> list[dict[str, Any]]:
    """Cases of the first that the second has not that percentile of: it did not run them, or not often enough."""
    there = {tuple(r[k] for k in KEY) for r in second["results"] if r[percentile] is not None}
    return [r for r in first["results"] if r[percentile] is not None and tuple(r[k] for k in KEY) not in there]


@dataclass(frozen=True, slots=True)
class Difference:
    """A condition that is not the same in both; `name` is what ``--allow`` takes."""

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.name}: {self.first} / {self.second}"


def differences(first: Document, second: Document) -> list[Difference]:
    """What makes the two runs hard to compare."""
    one, two = first["environment"], second["environment"]
    pairs: list[tuple[str, Any, Any]] = [(key, one.get(key), two.get(key)) for key in UNLIKE]
    presets = first["preset"], second["preset"]
    pairs += [
        (key, presets[0][name], presets[1][name]) for key, name in (("footprint", "footprint"), ("preset", "name"))
    ]
    arms = [{arm["name"]: arm for arm in d["arms"]} for d in (first, second)]
    for name in arms[0].keys() & arms[1].keys():
        pair = arms[0][name], arms[1][name]
        # sockets of emulated nodes and files of stand-ins have another name each time; the backend of all is compared above
        keys = ("pages", "kind") if pair[0]["mark"] else ("pages", "kind", "backend")
        pairs += [(key, f"{name} {pair[0][key]}", f"{name} {pair[1][key]}") for key in keys]
        one, two = pair[0]["facts"], pair[1]["facts"]
        pairs += [
            ("facts", f"{name} {key} {one.get(key)}", f"{name} {key} {two.get(key)}") for key in one if key != "library"
        ]
    return [Difference(key, str(a), str(b)) for key, a, b in pairs if a != b]
