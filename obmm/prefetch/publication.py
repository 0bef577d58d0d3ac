# SPDX-License-Identifier: Apache-2.0
"""What the owner of an Engram table writes into its manifest (Engram specification 5.2 and 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.prefetch.hashing.geometry import EngramLayer
from obmm.prefetch.hashing.plan import refused, token_map_digest
from obmm.rows import TableSpec

TABLE_ALIGNMENT = 2 << 20


def engram_tables(
    layers: Sequence[EngramLayer], row_bytes: int, *, row_stride: int = 0, **description: Any
) -> tuple[TableSpec, ...]:
    """One table per layer, named by the layer's id, each at a 2 MiB border of the payload.

    `row_stride` 0 packs the rows.  `description`: further fields of `TableSpec` (dtype, values, scale_layout,
    neutral_zero).

    `layers`: of `engram_layers`; `row_bytes` bytes each.
    """
    tables: list[TableSpec] = []
    at = 0
    for layer in layers:
        table = TableSpec(
            layer.layer_id,
            layer.rows,
            row_bytes,
            row_stride,
            base_offset=at,
            layer_id=layer.layer_id,
            head_offsets=layer.offsets,
            **description,
        )
        tables.append(table)
        at = -(-table.end // TABLE_ALIGNMENT) * TABLE_ALIGNMENT
    return tuple(tables)


def engram_model(
    layers: Sequence[EngramLayer],
    token_map: NDArray[np.int32],
    *,
    pad_token: int,
    dead_tokens: Sequence[int] = (),
    **more: Any,
) -> dict[str, Any]:
    """The entries from which `EngramHasher` is made: algorithm, layers, pad_id, dead_ids, token_map.

    `pad_token` and `dead_tokens` are **token** ids; the pad's is mapped here (Engram specification 2.1).  `more`: entries
    to add, such as ``model`` with name and revision.
    """
    if not 0 <= pad_token < len(token_map):
        raise refused(f"pad token {pad_token}", f"pass a token id of the {len(token_map)}", "2.1")
    return {
        "algorithm": "engram-xor",
        "layers": [layer.to_manifest() for layer in layers],
        "pad_id": int(token_map[pad_token]),
        "dead_ids": [int(token) for token in dead_tokens],
        "token_map": {"size": int(token_map.max()) + 1, "sha256": token_map_digest(token_map)},
        **more,
    }
