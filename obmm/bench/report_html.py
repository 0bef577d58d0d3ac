# SPDX-License-Identifier: Apache-2.0
"""Results as one self-contained HTML page: no script, nothing loaded from anywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from obmm.bench import decision, headlines, plots, published
from obmm.bench.model import Step, step_model
from obmm.bench.results import Document
from obmm.bench.units import duration, failed, figure, size
from obmm.emulator.profile import Profile, names

_PAGE = Template(Path(__file__).with_name("report.html").read_text())
MODELLED = ((1536, 264), (1536, 1364))
"""The steps that every profile is asked for."""
_PERCENTILES = ("p50", "p90", "p99", "p99_9", "max")
LOCAL = "local"
"""The arm that others are told as multiples of."""
Rows = list[dict[str, Any]]


def page(
    documents: Sequence[Document], titles: Sequence[str], budgets: tuple[float, ...], drawn: Callable[[], object]
) -> str:
    """The page; `drawn` is called after each document."""
    parts = []
    if len(documents) > 1:
        parts += [f"<section><h2>All {len(documents)} files</h2>", *_cards(headlines.across(documents)), "</section>"]
    for document, name in zip(documents, titles, strict=True):
        parts += _run(document, name, budgets)
        drawn()
    parts += _modelled()
    return _PAGE.substitute(runs="\n".join(parts))


def _modelled() -> Iterable[str]:
    """Steps on fabrics that were measured nowhere here, from their profiles, with every source."""
    profiles = [Profile.named(name) for name in names()]
    head = "".join(f"<th>{rows:,} x {row_bytes:,} B" for rows, row_bytes in MODELLED)
    yield "<section class=modelled><h2>Modelled</h2>"
    yield (
        "<p class=warn>MODELLED: calculated from figures of others (docs/fabric.md), measured nowhere here, and never to be "
        "ranked with what was measured. In brackets what the ranges of assumed figures allow.</p>"
        f"<table><thead><tr><th>fabric{head}<th>figures and their sources<tbody>"
    )
    for profile in profiles:
        cells = ""
        for rows, row_bytes in MODELLED:
            time = step_model(profile, Step(rows, row_bytes)).time_ns
            span = "" if time.low == time.high else f" <small>({duration(time.low)} .. {duration(time.high)})</small>"
            cells += f"<td class=n>{duration(time.value)}{span}"
        sources = "; ".join(f"{key}: {figure.source} ({figure.kind})" for key, figure in profile.figures.items())
        yield (
            f"<tr><td>{escape(profile.title)}{cells}<td><details><summary>{len(profile.figures)} figures, "
            f"{len(profile.assumed)} assumed</summary>{escape(sources)}</details>"
        )
    yield "</table></section>"


def _run(document: Document, name: str, budgets: tuple[float, ...]) -> Iterable[str]:
    where = document["environment"]
    yield f"<section><h2>{escape(name)}</h2>"
    yield (
        f"<p class=where>{escape(str(where['cpu']))} &middot; {escape(str(where['cpus']))} CPUs &middot; last-level cache "
        f"{size(where['last_level_cache'])} &middot; kernel {escape(str(where['kernel']))} &middot; backend "
        f"<b>{escape(str(where['backend']))}</b> &middot; revision {escape(str(where['git_revision']))} &middot; {escape(document['created'])}</p>"
    )
    marks = sorted({arm["mark"] for arm in document["arms"] if arm["mark"]})
    if marks:
        caveat = document["control_plane_caveat"].capitalize()
        yield f"<p class=warn>{'<br>'.join(map(escape, marks))}<br>{escape(caveat)}.</p>"
    yield from _tiles(document)
    yield from _cards(document["headlines"])
    yield "<h3>Which path serves a step</h3>"
    yield from _decisions(document, budgets)
    yield "<h3>In detail</h3><div class=plots>"
    for title, svg in plots.all_plots(document):
        yield f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
    yield "</div>"
    for title, told in plots.said(document):
        yield f"<p class=said><b>{escape(title)}</b>: {escape(told)}</p>"
    if any(r["kind"] == "stand-in" for r in document["results"]):
        yield f"<p class=where>{escape(plots.NOT_DRAWN)}</p>"
    yield from _published(document)
    yield from _missing(document)
    yield from _arms(document)
    yield from _tables(document)
    yield "<details><summary>Environment</summary><table>"
    yield from (f"<tr><th>{escape(k.replace('_', ' '))}<td>{escape(str(v))}" for k, v in where.items())
    yield "</table></details></section>"


def _tiles(document: Document) -> Iterable[str]:
    harness, timer = document["harness"], document["timer"]
    times = f", headline figures {document['repeat']} times" if document["repeat"] > 1 else ""
    yield "<div class=tiles>"
    for value, label in (
        (size(document["preset"]["footprint"]), f"of table, preset {document['preset']['name']}{times}"),
        (size(document["verification"]["bytes"]), "verified after timing, no byte wrong"),
        (
            f"{harness['wall_s']:.0f} s",
            f"of run, {harness['harness_share']:.0%} of it harness ({harness['open_s']:.0f} s opening and filling)",
        ),
        (
            f"{timer['python_overhead_ns']:.0f} / {timer['c_overhead_ns']:.0f} ns",
            "cost of the clock (Python / C), subtracted",
        ),
    ):
        yield f"<div class=tile><b>{escape(value)}</b><span>{escape(label)}</span></div>"
    yield "</div>"


def _cards(figures: Rows) -> Iterable[str]:
    """A card for each headline: a bar for each arm, from nothing to the largest, and its spread."""
    for plane in ("data", "control"):
        chosen = [f for f in figures if f["plane"] == plane]
        if not chosen:
            continue
        yield f"<h3>Headline figures, {plane} plane</h3>"
        if plane == "control" and any(f["caveat"] for f in chosen):
            yield (
                "<p class=where>The control-plane times of emulated and stand-in arms say nothing about hardware. RT: round "
                "trips to a daemon; calls: system calls for the memory; both counted in an untimed cycle.</p>"
            )
        yield "<div class=cards>"
        for title, group in itertools.groupby(chosen, key=lambda f: f["title"]):
            yield from _card(title, list(group))
        yield "</div>"


def _card(title: str, figures: Rows) -> Iterable[str]:
    """What was measured, best first; what is not hardware apart from it, each kind on a scale of its own.  All are logarithmic."""
    more = figures[0]["unit"] == headlines.RATE
    measured, others = ([f for f in figures if bool(f["mark"]) == marked] for marked in (False, True))
    local = next((f["median"] for f in measured if f["arm"] == LOCAL), None)
    better = "more is better" if more else "less is better"
    yield f"<div class=card><h4>{escape(title)} <small>{better}, logarithmic</small></h4>"
    yield from _bars(sorted(measured, key=lambda f: -f["median"] if more else f["median"]), local)
    for kind in dict.fromkeys(f["kind"] for f in others):
        yield f"<div class=apart>no hardware, not to be ranked: {escape(kind.upper())}</div>"
        yield from _bars([f for f in others if f["kind"] == kind], None)
    yield "</div>"


def _bars(figures: Rows, local: float | None) -> Iterable[str]:
    """A bar for each, from the least to the largest of them, and its spread."""
    # the memory of a stand-in is local memory: it is told, not drawn (SDK specification 16.3, B3)
    drawn = [f for f in figures if f["plane"] == "control" or f["kind"] != "stand-in"]
    scale = _Scale([value for f in drawn for value in (f["min"], f["max"])])
    row = '"row counted"' if any(headlines.counts(f) for f in figures) else "row"
    for f in figures:
        spread = "" if f["spread"] is None else f"<i>{f['spread']:.0%}</i>"
        needs = f"<i>{headlines.counts(f)}</i>" if headlines.counts(f) else ""
        times = f"<i class=rel>{f['median'] / local:.3g} x local</i>" if local and f["arm"] != LOCAL else ""
        yield f"<div class={row}><span class=arm>{escape(f['arm'])}{_mark(f)}</span>"
        if f in drawn:
            start, end = scale.place(f["min"]), scale.place(f["max"])
            style = f"width:{scale.place(f['median']):.2f}%;--c:{plots.colour(f['arm'])}"
            kind = "bar marked" if f["mark"] else "bar"
            yield f'<span class=track><span class="{kind}" style="{style}"></span>'
            if len(f["values"]) > 1:
                yield f'<span class=whisker style="left:{start:.2f}%;width:{end - start:.2f}%"></span>'
            yield "</span>"
        else:
            yield "<span class=track><small>local memory, not drawn</small></span>"
        yield f"<span class=value>{figure(f['median'], f['unit'])}{spread}{needs}{times}</span></div>"


class _Scale:
    """Places in percent on a logarithmic scale on which the least of `values` still has a bar."""

    def __init__(self, values: list[float]) -> None:
        known = [value for value in values if value > 0]
        self._low, self._high = (min(known) / 2, max(known)) if known else (1.0, 2.0)

    def place(self, value: float) -> float:
        if value <= self._low:
            return 0.0
        return 100 * math.log(value / self._low) / math.log(self._high / self._low)


def _mark(row: dict[str, Any]) -> str:
    return f" <em>{escape(row['kind'].upper())}</em>" if row["mark"] else ""


def _decisions(document: Document, budgets: tuple[float, ...]) -> Iterable[str]:
    yield (
        "<p>Un-hidden time at p99 of a gather that starts when the window opens, and the path to another node that has "
        "none. Small: how this node's own memory and TCP without a network would do. The reason is behind each cell.</p>"
    )
    verdicts = decision.verdicts(document, budgets)
    yield f"<p class=sentence>{escape(decision.sentence(document, budgets))}</p>"
    yield (
        "<table class=decide><thead><tr><th>gather<th>rows" + "".join(f"<th>{duration(b)}" for b in budgets) + "<tbody>"
    )
    for (case, rows), group in itertools.groupby(verdicts, key=lambda v: (v.case, v.rows)):
        yield f"<tr><td>{escape(case)}<td class=n>{rows:,}"
        for v in group:
            kind = "yes" if v.arm else "no"
            yield f"<td class={kind}><details><summary>{escape(v.short)} <small>{escape(v.yardsticks)}</small></summary>{escape(v.why)}</details>"
    yield "</table>"


def _busy(row: dict[str, Any]) -> str:
    """Beside a case that other processes disturbed."""
    if not row["busy"]:
        return ""
    around = row["surroundings"]
    return f" <mark title='others {around['others']:.0%}, steal {around['steal']:.0%}'>busy machine</mark>"


def _tables(document: Document) -> Iterable[str]:
    for plane in ("data", "control"):
        rows: Rows = [r for r in document["results"] if r["plane"] == plane]
        if not rows:
            continue
        control = plane == "control"
        opened = " open" if control else ""
        yield f"<details{opened}><summary><b>{plane.capitalize()} plane: all {len(rows)} figures</b></summary>"
        if control and any(r["mark"] for r in rows):
            yield f"<p class=warn>{escape(document['control_plane_caveat'].capitalize())}.</p>"
        counted = "<th>round trips<th>system calls" if control else ""
        yield (
            "<table><thead><tr><th>arm<th>kind<th>workload<th>case<th>row B<th>threads<th>set<th>n<th>failed"
            f"<th>p50<th>p90<th>p99<th>p99.9<th>max{counted}<tbody>"
        )
        for r in rows:
            kind = f"<mark>{escape(r['kind'].upper())}</mark>" if r["mark"] else escape(r["kind"])
            cells = "".join(f"<td class=n>{duration(r[each])}" for each in _PERCENTILES)
            if control:
                counts = ("-" if r[each] is None else r[each] for each in ("round_trips", "system_calls"))
                cells += "".join(f"<td class=n>{count}" for count in counts)
            yield (
                f"<tr><td>{escape(r['arm'])}<td>{kind}<td>{escape(r['workload'])}<td>{escape(r['case'])}{_busy(r)}<td class=n>{r['row_bytes']}"
                f"<td class=n>{r['threads']}<td>{escape(r['temperature'])}<td class=n>{r['samples']}<td class=n>{failed(r)}{cells}"
            )
        yield "</table></details>"


def _arms(document: Document) -> Iterable[str]:
    yield "<details><summary>Arms</summary><table><thead><tr><th>arm<th>what<th>backend<th>pages<th>table<th>more<tbody>"
    for arm in document["arms"]:
        more = "; ".join(f"{name}: {value}" for name, value in arm["facts"].items())
        yield (
            f"<tr><td>{escape(arm['name'])}{_mark(arm)}<td>{escape(arm['title'])}<td>{escape(arm['backend'])}"
            f"<td>{escape(arm['pages'])}<td class=n>{size(arm['footprint'])}<td>{escape(more)}"
        )
    yield "</table></details>"


def _published(document: Document) -> Iterable[str]:
    if published.beside(document):
        yield f"<details class=published open><summary><b>{published.TITLE}</b>: {escape(published.SOURCE)}</summary><table>"
        yield from (f"<tr><td>{escape(what)}<td>{escape(told)}" for what, told in published.FIGURES)
        yield "</table></details>"


def _missing(document: Document) -> Iterable[str]:
    yield "<h3>What was not measured, and why</h3><ul>"
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in document["unavailable"]:
        reasons.setdefault((each["reason"], ""), []).append(each["title"])
    for each in document["skipped"]:
        reasons.setdefault((each["reason"], each["workload"]), []).append(each["arm"])
    for (reason, workload), who in reasons.items():
        yield f"<li><b>{escape(', '.join(who))}</b>{f', {escape(workload)}' if workload else ''}: {escape(reason)}"
    yield "</ul>"
