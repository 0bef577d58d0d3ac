# SPDX-License-Identifier: Apache-2.0
"""Results as one self-contained HTML page: no script, nothing loaded from anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from obmm.bench import decision, plots
from obmm.bench.results import Document, duration, size

_PAGE = Template(Path(__file__).with_name("report.html").read_text())
_PERCENTILES = ("p50", "p90", "p99", "p99_9", "max")


def page(
    documents: Sequence[Document], names: Sequence[str], budgets: tuple[float, ...], drawn: Callable[[], object]
) -> str:
    """The page; `drawn` is called after each document."""
    parts = []
    for document, name in zip(documents, names, strict=True):
        parts.append("\n".join(_run(document, name, budgets)))
        drawn()
    return _PAGE.substitute(runs="\n".join(parts))


def _run(document: Document, name: str, budgets: tuple[float, ...]) -> Iterable[str]:
    where, harness = document["environment"], document["harness"]
    yield f"<section><h2>{escape(name)}</h2>"
    yield (
        f"<p class=where>{escape(str(where['cpu']))} &middot; {where['cpus']} CPUs &middot; last-level cache "
        f"{size(where['last_level_cache'])} &middot; kernel {escape(str(where['kernel']))} &middot; backend "
        f"<b>{escape(str(where['backend']))}</b> &middot; revision {escape(str(where['git_revision']))} &middot; {document['created']}</p>"
    )
    marked = [arm for arm in document["arms"] if arm["mark"]]
    if marked:
        kinds = sorted({arm["mark"] for arm in marked})
        yield f"<p class=warn>{'<br>'.join(map(escape, kinds))}<br>Marked in every row, dashed or hatched in every plot; {escape(document['control_plane_caveat'])}.</p>"
    yield "<div class=tiles>"
    for value, label in (
        (size(document["preset"]["footprint"]), f"table, preset {document['preset']['name']}"),
        (size(document["verification"]["bytes"]), "verified after timing, no byte wrong"),
        (f"{harness['wall_s']:.0f} s", f"run, {harness['harness_share']:.0%} of it harness"),
        (
            f"{document['timer']['python_overhead_ns']:.0f} / {document['timer']['c_overhead_ns']:.0f} ns",
            "cost of the clock (Python / C), subtracted",
        ),
    ):
        yield f"<div class=tile><b>{escape(value)}</b><span>{escape(label)}</span></div>"
    yield "</div><h3>Which path serves a step</h3>"
    yield from _decisions(document, budgets)
    yield "<div class=plots>"
    for title, svg in plots.all_plots(document):
        yield f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
    yield "</div>"
    yield from _tables(document)
    yield from _missing(document)
    yield "<details><summary>Environment</summary><table>"
    yield from (f"<tr><th>{escape(k.replace('_', ' '))}<td>{escape(str(v))}" for k, v in where.items())
    yield "</table></details></section>"


def _decisions(document: Document, budgets: tuple[float, ...]) -> Iterable[str]:
    yield "<p>Un-hidden time at p99 of a gather that starts when the window opens. The reason is behind each cell.</p>"
    verdicts = decision.verdicts(document, budgets)
    yield (
        "<table class=decide><thead><tr><th>gather<th>rows" + "".join(f"<th>{duration(b)}" for b in budgets) + "<tbody>"
    )
    for (case, rows), group in itertools.groupby(verdicts, key=lambda v: (v.case, v.rows)):
        yield f"<tr><td>{escape(case)}<td class=n>{rows:,}"
        for v in group:
            answer = (
                f"<b>{escape(v.arm)}</b>"
                if v.arm
                else f"none{f' (+{duration(v.unhidden_ns)})' if v.unhidden_ns else ''}"
            )
            yield f"<td class={'yes' if v.arm else 'no'}><details><summary>{answer}</summary>{escape(v.why)}</details>"
    yield "</table>"


def _tables(document: Document) -> Iterable[str]:
    for plane in ("data", "control"):
        rows: list[dict[str, Any]] = [r for r in document["results"] if r["plane"] == plane]
        if not rows:
            continue
        yield f"<h3>{plane.capitalize()} plane</h3>"
        if plane == "control" and any(r["mark"] for r in rows):
            yield f"<p class=warn>{escape(document['control_plane_caveat'].capitalize())}.</p>"
        yield "<table><thead><tr><th>arm<th>kind<th>workload<th>case<th>row B<th>threads<th>set<th>n<th>p50<th>p90<th>p99<th>p99.9<th>max<tbody>"
        for r in rows:
            kind = f"<mark>{escape(r['kind'].upper())}</mark>" if r["mark"] else escape(r["kind"])
            cells = "".join(f"<td class=n>{duration(r[each])}" for each in _PERCENTILES)
            yield (
                f"<tr><td>{escape(r['arm'])}<td>{kind}<td>{escape(r['workload'])}<td>{escape(r['case'])}<td class=n>{r['row_bytes']}"
                f"<td class=n>{r['threads']}<td>{escape(r['temperature'])}<td class=n>{r['samples']}{cells}"
            )
        yield "</table>"


def _missing(document: Document) -> Iterable[str]:
    yield "<h3>What was not measured, and why</h3><ul>"
    for each in document["unavailable"]:
        yield f"<li><b>{escape(each['title'])}</b>: {escape(each['reason'])}"
    for each in document["skipped"]:
        yield f"<li>{escape(each['arm'])}, {escape(each['workload'])}: {escape(each['reason'])}"
    yield "</ul>"
