# SPDX-License-Identifier: Apache-2.0
"""From token ids to rows in a fixed buffer: hashers, history, and the prefetcher that hides the fabric's latency.

From the description of a model to rows, in one process with local memory (`obmm.rows.RowStore.attach` takes imported
regions in its place):

>>> from obmm.prefetch import *                    # everything below is of this room
>>> table_sizes([11, 13], heads=2, layers=1), len(multipliers(20, layer_id=1, order=3))
([((11, 13), (17, 19))], 3)
>>> geometry = engram_layers([1], vocabulary=20, bases=[11, 13], heads=2)
>>> (layer,) = geometry
>>> layer.moduli, layer.offsets, layer.rows == sum(layer.moduli)
((11, 13, 17, 19), (0, 11, 24, 41), True)
>>> EngramLayer.from_manifest(layer.to_manifest()) == layer
True
>>> token_map = np.arange(20, dtype=np.int32)      # build_token_map makes one of a tokenizer
>>> specs = engram_tables(geometry, row_bytes=16, neutral_zero=True)
>>> shared = np.zeros(4096 + specs[0].end, "u1")
>>> obmm.rows.LocalMemory.format(shared, generation=7)
>>> owner = obmm.rows.RowStore.attach(
...     obmm.rows.LocalMemory(shared, header=True), obmm.rows.Manifest(specs), verify="none")
>>> owner.populate(1, np.full((layer.rows, 16), 5, "u1"))
>>> manifest = owner.publish(**engram_model(geometry, token_map, pad_token=2))
>>> manifest.model["token_map"]["sha256"] == token_map_digest(token_map)
True
>>> store = obmm.rows.RowStore.attach(obmm.rows.LocalMemory(shared, header=True), manifest)  # a RowSource
>>> list(store.tables), store.attach_seconds > 0
([1], True)

A request's tokens, chunk by chunk; drafts can be taken back:

>>> hasher = EngramHasher(manifest.to_dict(), token_map=token_map)  # a NgramHasher
>>> history = History(hasher.order)
>>> ids = hasher.hash([3, 1, 4], [0, 3], history.windows(["r"]))
>>> ids.shape                                      # tokens, layers, columns
(3, 1, 4)
>>> history.extend("r", [3, 1, 4])
>>> history.extend_batch(["r"], [1, 5], [0, 2], positions=[3])
>>> history.rollback("r", 1)
>>> history.rollback_batch(["r"], [1])
>>> history.position("r"), history.windows(["r"]).tolist()
(3, [[4, 1]])
>>> travels = history.export("r")                  # an ExportedHistory, to another node
>>> history.drop("r")
>>> history.import_("r", travels)

A step: the gather runs while the model computes:

>>> layers = [PrefetchLayer(1, 1, hasher.columns)]
>>> prefetcher = EngramPrefetcher(store, layers, max_tokens=8, policy="zero", deadlines=Deadlines(decode=5.0))
>>> prefetcher.begin(ids, n_tokens=3)
>>> prefetcher.start()
>>> rows = prefetcher.consume(1)                   # Rows
>>> rows.status is RowsStatus.OK, rows.buffer.shape, int(rows.buffer.min())
(True, (3, 4, 16), 5)
>>> prefetcher.poll(1), prefetcher.rows_u8(1).shape
(True, (8, 4, 16))
>>> report = prefetcher.drain()                    # a StepReport
>>> report.n_tokens, report.statuses[1].name
(3, 'OK')
>>> prefetcher.begin(ids, n_tokens=3)
>>> prefetcher.cancel("a rejected draft")
>>> prefetcher.attach(store)                       # the owner published again: the buffers stay
>>> len(prefetcher.metrics.families()) > 10
True

One process of a node gathers, the others look on:

>>> staging = SharedStaging(store, layers, max_tokens=8)
>>> reader = EngramPrefetcher(store, layers, 8, deadlines=Deadlines(decode=5.0),
...                           staging=lambda nbytes: staging.allocate(nbytes))
>>> follower = StagingFollower(staging.fileno())   # in another process, which got the descriptor
>>> reader.begin(ids, n_tokens=3, step=1), reader.start()
(None, None)
>>> staging.publish(1, 1, reader.consume(1))
>>> follower.poll(1, 1), follower.wait(1, 1, timeout=5.0).status.name, follower.rows_u8(1).shape, follower.layers
(True, 'OK', (8, 4, 16), (StagedLayer(layer_id=1, ...),))
>>> follower.drain(), staging.retire(1), reader.drain() is not None
(None, None, True)
>>> follower.close(), reader.close(), staging.close(), prefetcher.close(), store.close(), owner.close()
(None, None, None, None, None, None)
>>> follower.closed
True
"""

from obmm.prefetch.breaker import BreakerState, CircuitBreaker
from obmm.prefetch.deadlines import Deadlines
from obmm.prefetch.device import DeviceCopy
from obmm.prefetch.exposition import PrometheusCollector
from obmm.prefetch.failures import PeerFailedError
from obmm.prefetch.flight import PrefetchLayer
from obmm.prefetch.hashing.geometry import EngramLayer, engram_layers, multipliers, table_sizes
from obmm.prefetch.hashing.hasher import EngramHasher, NgramHasher, PolyHasher
from obmm.prefetch.hashing.plan import token_map_digest
from obmm.prefetch.hashing.token_map import build_token_map
from obmm.prefetch.history import ExportedHistory, History
from obmm.prefetch.metrics import PrefetchMetrics
from obmm.prefetch.policy import Policy
from obmm.prefetch.prefetcher import EngramPrefetcher
from obmm.prefetch.publication import engram_model, engram_tables
from obmm.prefetch.rows import Rows, RowsStatus, StepReport
from obmm.prefetch.source import RowSource, Ticket
from obmm.prefetch.staging.shared_staging import SharedStaging
from obmm.prefetch.staging.staging_follower import StagingFollower
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
