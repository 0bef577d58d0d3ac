# SPDX-License-Identifier: Apache-2.0
"""Token ids in, row numbers out (Engram specification 2, 3 and 13.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from obmm.mapping.buffers import array_here
from obmm.prefetch.hashing.geometry import layers_of, number
from obmm.prefetch.hashing.ngram_native import NativeEngram, NativePoly
from obmm.prefetch.hashing.ngram_numpy import NumpyEngram, NumpyPoly, OutsideVocabularyError
from obmm.prefetch.hashing.plan import Batch, EngramPlan, IdSpace, PolyPlan, refused

Implementation = Literal["c", "numpy"]


class _Runner(Protocol):
    def run(self, batch: Batch, out: NDArray[np.int64]) -> None: ...


class NgramHasher:
    """What both algorithms have in common; not made by itself.  Holds no per-request state: any thread may call `hash`."""

    def __init__(self, runner: _Runner, order: int, shape: tuple[int, int], vocabulary: int) -> None:
        self._runner = runner
        self.order = order
        self.layers, self.columns = shape
        self.vocabulary = vocabulary

    @property
    def runner(self) -> _Runner:
        """Between rooms: what computes the numbers: native for ``impl="c"``."""
        return self._runner

    def hash(
        self,
        tokens: ArrayLike,
        request_starts: ArrayLike,
        history: ArrayLike | None = None,
        dead: ArrayLike | None = None,
        out: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Row numbers int64 ``[T, layers, columns]`` of every token's n-grams.

        `tokens`: int32 or int64 ``[T]``, the requests' token ids one request after the other.
        `request_starts`: ``[R+1]``, where each request starts in `tokens`; the last entry is T.  T and R may be 0.
        `history`: ``[R, N-1]``, the token ids before each request's first one, newest first, -1 where unknown or before
        the start of the sequence; None for requests that start here.
        `dead`: bool ``[T]``: tokens to treat as absent although their id is not negative.
        `out`: C-contiguous int64 of the result's shape; one is made without it.

        ObmmArgumentError: shapes or types that do not fit, an id that is not below the vocabulary.
        """
        batch = self._checked(tokens, request_starts, history, dead)
        shape = (len(batch.tokens), self.layers, self.columns)
        if out is None:
            out = np.empty(shape, dtype=np.int64)
        elif out.shape != shape or out.dtype != np.int64 or not out.flags.c_contiguous:
            raise refused(
                f"out is {out.dtype} {out.shape}, the result is int64 {shape}", "pass a C-contiguous array", "13.5"
            )
        try:
            self._runner.run(batch, out)
        except OutsideVocabularyError:
            raise self._outside(batch) from None
        return out

    def _checked(
        self, tokens: ArrayLike, request_starts: ArrayLike, history: ArrayLike | None, dead: ArrayLike | None
    ) -> Batch:
        ids = np.ascontiguousarray(array_here(tokens))
        if ids.size == 0:
            ids = ids.astype(np.int64)
        if ids.ndim != 1 or ids.dtype not in (np.int32, np.int64):
            raise refused(f"tokens is {ids.dtype} {ids.shape}", "pass int32 or int64 [T]", "13.5")
        starts = np.ascontiguousarray(array_here(request_starts), dtype=np.int64)
        if starts.ndim != 1 or len(starts) < 1 or starts[0] != 0 or starts[-1] != len(ids):
            raise refused(
                f"request_starts does not run from 0 to T={len(ids)}", "pass [R+1] places, the last one T", "13.5"
            )
        if len(starts) > 2 and (starts[1:] < starts[:-1]).any():
            raise refused("request_starts falls", "list the requests in the order of their tokens", "13.5")
        if history is not None:
            history = np.ascontiguousarray(array_here(history), dtype=np.int64)
            if history.shape != (len(starts) - 1, self.order - 1):
                raise refused(
                    f"history is {history.shape}",
                    f"pass [{len(starts) - 1} requests, {self.order - 1} tokens], newest first",
                    "13.5",
                )
        if dead is not None:
            dead = np.ascontiguousarray(array_here(dead), dtype=np.bool_)
            if dead.shape != ids.shape:
                raise refused(f"dead is {dead.shape}", f"pass one bool per token, {ids.shape}", "13.5")
        return Batch(ids, starts, history, dead)

    def _outside(self, batch: Batch) -> ValueError:
        seen = batch.tokens >= self.vocabulary
        if batch.dead is not None:
            seen &= ~batch.dead
        if seen.any():
            place = int(seen.argmax())
            where, token = f"token {place}", int(batch.tokens[place])
        else:
            assert batch.history is not None
            request, shift = np.argwhere(batch.history >= self.vocabulary)[0]
            where, token = f"history of request {request}", int(batch.history[request, shift])
        return refused(
            f"{where} has id {token}, the vocabulary ends at {self.vocabulary - 1}",
            "hash with the tokenizer of the table's model, or mark place-holders dead or negative",
            "2.1",
        )


class EngramHasher(NgramHasher):
    """The DeepSeek Engram hash (Engram specification 2).

    `manifest`: ``algorithm`` "engram-xor", ``layers``, ``pad_id``, ``dead_ids``, ``token_map`` of specification 5.4.
    `token_map`: int32 ``[vocabulary]``, token id -> compressed id; checked against the manifest's SHA-256 and size.  A
    manifest without a digest says that tokens are compressed ids already.
    `id_space`: "flat" numbers rows over all tables of a layer, "local" within each head's table.

    A dead token (listed in the manifest, marked, or negative) gives the pad id for itself and hides what is older.

    `impl`: "c" or "numpy", which agree.  `obmm.prefetch` has an example.  ObmmArgumentError for a manifest that no table was made with.
    """

    def __init__(
        self,
        manifest: Mapping[str, Any],
        impl: Implementation = "c",
        *,
        token_map: NDArray[Any] | None = None,
        id_space: IdSpace = "flat",
    ) -> None:
        plan = EngramPlan.of(manifest, token_map, id_space)
        runner = NativeEngram(plan) if impl == "c" else NumpyEngram(plan)
        super().__init__(runner, plan.order, plan.shape, plan.vocabulary)
        self.layer_ids = tuple(layer.layer_id for layer in plan.layers)
        self.rows = tuple(layer.rows for layer in plan.layers)


class PolyHasher(NgramHasher):
    """The polynomial n-gram hash of LongCat and "over-embedding" (Engram specification 3).

    `V` vocabulary size, `m` base table size, `n` largest order, `k` tables per order, `eos` the token id that ends a
    sequence (None: no such rule).  One layer; the columns are the n-1 orders' k tables, order-major.

    A negative or marked token is not a token: its columns are -1 ("no row"), and nothing looks back past it.

    `impl` and `id_space` as for `EngramHasher`.

    >>> hasher = obmm.prefetch.PolyHasher(V=100, m=31, n=3, k=2, eos=2)
    >>> hasher.hash([5, 6], [0, 2]).shape
    (2, 1, 4)
    """

    def __init__(
        self, V: int, m: int, n: int, k: int, eos: int | None, impl: Implementation = "c", *, id_space: IdSpace = "flat"
    ) -> None:
        plan = PolyPlan.of(V, m, n, k, eos, id_space)
        runner = NativePoly(plan) if impl == "c" else NumpyPoly(plan)
        super().__init__(runner, plan.order, plan.shape, plan.vocabulary)
        self.rows = (int(plan.moduli.sum()),)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], impl: Implementation = "c", **options: Any) -> PolyHasher:
        """From ``layers[0]`` of an "ngram-poly" manifest: V, base, n, k, eos (Engram specification 5.4).

        `impl` and the further `options` (`id_space`) as for the class; ObmmArgumentError for other entries.

        >>> entry = {"algorithm": "ngram-poly", "layers": [{"V": 100, "base": 31, "n": 3, "k": 2, "eos": 2}]}
        >>> obmm.prefetch.PolyHasher.from_manifest(entry).columns
        4
        """
        if manifest.get("algorithm") != "ngram-poly":
            raise refused(
                f"the manifest's algorithm is {manifest.get('algorithm')!r}",
                "pass the manifest of an 'ngram-poly' table, or use EngramHasher",
                "5.4",
            )
        entry = layers_of(manifest)[0]
        V, base, n, k = (number(entry, key) for key in ("V", "base", "n", "k"))
        eos = None if entry.get("eos") is None else number(entry, "eos")
        return cls(V, base, n, k, eos, impl, **options)
