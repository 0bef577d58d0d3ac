# SPDX-License-Identifier: Apache-2.0
"""What a pool is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from obmm.prefetch.pool.table import PoolTable
from obmm.rows import Ticket

Lookup = tuple[int, NDArray[np.int64], NDArray[np.float32]]
"""Table id, row ids, and where the rows ``[n, dim]`` go."""


@dataclass(slots=True)
class Lookups:
    """Lookups that are under way.  Made by `EngramPrefetcher.prefetch_async`."""

    requests: Sequence[Lookup]
    gathers: list[tuple[PoolTable, Ticket]]

    def abandon(self) -> None:
        """Between rooms: they will not be asked for; what they write to is kept until they end."""
        for _, ticket in self.gathers:
            ticket.abandon()
