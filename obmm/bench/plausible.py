# SPDX-License-Identifier: Apache-2.0
"""What a result file says about itself, computed again: a figure that does not follow from the others is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from obmm.bench import headlines
from obmm.bench.footprint import Chase, Footprint
from obmm.bench.surroundings import BUSY_OTHERS, BUSY_STEAL
from obmm.bench.timing import BLOCKS, NEEDED, summarised
from obmm.bench.workloads.loads import LOADS

Row = dict[str, Any]
ORDER = ("p50", "p90", "p99", "p99_9", "max")
COMPARED = (LOADS, "row", "batch", "step", "row-size", "tables", "lists", "read", "write")
"""Workloads that compare every byte of every operation."""
_EXACT = 1e-6
_ROUNDED = 0.06
"""Of a cdf, whose entries have one decimal."""


def faults(document: Row) -> Iterator[str]:
    """What does not fit, with the place.  Empty for a file that a run wrote."""
    footprint = Footprint(document["preset"]["footprint"], document["environment"]["last_level_cache"])
    arms = {arm["name"]: arm for arm in document["arms"]}
    for number, row in enumerate(document["results"]):
        for fault in (*_times(row), *_rates(row), *_conditions(row, footprint, arms)):
            yield f"results[{number}] ({row['arm']}, {row['workload']}, {row['case']}): {fault}"
    for number, figure in enumerate(document["headlines"]):
        for fault in _headline(figure, document):
            yield f"headlines[{number}] ({figure['arm']}, {figure['headline']}): {fault}"
    yield from _whole(document)


def _near(one: float, two: float, tolerance: float = _EXACT) -> bool:
    return math.isclose(one, two, rel_tol=tolerance, abs_tol=_ROUNDED if tolerance > _EXACT else 1e-9)


def _times(row: Row) -> Iterator[str]:
    known = [(name, row[name]) for name in ORDER if row[name] is not None]
    for (one, low), (two, high) in itertools.pairwise(known):
        if low > high * (1 + _EXACT):
            yield f"{one} {low} above {two} {high}"
    for name, needed in NEEDED.items():
        if (row[name] is None) != (row["samples"] < needed):
            yield f"{name} of {row['samples']} samples is {row[name]}"
    if row.get("timeouts", 0) > row["failures"]:
        yield f"{row['timeouts']} timeouts of {row['failures']} failures"
    cdf = row["cdf"]
    if any(low > high for low, high in itertools.pairwise(cdf)):
        yield "its distribution falls"
    for name, place in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        if row[name] is not None and not _near(row[name], cdf[place], 1e-3):
            yield f"{name} {row[name]} is not where its distribution has it, {cdf[place]}"
    # a mean lies between the sums of the lower and the upper ends of the hundredths
    low, high = sum(cdf[:-1]) / 100, sum(cdf[1:]) / 100
    if not low * 0.98 - 1 <= row["mean"] <= high * 1.02 + 1 and row["samples"] >= 100:
        yield f"mean {row['mean']} is not one of its distribution"
    if not cdf[0] - 1 <= row["mean"] <= row["max"] * (1 + _EXACT) + 1:
        yield f"mean {row['mean']} outside [{cdf[0]}, {row['max']}]"
    if bool(row["blocks"]) != (row["samples"] >= 4 * BLOCKS) or (row["blocks"] and len(row["blocks"]) != BLOCKS):
        yield f"{len(row['blocks'])} blocks of {row['samples']} samples"
    if any(not cdf[0] - _ROUNDED <= block <= row["max"] * (1 + _EXACT) for block in row["blocks"]):
        yield "a block's median is outside its times"
    if "samples_ns" in row:
        again = summarised(row["samples_ns"])
        yield from (
            f"{name} is {row[name]}, its samples give {again[name]}"
            for name in ("samples", *NEEDED, "max", "mean", "blocks")
            if not _same(row[name], again[name])
        )


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    return one is two if one is None or two is None else _near(one, two)


def _rates(row: Row) -> Iterator[str]:
    rows = row["tables"] * row["count"]
    control = row["plane"] == "control"
    for name, amount, of in (
        ("rows_per_s", rows, "mean"),
        ("bytes_per_s", rows * row["row_bytes"], "mean"),
        ("bytes_per_s_p50", rows * row["row_bytes"], "p50"),
    ):
        expected = None if control or not row[of] else amount / row[of] * 1e9
        if not _same(row[name], expected):
            yield f"{name} is {row[name]}, size and {of} give {expected}"
    if row["workload"] in COMPARED:
        least = row["samples"] * rows * row["row_bytes"]
        if row["verified"] < least:
            yield f"{row['verified']} bytes verified, its {row['samples']} operations read {least}"


def _conditions(row: Row, footprint: Footprint, arms: dict[str, Row]) -> Iterator[str]:
    arm = arms.get(row["arm"])
    if arm is None:
        # lost while it was closed: then it is told in `skipped`
        chase = None
    else:
        chase = Chase(**arm["chase"]) if arm["chase"] else None
        if (arm["kind"], arm["mark"]) != (row["kind"], row["mark"]):
            yield f"kind {row['kind']!r} of an arm that is {arm['kind']!r}"
        if row["plane"] == "data" and row["working_set"] > arm["footprint"]:
            yield f"a working set of {row['working_set']} bytes of a table of {arm['footprint']}"
    control = row["plane"] == "control"
    load_ns = row["mean"] if row["workload"] == LOADS else None
    expected = "control" if control else footprint.temperature(row["working_set"], chase, load_ns)
    if row["temperature"] != expected:
        yield f"called {row['temperature']!r}, working set, cache and pointer chase make it {expected!r}"
    around = row["surroundings"]
    if row["busy"] != (around["others"] > BUSY_OTHERS or around["steal"] > BUSY_STEAL):
        yield f"busy is {row['busy']}, others {around['others']:.3f}, steal {around['steal']:.3f}"


def _headline(figure: Row, document: Row) -> Iterator[str]:
    again = headlines.spread(figure["values"])
    for name, value in again.items():
        if not _same(figure[name], value):
            yield f"{name} is {figure[name]}, its values give {value}"
    if len(figure["values"]) > document["repeat"]:
        yield f"{len(figure['values'])} values of {document['repeat']} repetitions"
    shown = {
        value
        for row in document["results"]
        if row["arm"] == figure["arm"]
        for value in (row["p50"], row["p99"], row["bytes_per_s"])
        if value is not None
    }
    if not any(_near(figure["values"][0], value) for value in shown):
        yield "its first value is not a figure of this arm's results"


def _whole(document: Row) -> Iterator[str]:
    harness = document["harness"]
    expected = max(0.0, 1 - harness["measured_s"] / harness["wall_s"]) if harness["wall_s"] else 0.0
    if not _near(harness["harness_share"], expected):
        yield f"harness_share is {harness['harness_share']}, its times give {expected}"
    cases = {(row["arm"], row["workload"], row["seed"]): row["verified"] for row in document["results"]}
    if document["verification"]["bytes"] < sum(cases.values()):
        yield f"verification: {document['verification']['bytes']} bytes, the results have {sum(cases.values())}"
