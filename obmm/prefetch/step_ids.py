# SPDX-License-Identifier: Apache-2.0
"""The row numbers of a step, checked before anything of it is begun (Engram specification 10-13 and 13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.mapping.buffers import array_here
from obmm.prefetch.failures import refused
from obmm.prefetch.flight import PrefetchLayer

Ids = NDArray[Any] | Sequence[NDArray[Any]]

_ID_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


def per_layer(ids: Any, n_tokens: int, layers: Sequence[PrefetchLayer]) -> list[NDArray[Any]]:
    """``[n_tokens, layers, columns]``, an array or a tensor, or a list of one ``[n_tokens, columns]`` per layer -> the latter.

    ObmmArgumentError for any other shape or type.
    """
    if not isinstance(ids, np.ndarray) and isinstance(ids, Sequence):
        found = [_array(layer_ids) for layer_ids in ids]
    else:
        whole = _array(ids)
        if whole.ndim != 3 or whole.shape[1] != len(layers):
            raise refused(f"ids is {whole.shape}", f"pass [n_tokens, {len(layers)} layers, columns]", "13.4")
        found = list(whole.swapaxes(0, 1))
    if len(found) != len(layers):
        raise refused(f"ids of {len(found)} layers", f"pass {len(layers)}", "13.4")
    for layer, layer_ids in zip(layers, found, strict=True):
        if layer_ids.shape != (n_tokens, layer.columns) or layer_ids.dtype not in _ID_TYPES:
            raise refused(
                f"ids of layer {layer.layer_id} are {layer_ids.dtype} {layer_ids.shape}",
                f"pass int32 or int64 ({n_tokens}, {layer.columns})",
                "13.4",
            )
    return found


def first_outside(
    ids: Any, found: Sequence[NDArray[Any]], layers: Sequence[PrefetchLayer], limits: NDArray[np.int64]
) -> str | None:
    """Which id is in no row of its table, of all layers before any is touched; None when all are.

    `ids` as `per_layer` was given them: an array is looked through in one call.
    """
    if isinstance(ids, np.ndarray):
        numbers = array_here(ids)
        least, most = numbers.min(), numbers.max(axis=(0, 2))
    else:
        least = min(int(layer_ids.min()) for layer_ids in found)
        most = np.array([layer_ids.max() for layer_ids in found])
    if least >= 0 and (most < limits).all():
        return None
    for layer, layer_ids, rows in zip(layers, found, limits, strict=True):
        for token, column in np.argwhere((layer_ids < 0) | (layer_ids >= rows)):
            return (
                f"layer {layer.layer_id}, token {token}, column {column}: id {layer_ids[token, column]} in a table of "
                f"{rows} rows"
            )
    raise AssertionError("an id is outside, and none is")


def _array(ids: Any) -> NDArray[Any]:
    """`ids` without a copy where it can be had, a tensor too."""
    try:
        return array_here(ids)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise refused(f"ids: {type(ids).__name__}: {error}", "int32 or int64 numbers in host memory", "13.4") from error
