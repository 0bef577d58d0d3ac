# SPDX-License-Identifier: Apache-2.0
"""Results as tables of a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from obmm.bench import decision
from obmm.bench.results import Document, duration, size

STYLES = {"emulated": "yellow", "stand-in": "magenta"}


def show(document: Document, console: Console, budgets: tuple[float, ...] = decision.BUDGETS_NS) -> None:
    """Everything of one run: where, what, what not and why, and the decision."""
    where = document["environment"]
    console.print(
        f"[bold]{escape(str(where['cpu']))}[/bold], {where['cpus']} CPUs, last-level cache {size(where['last_level_cache'])}, "
        f"kernel {where['kernel']}, backend {where['backend']}, revision {where['git_revision']}, "
        f"table {size(document['preset']['footprint'])}, {size(document['verification']['bytes'])} verified",
        highlight=False,
    )
    table = Table("arm", "kind", "workload", "case", "row", "x", "set", "n", "p50", "p90", "p99", "p99.9", "max")
    for r in document["results"]:
        style = STYLES.get(r["kind"])
        table.add_row(
            *(r["arm"], r["kind"].upper() if r["mark"] else r["kind"], r["workload"], r["case"], str(r["row_bytes"])),
            *(str(r["threads"]), r["temperature"], str(r["samples"])),
            *(duration(r[each]) for each in ("p50", "p90", "p99", "p99_9", "max")),
            style=style,
        )
    console.print(table)
    if any(r["mark"] for r in document["results"]):
        console.print(
            "[yellow]EMULATED[/yellow] and [magenta]STAND-IN[/magenta] rows: local memory of this host answers; "
            f"they say nothing about hardware; {document['control_plane_caveat']}"
        )
    for each in document["unavailable"]:
        console.print(f"not run: {each['arm']}: {escape(each['reason'])}", highlight=False)
    for verdict in decision.verdicts(document, budgets):
        console.print(f"[bold]{escape(verdict_line(verdict))}[/bold] {escape(verdict.why)}", highlight=False)


def verdict_line(verdict: decision.Verdict) -> str:
    """The shape, the budget and the answer."""
    answer = verdict.arm or "none"
    return f"{verdict.case} within {duration(verdict.budget_ns)}: {answer}."
