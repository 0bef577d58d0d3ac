# SPDX-License-Identifier: Apache-2.0
"""Row numbers of which few are asked for often, as n-grams are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Zipf:
    """Draws from [0, n): the k-th most frequent number comes in proportion to ``k ** -exponent``; 0 is uniform.

    Which numbers are frequent has nothing to do with their neighbours.
    """

    def __init__(self, n: int, exponent: float, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._of_rank = self._random.permutation(n)
        weights = np.arange(1, n + 1, dtype=np.float64) ** -exponent
        self._share = np.cumsum(weights)
        self._share /= self._share[-1]

    def __call__(self, count: int) -> NDArray[np.int64]:
        """`count` numbers."""
        ranks = np.searchsorted(self._share, self._random.random(count))
        found: NDArray[np.int64] = self._of_rank[np.minimum(ranks, len(self._of_rank) - 1)]
        return found
