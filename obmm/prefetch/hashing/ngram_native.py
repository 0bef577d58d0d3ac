# SPDX-License-Identifier: Apache-2.0
"""The hashers in C (native/hash/ngram.c).  The lock is released while they run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm._native import ffi, lib
from obmm.prefetch.hashing.ngram_numpy import OutsideVocabularyError
from obmm.prefetch.hashing.plan import Batch, EngramPlan, PolyPlan


class NativeEngram:
    """Algorithm A."""

    def __init__(self, plan: EngramPlan) -> None:
        multipliers = np.array([layer.multipliers for layer in plan.layers], dtype=np.uint64)
        columns, self._columns = _columns(plan.moduli, plan.offsets)
        self._plan = ffi.new(
            "struct obmm_engram *",
            {
                "order": plan.order,
                "layers": len(plan.layers),
                "heads": plan.heads,
                "pad": plan.pad,
                "vocabulary": plan.vocabulary,
                "map": ffi.NULL if plan.token_map is None else ffi.from_buffer("int32_t[]", plan.token_map),
                "multiplier": ffi.from_buffer("uint64_t[]", multipliers),
                "columns": columns,
            },
        )
        self._kept = plan, multipliers

    @property
    def plan(self) -> Any:
        """The native plan: lives as long as this object."""
        return self._plan

    def run(self, batch: Batch, out: NDArray[np.int64]) -> None:
        _call(lib.obmm_engram_hash, self._plan, batch, out)


class NativePoly:
    """Algorithm B."""

    def __init__(self, plan: PolyPlan) -> None:
        columns, self._columns = _columns(plan.moduli, plan.offsets)
        self._plan = ffi.new(
            "struct obmm_poly *",
            {
                "order": plan.order,
                "vocabulary": plan.vocabulary,
                "eos": plan.eos,
                "coefficient": ffi.from_buffer("uint64_t[]", plan.coefficients),
                "columns": columns,
            },
        )
        self._kept = plan

    @property
    def plan(self) -> Any:
        """The native plan: lives as long as this object."""
        return self._plan

    def run(self, batch: Batch, out: NDArray[np.int64]) -> None:
        _call(lib.obmm_poly_hash, self._plan, batch, out)


def kernel() -> str:
    """``"avx512"`` or ``"scalar"``: what runs on this machine."""
    name: bytes = ffi.string(lib.obmm_ngram_kernel())
    return name.decode()


def _columns(moduli: NDArray[np.uint64], offsets: NDArray[np.uint64]) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The C struct's fields, and the arrays behind them, which the caller keeps."""
    reciprocals = np.uint64(2**64 - 1) // moduli
    inverses = np.array([lib.obmm_ngram_inverse(int(m)) for m in moduli])
    fields = {
        "count": len(moduli),
        "modulus": ffi.from_buffer("uint64_t[]", moduli),
        "reciprocal": ffi.from_buffer("uint64_t[]", reciprocals),
        "inverse": ffi.from_buffer("double[]", inverses) if inverses.all() else ffi.NULL,
        "offset": ffi.from_buffer("uint64_t[]", offsets),
    }
    return fields, (moduli, reciprocals, inverses, offsets)


def _call(function: Any, plan: Any, batch: Batch, out: NDArray[np.int64]) -> None:
    argument = ffi.new("struct obmm_ngram_batch *")
    argument.tokens = ffi.from_buffer(batch.tokens)
    argument.token_bytes = batch.tokens.itemsize
    argument.requests = len(batch.starts) - 1
    argument.starts = ffi.from_buffer("int64_t[]", batch.starts)
    if batch.history is not None:
        argument.history = ffi.from_buffer("int64_t[]", batch.history)
    if batch.dead is not None:
        argument.dead = ffi.from_buffer("uint8_t[]", batch.dead)
    if function(plan, argument, ffi.from_buffer("int64_t[]", out, require_writable=True)):
        raise OutsideVocabularyError
