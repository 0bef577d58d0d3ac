# SPDX-License-Identifier: Apache-2.0
"""What was gathered so far."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class GatherStats:
    """Counters of gathers that have ended.  Pass one as ``stats=`` to have a call's numbers added to it too.

    `gathers` ended; `ids` were asked for, `rows` of them read from the table (`bytes` in all), `hot_rows` taken from its
    hot-row cache, `zero_rows` given as zeros without a read; the rest were repeats that were copied.  `seconds` adds up the
    gathers' own times, which overlap when they run in the background.  The last four count gathers that failed: an id was
    `refused`, the memory faulted (`faults`), it was published meanwhile (`stale`), or the gather was abandoned (`cancelled`).

    >>> obmm.rows.GatherStats(ids=3).as_dict()["ids"]
    3
    """

    gathers: int = 0
    ids: int = 0
    rows: int = 0
    zero_rows: int = 0
    hot_rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    refused: int = 0
    faults: int = 0
    stale: int = 0
    cancelled: int = 0

    def as_dict(self) -> dict[str, int | float]:
        """All of them by name, ready for JSON."""
        return asdict(self)

    def add_totals(self, totals: Any, row_bytes: int) -> None:
        """Between rooms: add a ``struct obmm_totals``."""
        self.gathers += totals.gathers
        self.ids += totals.ids
        self.rows += totals.rows_read
        self.zero_rows += totals.rows_zero
        self.hot_rows += totals.rows_hot
        self.bytes += totals.rows_read * row_bytes
        self.seconds += totals.nanoseconds * 1e-9
        self.refused += totals.refused
        self.faults += totals.faults
        self.stale += totals.stale
        self.cancelled += totals.cancelled

    def add_outcome(self, outcome: Any, ids: int, row_bytes: int) -> None:
        """Between rooms: add a ``struct obmm_outcome`` that ended well."""
        self.gathers += 1
        self.ids += ids
        self.rows += outcome.rows_read
        self.zero_rows += outcome.rows_zero
        self.hot_rows += outcome.rows_hot
        self.bytes += outcome.rows_read * row_bytes
        self.seconds += outcome.nanoseconds * 1e-9
