# SPDX-License-Identifier: Apache-2.0
"""Which path serves a step budget, from measured numbers: the un-hidden time at p99.

A gather that starts when a window of `budget` opens delays the step by what of it is not hidden: max(0, p99 - budget).
A path on which operations failed serves none, and one whose slowest operations miss the budget by far is told with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from obmm.bench.results import Document
from obmm.bench.units import duration

BUDGETS_NS = (56_000.0, 784_000.0, 1_275_000.0)
"""One layer of a fast step, fourteen of them, one layer of a slow step (Engram specification 9.2)."""
GATHERS = ("row", "batch", "step", "row-size", "tables")
REACH = ("hardware", "network")
"""What reaches another node's memory.  What serves this node alone, and TCP without a network, are yardsticks."""
_YARDSTICKS = (
    ("local", "local", "the table in this node's own memory"),
    ("loopback", "tcp", "TCP without a network"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """For one shape of gather and one budget: the path, or None, and the sentence that says why."""

    case: str
    row_bytes: int
    rows: int
    budget_ns: float
    arm: str | None
    unhidden_ns: float
    why: str
    late_ns: float = 0.0
    """By how much the tail (p99.9, else the slowest) of the path named here misses the budget."""
    yardsticks: str = ""
    """How local memory and TCP without a network would do, in a few words."""

    @property
    def short(self) -> str:
        """The answer in a few words."""
        if self.arm:
            return f"{self.arm} (tail +{duration(self.late_ns)})" if self.late_ns else self.arm
        return f"none{f' (+{duration(self.unhidden_ns)})' if self.unhidden_ns else ''}"


def verdicts(document: Document, budgets: tuple[float, ...] = BUDGETS_NS) -> list[Verdict]:
    """One for every gather that was measured and every budget, in that order."""
    shapes: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for result in document["results"]:
        if result["workload"] in GATHERS and result["temperature"] != "hot":
            shapes.setdefault((result["row_bytes"], result["tables"], result["count"]), []).append(result)
    titles = {r["arm"]: r["arm"] for r in document["results"]}
    titles |= {arm["name"]: arm["title"] for arm in document["arms"]}
    return [
        _decide(_shape(row_bytes, tables, count), row_bytes, tables * count, budget, results, titles)
        for (row_bytes, tables, count), results in sorted(shapes.items(), key=lambda item: _order(*item[0]))
        for budget in budgets
    ]


def _order(row_bytes: int, tables: int, count: int) -> tuple[int, int, int]:
    return tables, count, row_bytes


def _shape(row_bytes: int, tables: int, count: int) -> str:
    what = f"{tables} tables x {count} tokens" if tables > 1 else "one row" if count == 1 else f"{count} rows"
    return f"{what} of {row_bytes} B"


def _decide(
    case: str, row_bytes: int, rows: int, budget: float, results: list[dict[str, Any]], titles: dict[str, str]
) -> Verdict:
    measured = [r for r in results if r["p99"] is not None]
    reaching = [r for r in measured if r["kind"] in REACH]
    notes, short = [], []
    for kind, name, what in _YARDSTICKS:
        each = min((r for r in measured if r["kind"] == kind), key=lambda r: r["p99"], default=None)
        if each is not None:
            left = max(0.0, each["p99"] - budget)
            fits = f"would leave {duration(left)}" if left else "would be hidden"
            notes.append(f"{what} {fits} ({duration(each['p99'])})")
            short.append(f"{name} {f'+{duration(left)}' if left else 'fits'}")
    yardsticks = ", ".join(short)
    if any(r["temperature"] == "hot/limited" for r in reaching):
        notes.append("measured over less than 4 times the last-level cache: a table of that size or more takes longer")
    excluded = sorted({titles[r["arm"]] for r in results if r["mark"]})
    if excluded:
        notes.append(f"no basis for a decision: {', '.join(excluded)} (not hardware)")
    if not reaching:
        why = "; ".join(["no path to another node was measured", *notes])
        return Verdict(case, row_bytes, rows, budget, None, 0.0, why, yardsticks=yardsticks)
    # what fails is not a path; then the least un-hidden time, the shortest tail, and what leaves the most of the budget
    best = min(
        reaching, key=lambda r: (_failing(r), max(0.0, r["p99"] - budget), max(0.0, _tail(r) - budget), r["p99"])
    )
    unhidden, late = max(0.0, best["p99"] - budget), max(0.0, _tail(best) - budget)
    name = f"{titles[best['arm']]}, {best['threads']} thread{'s' if best['threads'] > 1 else ''}"
    others = [f"{titles[r['arm']]} x{r['threads']} {duration(r['p99'])}" for r in reaching if r is not best]
    why = f"{name}: p99 {duration(best['p99'])} against {duration(budget)}"
    if best["failures"]:
        why += f", {best['failures']} of {best['failures'] + best['samples']} failed: nothing measured serves it"
    elif unhidden:
        why += f", {duration(unhidden)} of every hundredth step un-hidden: nothing measured serves it"
    elif late:
        why += f", hidden in 99 of 100 steps; its tail of {duration(_tail(best))} is not"
    else:
        why += ", all hidden"
    if best["busy"]:
        notes.append("measured on a busy machine")
    if others:
        why += f" (others: {', '.join(others)})"
    arm = None if unhidden or best["failures"] else best["arm"]
    return Verdict(
        case, row_bytes, rows, budget, arm, unhidden, "; ".join([why, *notes]), late if arm else 0.0, yardsticks
    )


def _failing(result: dict[str, Any]) -> bool:
    return bool(result["failures"])


def _tail(result: dict[str, Any]) -> float:
    """p99.9 where it was measured, else the slowest operation."""
    return float(result["max"] if result["p99_9"] is None else result["p99_9"])


def sentence(document: Document, budgets: tuple[float, ...] = BUDGETS_NS) -> str:
    """What the table of verdicts means, and what is missing for it to mean more."""
    found = verdicts(document, budgets)
    reaching = sorted({r["arm"] for r in document["results"] if r["kind"] in REACH and r["workload"] in GATHERS})
    missing = []
    if not any(r["kind"] == "hardware" for r in document["results"]):
        missing.append("a run on UB hardware (OBMM_DEVICE=/dev/obmm)")
    if not any(r["kind"] == "network" for r in document["results"]):
        missing.append("TCP to another machine (`obmm bench serve` there, `obmm bench run HOST:PORT` here)")
    if any(r["busy"] for r in document["results"] if r["workload"] in GATHERS):
        missing.append("a quiet machine: some gathers were measured beside other work")
    lacks = f" Missing: {'; '.join(missing)}." if missing else ""
    if not found:
        return f"No gather was measured, so nothing can be decided.{lacks}"
    if not reaching:
        return (
            "This run decides nothing: no path that it measured reaches another node, emulated and stand-in arms are no "
            f"basis.{lacks}"
        )
    served = [v for v in found if v.arm]
    if not served:
        return f"Of {', '.join(reaching)}, none hides any of these gathers within its budget.{lacks}"
    names = sorted({v.arm for v in served if v.arm})
    late = sum(1 for v in served if v.late_ns)
    tail = f"; in {late} of them the slowest steps are late all the same" if late else ""
    return f"{', '.join(names)} hide{'s' if len(names) == 1 else ''} {len(served)} of {len(found)} gathers within their budgets{tail}.{lacks}"
