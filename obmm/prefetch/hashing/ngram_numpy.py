# SPDX-License-Identifier: Apache-2.0
"""The hashers in NumPy: the readable twin of native/hash/ngram.c, and the path where no compiler was."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.prefetch.hashing.plan import Batch, EngramPlan, PolyPlan


class OutsideVocabularyError(Exception):
    """An id that is not below the vocabulary; the hasher words the real error."""


class NumpyEngram:
    """Algorithm A over a whole batch at once."""

    def __init__(self, plan: EngramPlan) -> None:
        self._plan = plan
        self._multipliers = np.array([layer.multipliers for layer in plan.layers], dtype=np.uint64)

    def run(self, batch: Batch, out: NDArray[np.int64]) -> None:
        plan = self._plan
        ids, at = _joined(batch, plan.order, plan.vocabulary)
        if plan.token_map is not None:
            ids = np.where(ids < 0, -1, plan.token_map[ids])
        shifts = ids[at - np.arange(plan.order)[:, None]]
        alive = np.logical_and.accumulate(shifts >= 0, axis=0)
        history = np.where(alive, shifts, plan.pad).astype(np.uint64)

        moduli = plan.moduli.reshape(len(plan.layers), plan.order - 1, plan.heads)
        offsets = plan.offsets.reshape(moduli.shape)
        rows = out.view(np.uint64).reshape(len(batch.tokens), *moduli.shape)
        for layer in range(len(plan.layers)):
            multiplier = self._multipliers[layer]
            x = history[0] * multiplier[0]
            for n in range(1, plan.order):
                x = x ^ (history[n] * multiplier[n])
                np.remainder(x[:, None], moduli[layer, n - 1], out=rows[:, layer, n - 1])
                rows[:, layer, n - 1] += offsets[layer, n - 1]


class NumpyPoly:
    """Algorithm B over a whole batch at once."""

    def __init__(self, plan: PolyPlan) -> None:
        self._plan = plan

    def run(self, batch: Batch, out: NDArray[np.int64]) -> None:
        plan = self._plan
        ids, at = _joined(batch, plan.order, plan.vocabulary)
        shifts = ids[at - np.arange(plan.order)[:, None]]
        seen = shifts >= 0
        if plan.eos >= 0:
            seen[1:] &= shifts[1:] != plan.eos
        alive = np.logical_and.accumulate(seen, axis=0)
        history = np.where(alive, shifts, 0).astype(np.uint64)

        total = history[0][:, None] * plan.coefficients[0]
        for j in range(1, plan.order):
            total += history[j][:, None] * plan.coefficients[j]
        rows = out.reshape(len(batch.tokens), len(plan.moduli))
        rows[:] = (total % plan.moduli + plan.offsets).view(np.int64)
        rows[~seen[0]] = -1


def _joined(batch: Batch, order: int, vocabulary: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Every request's history and tokens in one array, oldest first, and the place of each token in it.

    Negative entries are dead or unknown.  `order` - 1 entries of history stand before each request, so that looking
    back never reaches another request.
    """
    back = order - 1
    requests = len(batch.starts) - 1
    ids = np.full(len(batch.tokens) + requests * back, -1, dtype=np.int64)
    request_of = np.repeat(np.arange(1, requests + 1), np.diff(batch.starts))
    at = np.arange(len(batch.tokens)) + request_of * back
    ids[at] = batch.tokens if batch.dead is None else np.where(batch.dead, -1, batch.tokens)
    if batch.history is not None:
        first = batch.starts[:-1] + np.arange(requests) * back
        ids[first[:, None] + np.arange(back)] = batch.history[:, ::-1]
    if ids.size and ids.max() >= vocabulary:
        raise OutsideVocabularyError
    np.maximum(ids, -1, out=ids)
    return ids, at
