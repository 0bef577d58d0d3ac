# SPDX-License-Identifier: Apache-2.0
"""The source project's interface over `RowStore` (Engram specification 8.1): callers switch by changing an import.

from obmm.prefetch.pool import EngramPool, EngramPoolConfig, EngramPrefetcher, RemoteEngramEmbedding
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.errors import ClosedError, ObmmArgumentError
from obmm.prefetch.pool_config import EngramPoolConfig
from obmm.prefetch.tensors import as_float32, as_ids, as_result, float_name
from obmm.rows import Manifest, RowStore, TableSpec, Ticket

__all__ = ["EngramPool", "EngramPoolConfig", "EngramPrefetcher", "PrefetchRequest"]


@dataclass(frozen=True, slots=True)
class _Table:
    """A table and how to read it.  `mapping` is None for another node's."""

    store: RowStore
    rows: int
    dim: int
    region: Any


class EngramPool:
    """float32 tables by number, read from where they were loaded.

    A node that calls `load_table` exports the table from its own memory; `serve` lets other nodes' pools find it.  A
    pool that finds a table at one of its config's hosts imports it and reads it through the fabric.

    `device`: an open `obmm.Device` (default: ``obmm.open()``).  `credentials`: what `obmm.connect` and `obmm.serve` take,
    ``{"key": path}``, ``{"tls": files}`` or ``{"plain": True}`` (default: the config's).
    """

    def __init__(
        self,
        config: EngramPoolConfig,
        *,
        device: obmm.Device | None = None,
        credentials: dict[str, Any] | None = None,
    ) -> None:
        config.validate()
        self.config = config
        self._device = device
        self._credentials = config.credentials if credentials is None else credentials
        self._tables: dict[int, _Table] = {}
        self._served: set[str] = set()
        self._peers: list[obmm.Peer] = []
        self._server: obmm.Server | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._cleanup = ExitStack()

    # --- the source project's calls -------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Open the device and connect to every host of the config; idempotent."""
        if self._executor is not None:
            return
        with ExitStack() as undo:
            if self._device is None:
                self._device = undo.enter_context(obmm.open())
            self._executor = undo.enter_context(ThreadPoolExecutor(self.config.num_prefetch_workers, "engram-pool"))
            for address in self.config.addresses:
                peer = obmm.connect(address, timeout=self.config.connect_timeout_ms / 1e3, **self._credentials)
                self._peers.append(undo.enter_context(peer))
            self._cleanup = undo.pop_all()

    def load_table(self, table_id: int, tensor: Any) -> None:
        """Put a table ``[rows, dim]`` into this node's memory as float32, and publish it.

        Loading a table again replaces its content and needs the same shape; readers elsewhere find it stale and must
        look it up anew.
        """
        device = self._ready()
        values = as_float32(tensor)
        if values.shape[1] != self.config.embedding_dim or len(values) > self.config.table_capacity:
            raise _refused(
                f"table {table_id} of shape {values.shape}; the config says embedding_dim="
                f"{self.config.embedding_dim}, table_capacity={self.config.table_capacity}",
                "make the config fit the table",
            )
        known = self._tables.get(table_id)
        if known is None:
            known = self._new_table(device, table_id, values)
        elif (known.rows, known.dim) != values.shape or not isinstance(known.region, obmm.ExportedRegion):
            raise _refused(
                f"table {table_id} is loaded as {known.rows} x {known.dim}", "load it where it lies, in the same shape"
            )
        known.store.populate(table_id, values)
        manifest = known.store.publish()
        if self._server is not None:
            self._publish(self._server, table_id, known.region, manifest)
        self._tables[table_id] = known

    def batch_lookup(self, table_id: int, row_ids: Any, dtype: Any = "float32") -> Any:
        """Rows ``[n, dim]`` on the host, as `dtype`."""
        table = self._table(table_id)
        ids = as_ids(row_ids)
        out = np.empty((ids.size, table.dim), np.float32)
        self.finish(self.submit([(table_id, ids, out)]))
        return as_result(out, dtype)

    def batch_lookup_async(self, table_id: int, row_ids: Any, dtype: Any = "float32") -> Future[Any]:
        """`batch_lookup` in the background."""
        self._ready()
        assert self._executor is not None
        return self._executor.submit(self.batch_lookup, table_id, row_ids, dtype)

    def is_table_loaded(self, table_id: int) -> bool:
        """Whether the table is here or at one of the hosts."""
        return self._find(table_id) is not None

    def get_table_meta(self, table_id: int) -> dict[str, Any]:
        """Shape and place of a table."""
        table = self._table(table_id)
        return {
            "table_id": table_id,
            "rows": table.rows,
            "dim": table.dim,
            "dtype": "float32",
            "row_bytes": table.dim * 4,
            "generation": table.store.manifest.generation,
            "path": table.store.path,
            "backend": table.store.backend,
        }

    def shutdown(self) -> None:
        """Give everything back: stores, mappings, regions, connections, the device that `initialize` opened."""
        server, self._server = self._server, None
        if server is not None:
            server.close()  # importers give back first
        self._tables.clear()
        self._peers.clear()
        self._executor = None
        self._cleanup.close()

    # --- this package's additions ---------------------------------------------------------------------------------

    def serve(self, **options: Any) -> obmm.Server:
        """Let other pools find the tables of this node; `options` as for `obmm.serve`, the port is the config's."""
        self._ready()
        options = {"port": self.config.ports[0], **self._credentials, **options}
        server = obmm.serve({}, **options)
        for table_id, table in self._tables.items():
            if isinstance(table.region, obmm.ExportedRegion):
                self._publish(server, table_id, table.region, table.store.manifest)
        self._server = server
        return server

    def submit(self, requests: Sequence[tuple[int, NDArray[np.int64], NDArray[np.float32]]]) -> list[Ticket]:
        """Queue lookups ``(table id, ids, out [n, dim])`` in the order given; neighbours from one store in one call."""
        self._ready()
        tables = [self._table(table_id) for table_id, _, _ in requests]
        tickets: list[Ticket] = []
        for store, group in groupby(zip(tables, requests, strict=True), key=lambda pair: pair[0].store):
            parts = [part for _, request in group for part in self._parts(*request)]
            tickets += store.submit_many(parts)
        return tickets

    def finish(self, tickets: Sequence[Ticket]) -> None:
        """Wait for all of them, at most the config's request time-out; raises the first error.

        After GatherDeadlineError the outputs may still be written to: the tickets keep them alive.
        """
        deadline = time.monotonic() + self.config.request_timeout_ms / 1e3
        try:
            for ticket in tickets:
                ticket.result(max(0.0, deadline - time.monotonic()))
        except BaseException:
            for ticket in tickets:
                ticket.abandon()
            raise

    # --- inside ---------------------------------------------------------------------------------------------------

    def _ready(self) -> obmm.Device:
        if self._executor is None or self._device is None:
            raise ClosedError.of("EngramPool", "is not initialized: call initialize() first")
        return self._device

    def _name(self, table_id: int) -> str:
        return f"{self.config.key_prefix}.{table_id}"

    def _table(self, table_id: int) -> _Table:
        found = self._find(table_id)
        if found is None:
            raise _refused(
                f"table {table_id} is neither loaded here nor at {', '.join(self.config.addresses) or 'any host'}",
                "load_table() it on its node, and serve() there",
            )
        return found

    def _find(self, table_id: int) -> _Table | None:
        known = self._tables.get(table_id)
        if known is not None:
            return known
        device = self._ready()
        name = self._name(table_id)
        for peer in self._peers:
            if name in peer.list():
                self._tables[table_id] = found = self._import(device, peer, name)
                return found
        return None

    def _import(self, device: obmm.Device, peer: obmm.Peer, name: str) -> _Table:
        lease = peer.fetch(name)
        with ExitStack() as undo:
            undo.callback(lease.release)
            region = undo.enter_context(device.import_region(lease))
            store = undo.enter_context(RowStore.attach([region], lease.manifest))
            self._cleanup.push(undo.pop_all())
        (spec,) = store.tables.values()
        return _Table(store, spec.n_rows, spec.values, region)

    def _new_table(self, device: obmm.Device, table_id: int, values: NDArray[np.float32]) -> _Table:
        rows, dim = values.shape
        spec = TableSpec(table_id, rows, dim * 4, dtype="<f4", values=dim)
        with ExitStack() as undo:
            region = undo.enter_context(device.export_region(spec.end, label=self._name(table_id)))
            mapping = undo.enter_context(region.map("rw"))
            store = undo.enter_context(RowStore.attach(mapping, Manifest((spec,)), verify="none"))
            self._cleanup.push(undo.pop_all())
        return _Table(store, rows, dim, region)

    def _publish(self, server: obmm.Server, table_id: int, region: obmm.ExportedRegion, manifest: Manifest) -> None:
        name = self._name(table_id)
        if name in self._served:
            server.revoke(name)
        server.publish(name, region, manifest.to_dict())
        self._served.add(name)

    def _parts(
        self, table_id: int, ids: NDArray[np.int64], out: NDArray[np.float32]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        """One lookup in pieces of at most the config's batch size."""
        step = self.config.max_batch_keys
        for at in range(0, ids.size, step):
            yield table_id, ids[at : at + step], out[at : at + step]


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """Lookups that are under way."""

    tickets: tuple[Ticket, ...]
    rows: NDArray[np.float32]
    dtype: Any
    device: Any


class EngramPrefetcher:
    """The source project's prefetcher: all tables of a step at once, as one ``[tables, tokens, dim]`` array.

    Code that is written anew should use `obmm.prefetch.EngramPrefetcher`, which has fixed buffers and failure policies:
    this one allocates per request and raises in `wait_and_gather`, as its callers expect.
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
                raise _refused(f"{ids.size} row ids of table {table_id}", f"pass seq_len={seq_len} of them")
        rows = np.empty((len(numbered), seq_len, self.config.embedding_dim), np.float32)
        tickets = self._pool.submit([(table_id, ids, rows[i]) for i, (table_id, ids) in enumerate(numbered)])
        return PrefetchRequest(tuple(tickets), rows, dtype, device)

    def wait_and_gather(self, request: PrefetchRequest) -> Any:
        """The rows ``[tables, seq_len, dim]`` on the request's device."""
        self._pool.finish(request.tickets)
        return as_result(request.rows, request.dtype, request.device)

    def prefetch_and_wait(
        self, requests: Sequence[tuple[int, Any]], seq_len: int, device: Any = None, dtype: Any = "bfloat16"
    ) -> Any:
        """Both."""
        return self.wait_and_gather(self.prefetch_async(requests, seq_len, device, dtype))


def __getattr__(name: str) -> Any:
    """`RemoteEngramEmbedding` is a torch module: asking for it imports torch, and nothing else does."""
    if name != "RemoteEngramEmbedding":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from obmm.prefetch.remote_embedding import RemoteEngramEmbedding
    except ImportError as error:
        raise ImportError("RemoteEngramEmbedding is a torch module: pip install torch") from error
    return RemoteEngramEmbedding


def _refused(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("POOL", errno.EINVAL, problem, fix, "Engram specification 8.1")
