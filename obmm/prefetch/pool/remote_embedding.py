# SPDX-License-Identifier: Apache-2.0
"""The source project's embedding layer over the pool (Engram specification 3 and 8.1).  Importing this needs torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from obmm.prefetch.batch_history import BatchHistory, Extension
from obmm.prefetch.forward_batch import TokenBatch
from obmm.prefetch.hashing.hasher import PolyHasher
from obmm.prefetch.hashing.plan import refused
from obmm.prefetch.history import History
from obmm.prefetch.pool.pool import EngramPrefetcher, PrefetchRequest

MOST_PENDING = 8


class _Pending(NamedTuple):
    forward_batch: Any
    request: PrefetchRequest
    extension: Extension | None


class RemoteEngramEmbedding(torch.nn.Module):  # type: ignore[misc]
    """Word embedding and remote n-gram rows: their mean over ``1 + k * (n - 1)`` parts.

    `num_embeddings`: vocabulary size V.  `embedding_dim`: hidden size.  `m`, `k`, `n`: base table size, tables per order,
    largest order (Engram specification 3); table c of the pool has ``m + 2c + 1`` rows of ``prefetcher.config.embedding_dim``
    values.  `eos`: the token that ends a sequence; None: no such rule.

    Parameters: ``word_embedding.weight`` ``[V, hidden]``, and where a pool row is not of the hidden size
    ``projections.<c>.weight`` ``[hidden, row]`` for each table.

    ``history`` has the tokens before each request's next one, by name (``rids``) or slot: `History.import_` there makes a
    request known that begins in a cached prefix, or that comes from another node.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        m: int,
        k: int,
        n: int,
        prefetcher: EngramPrefetcher,
        *,
        eos: int | None = None,
    ) -> None:
        super().__init__()
        self._hasher = PolyHasher(num_embeddings, m, n, k, eos, id_space="local")
        self._prefetcher = prefetcher
        self._batches = BatchHistory(History(n))
        self._pending: dict[int, _Pending] = {}
        columns, row = self._hasher.columns, prefetcher.config.embedding_dim
        self.embedding_dim = embedding_dim
        self.word_embedding = torch.nn.Embedding(num_embeddings, embedding_dim)
        self.projections = torch.nn.ModuleList(
            torch.nn.Linear(row, embedding_dim, bias=False) for _ in range(columns if row != embedding_dim else 0)
        )

    @property
    def history(self) -> History:
        return self._batches.history

    def trigger_prefetch(self, forward_batch: Any) -> None:
        """Start to read the batch's rows; returns at once.  Again for the same batch: no effect.

        `forward_batch`: see `TokenBatch.of`.  Its tokens are part of their requests' history from now on.  A raise leaves
        nothing pending: ObmmArgumentError for a batch that does not fit, a history that is not known, or MOST_PENDING
        unconsumed batches.
        """
        if id(forward_batch) in self._pending:
            return
        if len(self._pending) == MOST_PENDING:
            raise refused(f"{MOST_PENDING} batches are triggered", "forward() or cancel() each of them", "7.2")
        batch = TokenBatch.of(forward_batch)
        windows = self._batches.windows(batch)
        ids = self._hasher.hash(batch.tokens, batch.starts, windows)
        weight = self.word_embedding.weight
        request = self._prefetcher.prefetch_async(
            [(table, np.ascontiguousarray(ids[:, 0, table])) for table in range(self._hasher.columns)],
            len(batch.tokens),
            weight.device,
            weight.dtype,
        )
        extension = self._batches.extend(batch, windows)
        # The batch is kept: as long as it lives no other object has its id.
        self._pending[id(forward_batch)] = _Pending(forward_batch, request, extension)

    def cancel(self, forward_batch: Any) -> None:
        """Forget a triggered batch; its requests' history is as before.  The newest one first, if there are several."""
        pending = self._pending.pop(id(forward_batch), None)
        if pending is None:
            return
        pending.request.lookups.abandon()
        self._batches.take_back(pending.extension)

    def forward(self, input_ids: Any, forward_batch: Any = None) -> Any:
        """``[len(input_ids), hidden]``; reads the rows now when they were not triggered.

        Padding behind the batch's tokens, and everything without a batch (a warm-up), has the word part only, divided
        like the rest (Engram specification 2.5).  Raises what `EngramPrefetcher.wait_and_gather` raises.
        """
        total = self.word_embedding(input_ids)
        parts = 1 + self._hasher.columns
        if forward_batch is None:
            return total / parts
        self.trigger_prefetch(forward_batch)
        pending = self._pending.pop(id(forward_batch))
        try:
            rows = self._prefetcher.wait_and_gather(pending.request)
        except BaseException:
            self._batches.take_back(pending.extension)  # the engine may run the step again
            raise
        for part, project in zip(rows, self.projections or [None] * len(rows), strict=True):
            total[: len(part)] += part if project is None else project(part)
        return total / parts
