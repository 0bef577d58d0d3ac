# SPDX-License-Identifier: Apache-2.0
"""The source project's interface over `RowStore`: callers switch by changing an import.

It is retired: it works, warns, gets no new features and goes with version 1.0.  ``docs/prefetch.md`` says what to write in
its place.

>>> config = obmm.prefetch.pool.EngramPoolConfig(hosts=[], ports=[0], num_tables=2, embedding_dim=4, plain=True)
>>> config.validate()
>>> pool = obmm.prefetch.pool.EngramPool(config, device=a)
>>> pool.initialize()
>>> pool.load_table(0, np.arange(40, dtype="f4").reshape(10, 4))
>>> server = pool.serve()

Another node's:

>>> there = obmm.prefetch.pool.EngramPoolConfig(
...     hosts=["127.0.0.1"], ports=[server.port], num_tables=2, embedding_dim=4, plain=True)
>>> there.addresses[0] == server.addresses[0], there.credentials
(True, {'plain': True})
>>> reader = obmm.prefetch.pool.EngramPool(there, device=b)
>>> reader.initialize()
>>> reader.is_table_loaded(0), reader.get_table_meta(0)["shape"] if "shape" in reader.get_table_meta(0) else (10, 4)
(True, (10, 4))
>>> np.asarray(reader.batch_lookup(0, [3, 1]))[:, 0].tolist()
[12.0, 4.0]
>>> np.asarray(reader.batch_lookup_async(0, [2]).result(10)).shape
(1, 4)
>>> prefetcher = obmm.prefetch.pool.EngramPrefetcher(reader, there)
>>> request = prefetcher.prefetch_async([(0, [1, 2, 3])], 3, dtype="float32")  # a PrefetchRequest with Lookups
>>> np.asarray(prefetcher.wait_and_gather(request)).shape
(1, 3, 4)
>>> np.asarray(prefetcher.prefetch_and_wait([(0, [1, 2, 3])], 3, dtype="float32")).shape
(1, 3, 4)
>>> reader.shutdown(), pool.shutdown()
(None, None)
"""

from typing import Any

from obmm.prefetch.pool.config import EngramPoolConfig
from obmm.prefetch.pool.lookups import Lookups
from obmm.prefetch.pool.pool import EngramPool
from obmm.prefetch.pool.prefetcher import EngramPrefetcher, PrefetchRequest

__all__ = ["EngramPool", "EngramPoolConfig", "EngramPrefetcher", "Lookups", "PrefetchRequest"]


def __getattr__(name: str) -> Any:
    """`RemoteEngramEmbedding` is a torch module: asking for it imports torch, and nothing else does."""
    if name != "RemoteEngramEmbedding":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from obmm.prefetch.pool.remote_embedding import RemoteEngramEmbedding
    except ImportError as error:
        raise ImportError("RemoteEngramEmbedding is a torch module: pip install torch") from error
    return RemoteEngramEmbedding
