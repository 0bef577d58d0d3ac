# SPDX-License-Identifier: Apache-2.0
"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from obmm.bench import decision
from obmm.bench.results import Document, duration, size


def text(documents: Sequence[Document], names: Sequence[str], budgets: tuple[float, ...]) -> str:
    """All of them, one after the other."""
    parts = ["# Reference benchmark of obmm", ""]
    for document, name in zip(documents, names, strict=True):
        parts += [f"## {name}", "", *_facts(document), *_results(document), *_decision(document, budgets)]
    return "\n".join(parts) + "\n"


def _facts(document: Document) -> Iterable[str]:
    harness = document["harness"]
    yield from (f"- {key.replace('_', ' ')}: {value}" for key, value in document["environment"].items())
    yield f"- preset: {document['preset']['name']}, table of {size(document['preset']['footprint'])}"
    yield f"- {document['verification']['bytes']} bytes verified, none wrong"
    yield f"- {harness['wall_s']:.1f} s, of which {harness['harness_share']:.0%} in the harness (fill, draw, verify)"
    yield from (f"- {arm['title']} ({arm['kind']}, {arm['pages']} pages): {arm['backend']}" for arm in document["arms"])
    yield from (f"- not run: {each['title']}: {each['reason']}" for each in document["unavailable"])
    yield from (f"- not run: {each['arm']}, {each['workload']}: {each['reason']}" for each in document["skipped"])
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
                yield f"{document['control_plane_caveat'].capitalize()}."
            yield ""
        yield "| arm | kind | workload | case | row B | threads | set | n | p50 | p90 | p99 | p99.9 | max |"
        yield "| --- " * 13 + "|"
        for r in rows:
            kind = r["kind"].upper() if r["mark"] else r["kind"]
            times = " | ".join(duration(r[each]) for each in ("p50", "p90", "p99", "p99_9", "max"))
            yield (
                f"| {r['arm']} | {kind} | {r['workload']} | {r['case']} | {r['row_bytes']} | {r['threads']} "
                f"| {r['temperature']} | {r['samples']} | {times} |"
            )
        yield ""


def _decision(document: Document, budgets: tuple[float, ...]) -> Iterable[str]:
    yield from (
        "### Which path serves a step",
        "",
        "| gather | rows | budget | path | why |",
        "| --- | --- | --- | --- | --- |",
    )
    for v in decision.verdicts(document, budgets):
        yield f"| {v.case} | {v.rows} | {duration(v.budget_ns)} | {v.arm or 'none'} | {v.why} |"
    yield ""
