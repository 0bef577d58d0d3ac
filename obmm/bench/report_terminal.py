# SPDX-License-Identifier: Apache-2.0
"""Results as tables of a terminal."""

from __future__ import annotations

import itertools
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from obmm.bench import decision
from obmm.bench.headlines import counts
from obmm.bench.results import AGAIN, CLOSE, Document
from obmm.bench.units import duration, failed, figure, size

STYLES = {"emulated": "yellow", "stand-in": "magenta", "modelled": "cyan"}


def show(
    document: Document,
    console: Console,
    budgets: tuple[float, ...] = decision.BUDGETS_NS,
    *,
    full: bool = False,
) -> None:
    """One run: where, the headline figures, what was not measured and why, the decision.  `full`: and every figure."""
    where, harness = document["environment"], document["harness"]
    console.print(
        f"[bold]{escape(str(where['cpu']))}[/bold], {where['cpus']} CPUs, last-level cache {size(where['last_level_cache'])}, "
        f"kernel {escape(str(where['kernel']))}, backend {escape(str(where['backend']))}, revision {escape(str(where['git_revision']))}",
        highlight=False,
    )
    console.print(
        f"preset {escape(document['preset']['name'])}, table {size(document['preset']['footprint'])}; "
        f"{size(document['verification']['bytes'])} verified, none wrong; {harness['wall_s']:.0f} s, of which "
        f"{harness['harness_share']:.0%} harness ({harness['open_s']:.0f} s opening and filling; the rest drawing, "
        "verifying, waiting)",
        highlight=False,
    )
    headline_tables(document["headlines"], console, f"Headline figures ({document['repeat']} x)")
    if full:
        for plane in ("data", "control"):
            rows = [r for r in document["results"] if r["plane"] == plane]
            if rows:
                console.print(_every(rows, plane))
    for mark in sorted({arm["mark"] for arm in document["arms"] if arm["mark"]}):
        style = "magenta" if mark.startswith("STAND-IN") else "yellow"
        console.print(f"[{style}]{escape(mark)}[/{style}]", highlight=False)
    if any(r["caveat"] for r in document["results"]):
        console.print(f"[bold]{escape(document['control_plane_caveat'])}[/bold]", highlight=False)
    failures = sum(r["failures"] for r in document["results"])
    if failures:
        console.print(f"[red]{failures} operations failed[/red]: column `failed` of --full")
    reasons: dict[str, list[str]] = {}
    for each in document["unavailable"]:
        reasons.setdefault(each["reason"], []).append(each["arm"])
    for reason, arms in reasons.items():
        first, *rest = reason.splitlines()
        shown = reason if full or not rest else f"{first.rstrip(':')} (all of it: --full)"
        console.print(f"not run: {escape(', '.join(arms))}: {escape(shown)}", highlight=False)
    for each in document["skipped"]:
        if each["workload"] in (AGAIN, CLOSE):
            text = f"{each['arm']} ({each['workload']}): {each['reason'].splitlines()[0]}"
            console.print(f"[red]lost during the run[/red]: {escape(text)}", highlight=False)
    busy = sum(1 for r in document["results"] if r["busy"])
    if busy:
        console.print(f"{busy} of {len(document['results'])} figures were measured on a busy machine", highlight=False)
    _decisions(document, console, budgets, full)


def headline_tables(figures: list[dict[str, Any]], console: Console, title: str) -> None:
    """A row for each arm, a column for each headline; under a figure its spread, with more than one value."""
    for plane in ("data", "control"):
        chosen = [f for f in figures if f["plane"] == plane]
        names = {f["headline"]: f["title"] for f in chosen}
        if not names:
            continue
        table = Table("arm", "kind", title=f"{title}: {plane} plane", title_justify="left", box=SIMPLE_HEAD)
        for name in names:
            table.add_column(escape(name), justify="right")
        for arm, kind, marked in dict.fromkeys((f["arm"], f["kind"], bool(f["mark"])) for f in chosen):
            cells = {f["headline"]: _cell(f) for f in chosen if (f["arm"], f["kind"]) == (arm, kind)}
            shown = (cells.get(name, "-") for name in names)
            table.add_row(escape(arm), kind.upper() if marked else kind, *shown, style=STYLES.get(kind))
        console.print(table)
        console.print(
            "; ".join(f"[bold]{escape(name)}[/bold]: {escape(text)}" for name, text in names.items()), style="dim"
        )
    if any(counts(f) for f in figures):
        console.print(
            "RT: round trips to a daemon; calls: system calls for the memory; both counted in an untimed cycle",
            style="dim",
        )
    if any(f["spread"] is not None for f in figures):
        console.print("median; below it (max - min) / median of the repetitions", style="dim")


def _cell(each: dict[str, Any]) -> str:
    spread = None if each["spread"] is None else f"{each['spread']:.0%}"
    return "\n".join(filter(None, (figure(each["median"], each["unit"]), spread, counts(each))))


def _every(rows: list[dict[str, Any]], plane: str) -> Table:
    columns = ("arm", "kind", "workload", "case", "row", "x", "set", "n", "failed", "p50", "p90", "p99", "p99.9", "max")
    counted = ("RT", "calls") if plane == "control" else ()
    table = Table(*columns, *counted, title=f"{plane.capitalize()} plane", title_justify="left")
    for r in rows:
        table.add_row(
            *(escape(r["arm"]), r["kind"].upper() if r["mark"] else r["kind"]),
            *(escape(r["workload"]), escape(r["case"]), str(r["row_bytes"])),
            *(str(r["threads"]), r["temperature"], str(r["samples"]), failed(r)),
            *(duration(r[each]) for each in ("p50", "p90", "p99", "p99_9", "max")),
            *(
                "-" if r[each] is None else str(r[each])
                for each in ("round_trips", "system_calls")
                if plane == "control"
            ),
            style=STYLES.get(r["kind"]),
        )
    return table


def _decisions(document: Document, console: Console, budgets: tuple[float, ...], full: bool) -> None:
    verdicts = decision.verdicts(document, budgets)
    title = "Which path serves a step: un-hidden time at p99 (after the colon: local memory, TCP without a network)"
    table = Table("gather", title=title, title_justify="left", box=SIMPLE_HEAD)
    for budget in budgets:
        table.add_column(f"within {duration(budget)}")
    for case, group in itertools.groupby(verdicts, key=lambda v: v.case):
        cells = (f"{v.short}: {v.yardsticks}" if v.yardsticks else v.short for v in group)
        table.add_row(escape(case), *map(escape, cells))
    console.print(table)
    console.print(escape(decision.sentence(document, budgets)), style="bold", highlight=False)
    if full:
        for verdict in verdicts:
            console.print(f"[bold]{escape(verdict_line(verdict))}[/bold] {escape(verdict.why)}", highlight=False)
    elif verdicts:
        console.print(f"why, of the last: {escape(verdicts[-1].why)}; of all: --full", highlight=False)


def verdict_line(verdict: decision.Verdict) -> str:
    """The shape, the budget and the answer."""
    answer = verdict.arm or "none"
    return f"{verdict.case} within {duration(verdict.budget_ns)}: {answer}."
