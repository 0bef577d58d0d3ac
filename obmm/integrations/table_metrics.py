# SPDX-License-Identifier: Apache-2.0
"""Counters of a table client for Prometheus, through the `prometheus-client` package (extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from obmm.exposition import Families

if TYPE_CHECKING:
    from obmm.integrations.engram import TableClient

_COUNTERS = {
    "steps": "steps begun",
    "rows": "rows handed out, zeros included",
    "bytes": "bytes of the rows that came",
    "zero_rows": "rows that were zeros because they did not come",
    "errors": "errors; the log and check() say which",
    "out_of_range": "row numbers outside their table",
}


class TableCollector:
    """``REGISTRY.register(TableCollector(table, {"door": "sglang"}))``: read when it is scraped, so counting costs nothing extra.

    `constant_labels` tell clients apart.  ImportError without the package.
    """

    def __init__(self, table: TableClient, constant_labels: Mapping[str, str] | None = None) -> None:
        self._table = table
        self._families = Families("obmm_engram_", constant_labels)

    def collect(self) -> Iterator[Any]:
        """The families of metrics, as prometheus_client wants them."""
        stats, show = self._table.stats(), self._families
        for name, text in _COUNTERS.items():
            yield show.counter(name, text, stats[f"obmm_engram_{name}_total"])
        for name, text in (
            ("gather", "from the begin of a step to its rows, for each of its tables"),
            ("blocked", "of these, what callers waited"),
        ):
            steps = int(stats["obmm_engram_steps_total"])
            yield show.summary(f"{name}_seconds", text, steps, stats[f"obmm_engram_{name}_seconds"])
        yield show.gauge("attachments", "publications attached so far", stats["obmm_engram_attachments"])
        yield show.gauge("away_seconds", "since the table went; 0 while it is here", stats["obmm_engram_away_seconds"])
