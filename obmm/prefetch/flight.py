# SPDX-License-Identifier: Apache-2.0
"""One layer of one step, from the row numbers to the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.errors import ObmmError
from obmm.prefetch.deadlines import Phase
from obmm.prefetch.failures import refused
from obmm.prefetch.policy import Policy
from obmm.prefetch.rows import Rows
from obmm.prefetch.slots import LayerBuffers, Slot
from obmm.prefetch.source import RowSource, TableId, Ticket


@dataclass(frozen=True, slots=True)
class PrefetchLayer:
    """One engram layer: its `layer_id` in the model, its `table` in the store, and how many rows (`columns`) a token
    has.
    """

    layer_id: int
    table: TableId
    columns: int


@dataclass(slots=True)
class Flight:
    """What is known of one layer of one step.  `generation` and `blind` are the step's."""

    layer: PrefetchLayer
    buffers: LayerBuffers
    slot: Slot | None
    in_spare: bool
    n_tokens: int
    padded: int
    limit: float
    generation: int
    blind: ObmmError | None
    in_turn: bool = True
    """Whether its step is the one that is consumed: only then may its rows go to the device."""
    ticket: Ticket | None = None
    submitted: float = 0.0
    gather: float = 0.0
    rows_read: int = 0
    blocked: float = 0.0
    rows: Rows | None = None
    promised: Rows | None = None
    """What `rows` will be if the gather ends well and nothing is left to do then."""
    settled: bool = True
    """False while its end was seen and not yet accounted for."""
    error: ObmmError | None = None
    gathered: bool = False
    """Whether its ticket brought all rows."""

    def take_ids(self, ids: NDArray[Any]) -> None:
        """Copy the ids and clear the padding, before the window opens."""
        if self.slot is None:
            return
        self.slot.ids[: self.n_tokens] = ids
        if self.padded > self.n_tokens:
            self.slot.rows[self.n_tokens : self.padded] = 0

    @property
    def ready(self) -> bool:
        """Whether its rows can be had without waiting."""
        if self.rows is not None or self.blind is not None or self.error is not None or not self.n_tokens:
            return True
        if self.slot is None:  # and nothing to wait for
            return True
        return self.ticket is not None and self.ticket.done()

    def request(self, slot: Slot) -> tuple[TableId, NDArray[np.int64], NDArray[np.uint8]]:
        return self.layer.table, slot.ids[: self.n_tokens], slot.rows[: self.n_tokens]

    def take_turn(self) -> None:
        """Its step is the one that is consumed now: what was gathered early goes to the device."""
        self.in_turn = True
        slot, ticket = self.slot, self.ticket
        if slot is None or ticket is None or self.rows is not None or slot.landing is None:
            return
        if ticket.ready(self.generation):
            self.buffers.stage(slot, self.padded)

    def let_go(self) -> None:
        """The step is over: free the slot, or leave it to a gather that still runs."""
        if self.slot is None:
            return
        if self.rows is None and self.ticket is not None and not self.ticket.done():
            self.buffers.leave(self.slot, self.ticket, abandoned=False)
        else:
            self.buffers.release(self.slot)
        self.slot = None


def refuse_bad_layers(layers: tuple[PrefetchLayer, ...], store: RowSource, policy: Policy) -> None:
    """ObmmArgumentError unless `store` has what the layers name, and the policy is one for their model."""
    if not layers or len({layer.layer_id for layer in layers}) != len(layers):
        raise refused("no layers, or a layer twice", "list every engram layer once", "13.4")
    for layer in layers:
        if layer.columns < 1:
            raise refused(f"layer {layer.layer_id} has {layer.columns} columns", "at least one", "13.4")
        if layer.table not in store.tables:
            raise refused(
                f"layer {layer.layer_id} names table {layer.table!r}; the store has {list(store.tables)}",
                "name a table of the manifest",
                "13.4",
            )
        if policy.zero and not store.tables[layer.table].neutral_zero:
            raise refused(
                f'policy "zero" and table {layer.table!r}, whose model is not neutral to zero rows',
                'use "raise", "local" or "retry" for this model',
                "11.2",
            )


@dataclass(slots=True)
class FlightStep:
    """The flights of one step."""

    number: int
    phase: Phase
    n_tokens: int
    generation: int
    flights: dict[int, Flight]
    started: bool = False
