# SPDX-License-Identifier: Apache-2.0
"""Results as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

from obmm.bench import decision, headlines, published
from obmm.bench.results import Document
from obmm.bench.units import duration, failed, figure, size

_COUNTS = ("round_trips", "system_calls")


def _plain(value: object) -> str:
    """A text of a result file as Markdown shows it: on one line, in one cell, and no markup whatever it holds."""
    told = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*\[\]|~]|(?<![A-Za-z0-9])_|^[#>+=-])", r"\\\1", told)


def text(documents: Sequence[Document], names: Sequence[str], budgets: tuple[float, ...]) -> str:
    """All of them, one after the other; before them, of several, how far their headline figures spread."""
    parts = ["# Reference benchmark of obmm", ""]
    if len(documents) > 1:
        parts += [f"## All {len(documents)} files", "", *_headlines(headlines.across(documents))]
    for document, name in zip(documents, names, strict=True):
        parts += [f"## {_plain(name)}", "", *_facts(document), *_headlines(document["headlines"])]
        parts += [*_results(document), *_published(document), *_decision(document, budgets)]
    return "\n".join(parts) + "\n"


def _facts(document: Document) -> Iterable[str]:
    harness = document["harness"]
    yield from (f"- {_plain(key.replace('_', ' '))}: {_plain(value)}" for key, value in document["environment"].items())
    yield f"- preset: {_plain(document['preset']['name'])}, table of {size(document['preset']['footprint'])}"
    yield f"- {document['verification']['bytes']} bytes verified, none wrong"
    yield (
        f"- {harness['wall_s']:.1f} s, of which {harness['harness_share']:.0%} in the harness "
        f"({harness['open_s']:.1f} s opening and filling, the rest drawing, verifying and waiting)"
    )
    for arm in document["arms"]:
        facts = "".join(f"; {_plain(name)}: {_plain(value)}" for name, value in arm["facts"].items())
        yield f"- {_plain(arm['title'])} ({arm['kind']}, {_plain(arm['pages'])} pages): {_plain(arm['backend'])}{facts}"
    yield from (f"- {_plain(mark)}" for mark in sorted({arm["mark"] for arm in document["arms"] if arm["mark"]}))
    busy = sum(1 for r in document["results"] if r["busy"])
    if busy:
        yield f"- {busy} of {len(document['results'])} figures were measured on a busy machine (others or steal above the limit)"
    yield from (f"- not run: {_plain(each['title'])}: {_plain(each['reason'])}" for each in document["unavailable"])
    yield from (
        f"- not run: {_plain(each['arm'])}, {_plain(each['workload'])}: {_plain(each['reason'])}"
        for each in document["skipped"]
    )
    yield ""


def _headlines(figures: list[dict[str, Any]]) -> Iterable[str]:
    for plane in ("data", "control"):
        chosen = [f for f in figures if f["plane"] == plane]
        if not chosen:
            continue
        yield from (f"### Headline figures, {plane} plane", "")
        if any(f["caveat"] for f in chosen):
            yield from ("Control-plane times of emulated and stand-in arms say nothing about hardware.", "")
        counted = " needs |" if plane == "control" else ""
        yield f"| figure | arm | kind | runs | median | min | max | spread |{counted}"
        yield "| --- " * (8 + bool(counted)) + "|"
        for f in chosen:
            kind = f["kind"].upper() if f["mark"] else f["kind"]
            shown = " | ".join(figure(f[each], f["unit"]) for each in ("median", "min", "max"))
            needs = f" {headlines.counts(f) or '-'} |" if counted else ""
            spread = "-" if f["spread"] is None else f"{f['spread']:.1%}"
            yield f"| {_plain(f['title'])} | {_plain(f['arm'])} | {kind} | {len(f['values'])} | {shown} | {spread} |{needs}"
        yield ""


def _results(document: Document) -> Iterable[str]:
    for plane in ("data", "control"):
        rows = [r for r in document["results"] if r["plane"] == plane]
        if not rows:
            continue
        yield from (f"### {plane.capitalize()} plane", "")
        if any(r["mark"] for r in rows):
            yield "EMULATED and STAND-IN rows: local memory of this host answers; they say nothing about hardware."
            if plane == "control":
                yield f"{_plain(document['control_plane_caveat'].capitalize())}."
            yield ""
        counted = " round trips | system calls |" if plane == "control" else ""
        yield f"| arm | kind | workload | case | row B | threads | set | n | failed | p50 | p90 | p99 | p99.9 | max |{counted}"
        yield "| --- " * (14 + 2 * bool(counted)) + "|"
        for r in rows:
            kind = r["kind"].upper() if r["mark"] else r["kind"]
            times = " | ".join(duration(r[each]) for each in ("p50", "p90", "p99", "p99_9", "max"))
            counts = "".join(f" {'-' if r[each] is None else r[each]} |" for each in _COUNTS) if counted else ""
            yield (
                f"| {_plain(r['arm'])} | {kind} | {_plain(r['workload'])} | {_plain(r['case'])} | {r['row_bytes']} | {r['threads']} "
                f"| {r['temperature']} | {r['samples']} | {failed(r)} | {times} |{counts}"
            )
        yield ""


def _published(document: Document) -> Iterable[str]:
    if published.beside(document):
        yield from (f"### {published.TITLE}", "", f"{published.SOURCE.capitalize()}.", "")
        yield from (f"- {what}: {told}" for what, told in published.FIGURES)
        yield ""


def _decision(document: Document, budgets: tuple[float, ...]) -> Iterable[str]:
    yield from (
        "### Which path serves a step",
        "",
        _plain(decision.sentence(document, budgets)),
        "",
        "| gather | rows | budget | path | why |",
        "| --- | --- | --- | --- | --- |",
    )
    for v in decision.verdicts(document, budgets):
        yield f"| {v.case} | {v.rows} | {duration(v.budget_ns)} | {_plain(v.arm or 'none')} | {_plain(v.why)} |"
    yield ""
