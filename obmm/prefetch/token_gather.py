# SPDX-License-Identifier: Apache-2.0
"""Token ids to rows inside a device's stream: hashed and gathered by one host function (docs/device.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from obmm._native import ffi, lib
from obmm.mapping.buffers import array_here
from obmm.prefetch.failures import refused
from obmm.prefetch.hashing.hasher import NgramHasher
from obmm.prefetch.hashing.ngram_native import NativeEngram, NativePoly
from obmm.rows.accelerator import Accelerator, PinnedMemory, handle_of
from obmm.rows.requests import Invalid
from obmm.rows.store import RowStore
from obmm.rows.stream_gather import StreamGather, address_of
from obmm.rows.table import TableId


class TokenGather(StreamGather):
    """A `StreamGather` whose ids are token ids: the host function hashes them, then gathers.  No interpreter runs.

    `tokens`: how many a run has.  `hasher`: made with ``impl="c"``; `layer` is the place of this table's layer in it.
    `request_starts`: int64 ``[R+1]``, where each request starts in the tokens; None: each token is a request of its own,
    as in a decode step.  `rows`: uint8 ``[tokens * columns, row_bytes]`` on the device.

    Beside what a `StreamGather` says, a token that is not below the vocabulary gives zeros for all rows, and `check`
    raises ObmmError EDOM.  Hashers that give -1 for "no row" want ``invalid="zero"``.

        gather = TokenGather(store, "layer0", 8, Accelerator.cuda(), hasher)
        with torch.cuda.graph(graph):
            gather.enqueue_tokens(torch.cuda.current_stream(), tokens, history)  # int64 [8] and [8, order - 1], on the device
    """

    def __init__(
        self,
        store: RowStore,
        table: TableId,
        tokens: int,
        accelerator: Accelerator,
        hasher: NgramHasher,
        layer: int = 0,
        *,
        request_starts: ArrayLike | None = None,
        invalid: Invalid = "error",
        deadline: float | None = None,
    ) -> None:
        runner = hasher.runner
        if not isinstance(runner, (NativeEngram, NativePoly)) or not 0 <= layer < hasher.layers or tokens < 1:
            raise refused(
                f"tokens={tokens}, layer={layer} of {hasher.layers}, {type(runner).__name__}",
                'use at least one token, a layer of the hasher, and a hasher with impl="c"',
                "13.5",
            )
        starts = np.arange(tokens + 1) if request_starts is None else array_here(request_starts)
        self._starts: NDArray[np.int64] = np.ascontiguousarray(starts, np.int64)
        if self._starts.ndim != 1 or self._starts[0] or self._starts[-1] != tokens or (np.diff(self._starts) < 0).any():
            raise refused(
                f"request_starts does not rise from 0 to {tokens}", "pass [R+1] places, the last one T", "13.5"
            )
        super().__init__(store, table, tokens * hasher.columns, accelerator, invalid=invalid, deadline=deadline)
        self.hasher = hasher
        requests, behind = len(self._starts) - 1, hasher.order - 1
        self._tokens, self._history = (
            PinnedMemory(accelerator, tokens * 8),
            PinnedMemory(accelerator, requests * behind * 8),
        )
        self.tokens: NDArray[np.int64] = self._tokens.array(np.int64, (tokens,))
        """The pinned token ids, for who has them on the host."""
        self.history: NDArray[np.int64] = self._history.array(np.int64, (requests, behind))
        """The tokens before each request's first, newest first, -1 where there are none."""
        self.history[:] = -1
        self._hashed = np.empty((tokens, hasher.layers * hasher.columns), np.int64)
        plan = {"engram" if isinstance(runner, NativeEngram) else "poly": runner.plan}
        self._hash = ffi.new("struct obmm_stream_hash *", plan)
        self._hash.batch.tokens = ffi.cast("void *", self._tokens.address)
        self._hash.batch.token_bytes = 8
        self._hash.batch.requests = requests
        self._hash.batch.starts = ffi.from_buffer("int64_t[]", self._starts)
        self._hash.batch.history = ffi.cast("int64_t *", self._history.address)
        self._hash.rows = ffi.from_buffer("int64_t[]", self._hashed, require_writable=True)
        self._hash.width, self._hash.columns = self._hashed.shape[1], hasher.columns
        self._hash.first = layer * hasher.columns
        self._hash.tokens_bytes, self._hash.history_bytes = self._tokens.nbytes, self._history.nbytes
        self._gather.hash = self._hash

    def enqueue_tokens(self, stream: Any = None, tokens: Any = None, history: Any = None) -> None:
        """Put a run into `stream`, which may be under capture.

        `tokens`: int64 ``[tokens]``, `history`: int64 ``[requests, order - 1]``, in device memory, contiguous; None: what is
        in `self.tokens` and `self.history` when the run comes.  Errors as `enqueue`.
        """
        self._check_open()
        first = 0 if tokens is None else address_of(tokens, self.tokens.size, self.accelerator)
        second = 0 if history is None else address_of(history, self.history.size, self.accelerator)
        self._keep(lib.obmm_stream_gather_enqueue_tokens(self._gather, first, second, handle_of(stream)))

    def enqueue(self, stream: Any = None, ids: Any = None) -> None:
        """`enqueue_tokens` with the history that is on the host."""
        self.enqueue_tokens(stream, ids)
