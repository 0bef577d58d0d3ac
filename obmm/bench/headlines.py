# SPDX-License-Identifier: Apache-2.0
"""The headline figures: the few of each arm that stand for the rest, and how far they spread from run to run.

This is the one place that says which they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from obmm.bench.presets import Preset
from obmm.bench.units import BYTES
from obmm.bench.workloads.workload import WHOLE, Case

Row = dict[str, Any]
RATE, TIME = BYTES, "ns"


@dataclass(frozen=True, slots=True)
class Headline:
    """`figure` ("p50", "p99", "bytes_per_s") of the case of `workloads` with these sizes, one thread, whole table.

    0 for a size: any.  `case`: how the case's label begins.
    """

    name: str
    title: str
    workloads: tuple[str, ...]
    figure: str
    row_bytes: int = 0
    count: int = 0
    case: str = ""

    @property
    def unit(self) -> str:
        return RATE if self.figure == "bytes_per_s" else TIME

    def wants(self, workload: str, case: Case) -> bool:
        """Whether this case of the workload is the one, or differs only in its working set."""
        return (
            workload in self.workloads
            and case.threads == 1
            and self.row_bytes in (0, case.row_bytes)
            and self.count in (0, case.count)
            and case.label.startswith(self.case)
        )

    def shows(self, result: Row) -> bool:
        """Whether this result is the one."""
        return (
            result["workload"] in self.workloads
            and result["threads"] == 1
            and result["temperature"] != "hot"
            and self.row_bytes in (0, result["row_bytes"])
            and self.count in (0, result["count"])
            and result["case"].startswith(self.case)
        )


def of(preset: Preset) -> tuple[Headline, ...]:
    """The headlines of a preset's sizes, in the order of reports."""
    width = min(preset.widths, key=lambda w: abs(w - 8))
    batch = min(preset.batches, key=lambda n: abs(n - 128))
    tokens = min(preset.tokens, key=lambda n: abs(n - 128))
    rows, size = preset.steps[0]
    row, large = preset.row_bytes, max(preset.batches)
    return (
        Headline("load", f"one {width}-byte load or request, p50", ("loads",), "p50", width),
        Headline("row", f"one row of {row} B, p50", ("row",), "p50", row),
        Headline("batch", f"{batch} rows of {row} B, p99", ("batch",), "p99", row, batch),
        Headline(
            "step",
            f"{preset.tables} tables x {tokens} rows of {preset.table_row_bytes} B, p99",
            ("tables",),
            "p99",
            preset.table_row_bytes,
            tokens,
        ),
        Headline("rows", f"{rows:,} rows of {size:,} B, p50", ("step",), "p50", size, rows),
        Headline("rate", f"gather of {large:,} rows of {row} B", ("batch",), "bytes_per_s", row, large),
        Headline("read", "sequential read", ("read",), "bytes_per_s"),
        Headline("write", "sequential write", ("write",), "bytes_per_s"),
        Headline("flag", "store here, load there, by an NC flag, p50", ("pingpong-nc",), "p50"),
        Headline("hand-over", "store here, load there, by CC ownership, p50", ("pingpong-cc",), "p50"),
        Headline("fetch", "handle fetch to first load, p50", ("fetch",), "p50", case=WHOLE),
        Headline(
            "life", "make, map, unmap, remove 128 MiB, p50", ("control", "control-sdk"), "p50", case=f"{WHOLE}, 128"
        ),
    )


_SHOWN = ("arm", "kind", "mark", "plane", "caveat", "round_trips", "system_calls")


def counts(figure: Row) -> str:
    """What one operation of it needs, where it was counted: "4 RT, 6 calls"."""
    if figure["system_calls"] is None:
        return ""
    return f"{figure['round_trips']} RT, {figure['system_calls']} calls"


def figures(headlines: Iterable[Headline], runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Of each headline and arm: the value of every run that has it, their median, least, most and relative spread."""
    found: dict[tuple[str, str, str], Row] = {}
    for headline in headlines:
        for results in runs:
            for result in results:
                value = result[headline.figure] if headline.shows(result) else None
                if value is None:
                    continue
                key = (headline.name, result["arm"], result["kind"])
                shown = {name: result[name] for name in _SHOWN}
                names = {"headline": headline.name, "title": headline.title, "unit": headline.unit}
                found.setdefault(key, {**names, **shown, "values": []})["values"].append(value)
    return [{**figure, **spread(figure["values"])} for figure in found.values()]


def across(documents: Sequence[dict[str, Any]]) -> list[Row]:
    """The headline figures of several result files as if they were one run repeated."""
    merged: dict[tuple[str, str, str, str], Row] = {}
    for document in documents:
        for figure in document["headlines"]:
            key = (figure["headline"], figure["title"], figure["arm"], figure["kind"])
            into = merged.setdefault(key, {**figure, "values": []})
            into["values"] = into["values"] + figure["values"]
    return [{**figure, **spread(figure["values"])} for figure in merged.values()]


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """`spread` is (max - min) / median; None with one value, which has none, or where the median is below the clock."""
    middle = median(values)
    relative = (max(values) - min(values)) / middle if len(values) > 1 and middle else None
    return {"median": middle, "min": min(values), "max": max(values), "spread": relative}
