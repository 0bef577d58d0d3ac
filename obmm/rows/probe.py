# SPDX-License-Identifier: Apache-2.0
"""A health probe in the background: the canary rows."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from obmm.closing import Owner
from obmm.rows import canary
from obmm.rows.manifest import Canary
from obmm.rows.table import TableSpec
from obmm.rows.ticket import Ticket


class ProbeTicket(Owner):
    """As `Ticket`, over the canary rows of every table."""

    def __init__(
        self, tickets: Sequence[Ticket], expected: Sequence[tuple[TableSpec, Canary, NDArray[np.uint8]]]
    ) -> None:
        self._tickets = tickets
        self._expected = expected

    def done(self) -> bool:
        return all(ticket.done() for ticket in self._tickets)

    def ready(self, version: int) -> bool:
        """Never: only `result` compares the rows with the manifest."""
        return False

    def wait(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        return all(t.wait(None if end is None else max(0.0, end - time.monotonic())) for t in self._tickets)

    def result(self) -> int:
        """Rows read.  CanaryError when a row is not what the manifest says; otherwise as `Ticket.result`."""
        rows = sum(ticket.result() for ticket in self._tickets)
        for spec, pairs, data in self._expected:
            canary.compare(spec, pairs, data)
        return rows

    @property
    def generation(self) -> int:
        return self._tickets[0].generation if self._tickets else 0

    def abandon(self) -> None:
        for ticket in self._tickets:
            ticket.abandon()
