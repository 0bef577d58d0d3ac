# SPDX-License-Identifier: Apache-2.0
"""From token ids to rows in a fixed buffer: hashers, history, and the prefetcher that hides the fabric's latency."""

from obmm.prefetch.geometry import EngramLayer, engram_layers, multipliers, table_sizes
from obmm.prefetch.hasher import EngramHasher, NgramHasher, PolyHasher
from obmm.prefetch.history import ExportedHistory, History
from obmm.prefetch.plan import token_map_digest
from obmm.prefetch.token_map import build_token_map

__all__ = [
    "EngramHasher",
    "EngramLayer",
    "ExportedHistory",
    "History",
    "NgramHasher",
    "PolyHasher",
    "build_token_map",
    "engram_layers",
    "multipliers",
    "table_sizes",
    "token_map_digest",
]
