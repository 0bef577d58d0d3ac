# SPDX-License-Identifier: Apache-2.0
"""The source project's prefetcher over its pool (Engram specification 8.1)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from obmm.closing import Owner
from obmm.errors import ObmmArgumentError
from obmm.prefetch.pool.config import EngramPoolConfig
from obmm.prefetch.pool.lookups import Lookups
from obmm.prefetch.tensors import as_ids, as_result, float_name

if TYPE_CHECKING:
    from obmm.prefetch.pool.pool import EngramPool


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """Lookups that are under way.  Made by `EngramPrefetcher.prefetch_async`."""

    lookups: Lookups
    rows: NDArray[np.float32]
    dtype: Any
    device: Any


class EngramPrefetcher(Owner):
    """The source project's prefetcher: all tables of a step at once, as one ``[tables, tokens, dim]`` array.

    Code that is written anew should use `obmm.prefetch.EngramPrefetcher`, which has fixed buffers and failure policies:
    this one allocates per request and raises in `wait_and_gather`, as its callers expect.

    `requests` are pairs of a table id and row ids ``[seq_len]``; the result is of `dtype`, on `device` where it is one of
    torch's.  `config`: the `pool`'s by default.  ObmmArgumentError for a table or rows that are none.
    """

    def __init__(self, pool: EngramPool, config: EngramPoolConfig | None = None) -> None:
        self._pool = pool
        self.config = config or pool.config

    def prefetch_async(
        self,
        requests: Sequence[tuple[int, Any]],
        seq_len: int,
        device: Any = None,
        dtype: Any = "bfloat16",
    ) -> PrefetchRequest:
        """Start reading ``(table id, row ids [seq_len])`` of every table; returns at once."""
        float_name(dtype)
        numbered = [(table_id, as_ids(row_ids)) for table_id, row_ids in requests]
        for table_id, ids in numbered:
            if ids.size != seq_len:
                raise ObmmArgumentError.because(
                    "POOL",
                    errno.EINVAL,
                    f"{ids.size} row ids of table {table_id}",
                    f"pass seq_len={seq_len} of them",
                    "Engram specification 8.1",
                )
        rows = np.empty((len(numbered), seq_len, self.config.embedding_dim), np.float32)
        lookups = self._pool.submit([(table_id, ids, rows[i]) for i, (table_id, ids) in enumerate(numbered)])
        return PrefetchRequest(lookups, rows, dtype, device)

    def wait_and_gather(self, request: PrefetchRequest) -> Any:
        """The rows ``[tables, seq_len, dim]`` on the request's device."""
        self._pool.finish(request.lookups)
        return as_result(request.rows, request.dtype, request.device)

    def prefetch_and_wait(
        self, requests: Sequence[tuple[int, Any]], seq_len: int, device: Any = None, dtype: Any = "bfloat16"
    ) -> Any:
        """Both."""
        return self.wait_and_gather(self.prefetch_async(requests, seq_len, device, dtype))
