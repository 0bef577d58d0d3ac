# SPDX-License-Identifier: Apache-2.0
"""Documents as a run `factor` times as slow would have written them: every figure follows from the others."""

from __future__ import annotations

import copy
from typing import Any

from obmm.bench import headlines
from obmm.bench.footprint import Chase, Footprint
from obmm.bench.workloads.loads import LOADS

TIMES = ("p50", "p90", "p99", "p99_9", "max", "mean")
RATES = ("rows_per_s", "bytes_per_s", "bytes_per_s_p50")


def scaled(document: dict[str, Any], factor: float, arms: tuple[str, ...] = ()) -> dict[str, Any]:
    """All times of `arms` (none named: of all) times `factor`."""
    changed = copy.deepcopy(document)
    footprint = Footprint(changed["preset"]["footprint"], changed["environment"]["last_level_cache"])
    chases = {arm["name"]: Chase(**arm["chase"]) for arm in changed["arms"] if arm["chase"]}
    for row in changed["results"]:
        if arms and row["arm"] not in arms:
            continue
        for name in TIMES:
            row[name] = None if row[name] is None else row[name] * factor
        for name in RATES:
            row[name] = None if row[name] is None else row[name] / factor
        row["cdf"] = [value * factor for value in row["cdf"]]
        row["blocks"] = [value * factor for value in row["blocks"]]
        if row["plane"] == "data":
            load_ns = row["mean"] if row["workload"] == LOADS else None
            row["temperature"] = footprint.temperature(row["working_set"], chases.get(row["arm"]), load_ns)
    for figure in changed["headlines"]:
        if not arms or figure["arm"] in arms:
            by = 1 / factor if figure["unit"] == headlines.RATE else factor
            figure["values"] = [value * by for value in figure["values"]]
            figure.update(headlines.spread(figure["values"]))
    return changed
