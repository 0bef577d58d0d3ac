# SPDX-License-Identifier: Apache-2.0
"""The tokens of an engine's batch, and whose they are (Engram specification 8.1 and 10)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from obmm.prefetch.hashing.plan import refused
from obmm.prefetch.tensors import as_ids


class TokenBatch(NamedTuple):
    """Requests one after the other: `tokens` [T], `starts` [R+1], `positions` [R] of each one's first token.

    `slots` are the engine's request slots, which are used again; `names` are the requests' own, None where the engine
    gives none.  `history` is ``[R, N-1]``, newest first, where the engine carries it.
    """

    tokens: NDArray[np.int64]
    starts: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: tuple[int, ...]
    names: tuple[Hashable, ...] | None
    history: NDArray[np.int64] | None

    @classmethod
    def of(cls, forward_batch: Any) -> Self:
        """Reads ``input_ids`` [T], ``positions`` [T], ``req_pool_indices`` [R]; where they are there and not None:
        ``extend_seq_lens`` [R] (tokens per request; without it every request has as many), ``rids`` [R] names of requests,
        ``ngram_history`` [R, N-1].  Tensors of any device, arrays or lists.

        ObmmArgumentError when they do not fit each other.
        """
        tokens, positions = as_ids(forward_batch.input_ids), as_ids(forward_batch.positions)
        slots = tuple(as_ids(forward_batch.req_pool_indices).tolist())
        lengths = getattr(forward_batch, "extend_seq_lens", None)
        names = getattr(forward_batch, "rids", None)
        history = getattr(forward_batch, "ngram_history", None)
        requests = len(slots)
        if lengths is None:
            lengths = np.full(requests, len(tokens) // max(requests, 1))
        starts = np.concatenate([[0], np.cumsum(as_ids(lengths))]).astype(np.int64)
        named = requests if names is None else len(names)
        if (
            len(starts) != requests + 1
            or starts[-1] != len(tokens)
            or len(positions) != len(tokens)
            or named != requests
        ):
            raise refused(
                f"a batch of {len(tokens)} input_ids, {len(positions)} positions, {requests} req_pool_indices, "
                f"{named} rids, {len(starts) - 1} requests of {int(starts[-1])} tokens in all",
                "extend_seq_lens says how many tokens each request has; positions has one entry per token",
                "8.1",
            )
        if (np.diff(starts) < 1).any() or len(set(slots)) != requests:
            raise refused("a request twice, or without a token", "name each request once", "10, condition 1")
        return cls(
            tokens,
            starts,
            positions[starts[:-1]],
            slots,
            None if names is None else tuple(names),
            None if history is None else as_ids(history).reshape(tuple(np.shape(history))),
        )
