# SPDX-License-Identifier: Apache-2.0
"""From token ids to rows in a fixed buffer: hashers, history, and the prefetcher that hides the fabric's latency."""

from obmm.prefetch.breaker import BreakerState, CircuitBreaker
from obmm.prefetch.deadlines import Deadlines
from obmm.prefetch.device import DeviceCopy
from obmm.prefetch.exposition import PrometheusCollector
from obmm.prefetch.failures import PeerFailedError
from obmm.prefetch.flight import PrefetchLayer
from obmm.prefetch.geometry import EngramLayer, engram_layers, multipliers, table_sizes
from obmm.prefetch.hasher import EngramHasher, NgramHasher, PolyHasher
from obmm.prefetch.history import ExportedHistory, History
from obmm.prefetch.metrics import PrefetchMetrics
from obmm.prefetch.plan import token_map_digest
from obmm.prefetch.policy import Policy
from obmm.prefetch.prefetcher import EngramPrefetcher
from obmm.prefetch.publication import engram_model, engram_tables
from obmm.prefetch.rows import Rows, RowsStatus, StepReport
from obmm.prefetch.shared_staging import SharedStaging
from obmm.prefetch.source import RowSource, Ticket
from obmm.prefetch.staging_follower import StagingFollower
from obmm.prefetch.token_map import build_token_map
from obmm.rows import GatherDeadlineError

__all__ = [
    "BreakerState",
    "CircuitBreaker",
    "Deadlines",
    "DeviceCopy",
    "EngramHasher",
    "EngramLayer",
    "EngramPrefetcher",
    "ExportedHistory",
    "GatherDeadlineError",
    "History",
    "NgramHasher",
    "PeerFailedError",
    "Policy",
    "PolyHasher",
    "PrefetchLayer",
    "PrefetchMetrics",
    "PrometheusCollector",
    "RowSource",
    "Rows",
    "RowsStatus",
    "SharedStaging",
    "StagingFollower",
    "StepReport",
    "Ticket",
    "build_token_map",
    "engram_layers",
    "engram_model",
    "engram_tables",
    "multipliers",
    "table_sizes",
    "token_map_digest",
]
