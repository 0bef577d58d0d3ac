# SPDX-License-Identifier: Apache-2.0
"""Which tokens came before a batch, found by request and position (Engram specification 10, conditions 1 to 6)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from obmm.prefetch.forward_batch import TokenBatch
from obmm.prefetch.history import ExportedHistory, History


class Extension(NamedTuple):
    """What `BatchHistory.extend` added, and what was there before it."""

    names: Sequence[Hashable]
    positions: NDArray[np.int64]
    windows: NDArray[np.int64]


class BatchHistory:
    """A `History` that follows an engine's batches.

    A request goes by its name where the batch has names, else by its slot.  Its history goes when its slot has a new
    owner, or when it starts again at position 0.  A position before ours takes rejected drafts back; without names that
    could also be a new owner of the slot with a cached prefix, so it raises.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._owner: dict[int, Hashable] = {}
        self._slot: dict[Hashable, int] = {}

    def windows(self, batch: TokenBatch) -> NDArray[np.int64]:
        """``[R, N-1]``, newest first; ObmmArgumentError when a request's history is not known."""
        if batch.history is not None:
            return batch.history
        names = self._names(batch)
        for slot, name, position in zip(batch.slots, names, batch.positions.tolist(), strict=True):
            self._settle(slot, name)
            ours = self.history.position(name)
            if position == 0:
                self.history.drop(name)
            elif position < ours and batch.names is not None:
                self.history.rollback(name, ours - position)
        return self.history.windows(names, batch.positions)

    def extend(self, batch: TokenBatch, windows: NDArray[np.int64]) -> Extension | None:
        """The batch's tokens are part of its requests from now on."""
        if batch.history is not None:
            return None
        names = self._names(batch)
        self.history.extend_batch(names, batch.tokens, batch.starts, batch.positions)
        return Extension(names, batch.positions, windows)

    def take_back(self, extension: Extension | None) -> None:
        """As it was before `extend`; the newest extension of a request first."""
        if extension is None:
            return
        for name, position, window in zip(*extension, strict=True):
            self.history.drop(name)
            self.history.import_(name, ExportedHistory(int(position), tuple(window.tolist())))

    def _names(self, batch: TokenBatch) -> Sequence[Hashable]:
        return batch.slots if batch.names is None else batch.names

    def _settle(self, slot: int, name: Hashable) -> None:
        """`name` has the slot; who had it before is gone, unless it moved to another one."""
        before = self._owner.get(slot)
        if before is not None and before != name and self._slot.get(before) == slot:
            self.history.drop(before)
            del self._slot[before]
        self._owner[slot] = name
        self._slot[name] = slot
