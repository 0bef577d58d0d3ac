# SPDX-License-Identifier: Apache-2.0
"""What `obmm bench compare` says: a table for people, one object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from obmm.bench.compare import TAIL, USUAL, Difference, Ratio
from obmm.bench.units import duration
from obmm.cli.output import console

FORMAT, VERSION = "obmm-bench-compare", 1
Rows = Sequence[dict[str, Any]]
NO_SPREAD = "no verdicts: how far figures wander by themselves is only known of runs with --repeat 2 or more"
_NAMES = ("arm", "kind", "workload", "case", "row_bytes", "tables", "count", "threads", "temperature")


def compared_json(
    found: Sequence[Ratio],
    gone: Rows,
    unlike: Sequence[Difference],
    slow: Sequence[Ratio],
    percentile: str,
    threshold: float | None,
    failed: bool,
) -> dict[str, Any]:
    """The object; times in nanoseconds."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "percentile": percentile,
        "threshold": threshold,
        "ok": not failed,
        "differences": [{"name": d.name, "first": d.first, "second": d.second} for d in unlike],
        "cases": [
            {
                **{name: each.case[name] for name in _NAMES},
                "first_ns": each.first_ns,
                "second_ns": each.second_ns,
                "ratio": each.ratio,
                "p99_ratio": each.tail,
                "noise": each.noise,
                "busy": each.busy,
                "verdict": each.verdict(threshold or USUAL),
                "beyond": each in slow,
            }
            for each in found
        ],
        "missing": [{name: each[name] for name in _NAMES} for each in gone],
    }


def compared_text(
    found: Sequence[Ratio],
    gone: Rows,
    unlike: Sequence[Difference],
    slow: Sequence[Ratio],
    percentile: str,
    threshold: float | None,
) -> None:
    """The table, and on standard error what must be known to read it."""
    for each in unlike:
        click.echo(f"not alike, so ratios mean less: {each}", err=True)
    table = Table("arm", "kind", "workload", "case", "x", f"A {percentile}", f"B {percentile}", "B/A", "noise", "")
    for ratio in found:
        table.add_row(*_row(ratio, threshold, ratio in slow))
    console().print(table)
    if all(ratio.noise is None for ratio in found):
        click.echo(NO_SPREAD, err=True)
    for arm, workload in dict.fromkeys((each["arm"], each["workload"]) for each in gone):
        cases = [each["case"] for each in gone if (each["arm"], each["workload"]) == (arm, workload)]
        click.echo(f"only in A: {arm}, {workload}: {', '.join(dict.fromkeys(cases))}", err=True)
    busy = sum(ratio.busy for ratio in found)
    if busy:
        click.echo(f"{busy} of {len(found)} cases were measured on a busy machine (marked *)", err=True)
    if threshold is None:
        return
    if slow:
        text = f"{len(slow)} of {len(found)} cases are slower than {threshold} times A"
        tails = sum(1 for ratio in slow if ratio.ratio <= threshold)
        text += f", {tails} of them only in their p99, by more than {TAIL:.0f} times that" if tails else ""
        click.echo(text, err=True)
    if gone:
        click.echo(f"{len(gone)} cases of A are not in B: nothing says that they are not slower", err=True)
    if unlike:
        names = ", ".join(sorted({each.name for each in unlike}))
        click.echo(f"the conditions differ: {names}; --allow NAME lets one differ", err=True)


def _row(ratio: Ratio, threshold: float | None, late: bool) -> tuple[str, ...]:
    case = ratio.case
    verdict = ratio.verdict(threshold or USUAL)
    shown = f"{ratio.ratio:.2f}"
    return (
        escape(case["arm"]),
        case["kind"],
        escape(f"{case['workload']} ({case['temperature']})"),
        escape(case["case"]) + ("*" if ratio.busy else ""),
        str(case["threads"]),
        duration(ratio.first_ns),
        duration(ratio.second_ns),
        f"[red]{shown}[/red]" if late else shown,
        "-" if ratio.noise is None else f"{ratio.noise:.0%}",
        "" if verdict in ("no spread", "same") else verdict,
    )
