# SPDX-License-Identifier: Apache-2.0
"""The source project's interface over `RowStore` (Engram specification 8.1): callers switch by changing an import.

from obmm.prefetch.pool import EngramPool, EngramPoolConfig, EngramPrefetcher, RemoteEngramEmbedding

For callers of that interface.  New code takes `obmm.integrations.engram.TableClient` (docs/engram-tables.md).
"""

from __future__ import annotations

import errno
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.closing import Owner
from obmm.errors import ClosedError, ObmmArgumentError, ObmmError, RemoteMemoryError, StaleHandleError
from obmm.exchange import ExchangeError, LeaseError, LeaseEvent, RequestRefusedError
from obmm.prefetch.pool.config import EngramPoolConfig
from obmm.prefetch.pool.lookups import Lookup, Lookups
from obmm.prefetch.pool.prefetcher import EngramPrefetcher, PrefetchRequest
from obmm.prefetch.pool.table import PoolTable
from obmm.prefetch.tensors import as_float32, as_ids, as_result
from obmm.rows import Ticket

__all__ = ["EngramPool", "EngramPoolConfig", "EngramPrefetcher", "Lookups", "PrefetchRequest"]


T = TypeVar("T")

_TAKEN_AWAY = (StaleHandleError, LeaseError, ClosedError, RemoteMemoryError)
_RETRY = (0.001, 0.05)  # seconds between looks at a table that its owner loads anew: the first, the longest


class _Again(Exception):
    """Try once more while there is time; `error` when there is none."""

    def __init__(self, error: ObmmError) -> None:
        self.error = error


class EngramPool(Owner):
    """float32 tables by number, read from where they were loaded.

    A node that calls `load_table` exports the table from its own memory; `serve` lets other nodes' pools find it.  A
    pool that finds a table at one of its config's hosts imports it and reads it through the fabric.  When the owner takes
    the table back to load it anew, the importer lets go at once, and attaches again with the next lookup, which waits for
    the owner up to the config's request time-out.

    `device`: an open `obmm.Device` (default: ``obmm.open()``).  `credentials`: what `obmm.connect` and `obmm.serve` take,
    ``{"key": path}``, ``{"tls": files}`` or ``{"plain": True}`` (default: the config's).

    `table_id`: 0 to the config's `num_tables`; `row_ids`: ``[n]``, integers, and `tensor` anything that NumPy or torch reads.
    ObmmArgumentError for others, KeyError for a table that is nowhere, ClosedError after `shutdown`.  `config`: which.
    """

    def __init__(
        self,
        config: EngramPoolConfig,
        *,
        device: obmm.Device | None = None,
        credentials: dict[str, Any] | None = None,
    ) -> None:
        config.validate()
        warnings.warn(
            "obmm.prefetch.pool is retired: obmm.integrations.engram.TableClient reads published tables "
            "(docs/prefetch.md, Coming from the source project)",
            DeprecationWarning,
            stacklevel=2,
        )
        self.config = config
        self._device = device
        self._credentials = config.credentials if credentials is None else credentials
        self._tables: dict[int, PoolTable] = {}
        self._found: set[int] = set()  # imported once: when they are nowhere, their owner may be loading them
        self._attaching = threading.Lock()
        self._served: set[int] = set()
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

        Loading a table again replaces its content and needs the same shape.  Readers elsewhere are asked to let go first
        (driver specification 16, rule 4) and read the new content from their next lookup on.  LeasesOutstandingError when
        one does not within the config's request time-out: the content is as before, and not served until the next try.
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
            known = self._tables[table_id] = PoolTable.exported(device, table_id, self._name(table_id), values)
        elif (known.rows, known.dim) != values.shape or known.region is None:
            raise _refused(
                f"table {table_id} is loaded as {known.rows} x {known.dim}", "load it where it lies, in the same shape"
            )
        elif self._server is not None and table_id in self._served:
            self._server.revoke(self._name(table_id), timeout=self._request_timeout)
            self._served.remove(table_id)
        known.store.populate(table_id, values)
        known.store.publish()
        if self._server is not None:
            self._publish(self._server, table_id, known)

    def batch_lookup(self, table_id: int, row_ids: Any, dtype: Any = "float32") -> Any:
        """Rows ``[n, dim]`` on the host, as `dtype`."""
        ids = as_ids(row_ids)
        out = np.empty((ids.size, self.config.embedding_dim), np.float32)
        self.finish(self.submit([(table_id, ids, out)]))
        return as_result(out, dtype)

    def batch_lookup_async(self, table_id: int, row_ids: Any, dtype: Any = "float32") -> Future[Any]:
        """`batch_lookup` in the background."""
        self._ready()
        assert self._executor is not None
        return self._executor.submit(self.batch_lookup, table_id, row_ids, dtype)

    def is_table_loaded(self, table_id: int) -> bool:
        """Whether the table is here or at one of the hosts now; not while its owner loads it anew."""
        return self._find(table_id) is not None

    def get_table_meta(self, table_id: int) -> dict[str, Any]:
        """Shape and place of a table."""
        table = self._until(time.monotonic() + self._request_timeout, lambda: self._table(table_id))
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
        self._served.clear()
        for table in list(self._tables.values()):
            self._let_go(table)
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
            if table.region is not None:
                self._publish(server, table_id, table)
        self._server = server
        return server

    def submit(self, requests: Sequence[Lookup]) -> Lookups:
        """Between rooms: queue lookups in the order given; neighbours from one store in one call."""
        deadline = time.monotonic() + self._request_timeout
        return Lookups(requests, self._until(deadline, lambda: self._submit(requests)))

    def finish(self, lookups: Lookups) -> None:
        """Between rooms: wait for all of them, at most the config's request time-out; raises the first error.

        A table that was taken away meanwhile is attached again, and the lookups run once more.  After GatherDeadlineError the
        outputs may still be written to: the tickets keep them alive.
        """
        deadline = time.monotonic() + self._request_timeout
        try:
            self._until(deadline, lambda: self._results(lookups, deadline))
        except BaseException:
            lookups.abandon()
            raise

    # --- inside ---------------------------------------------------------------------------------------------------

    def _ready(self) -> obmm.Device:
        if self._executor is None or self._device is None:
            raise ClosedError.of("EngramPool", "is not initialized: call initialize() first")
        return self._device

    def _name(self, table_id: int) -> str:
        return f"{self.config.key_prefix}.{table_id}"

    @property
    def _request_timeout(self) -> float:
        return self.config.request_timeout_ms / 1e3

    def _until(self, deadline: float, attempt: Callable[[], T]) -> T:
        """What `attempt` gives, tried again until `deadline` while it asks for that."""
        pause, longest = _RETRY
        while True:
            try:
                return attempt()
            except _Again as again:
                if time.monotonic() + pause >= deadline:
                    raise again.error from None
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _submit(self, requests: Sequence[Lookup]) -> list[tuple[PoolTable, Ticket]]:
        self._ready()
        tables = [self._table(table_id) for table_id, _, _ in requests]
        gathers: list[tuple[PoolTable, Ticket]] = []
        try:
            for table, group in groupby(zip(tables, requests, strict=True), key=lambda pair: pair[0]):
                parts = [part for _, request in group for part in self._parts(*request)]
                gathers += [(table, ticket) for ticket in table.store.submit_many(parts)]
        except _TAKEN_AWAY as error:
            self._end(gathers, error)
            if any(table.taken_away for table in tables):
                raise _Again(error) from error
            raise
        return gathers

    def _results(self, lookups: Lookups, deadline: float) -> None:
        if not lookups.gathers:
            lookups.gathers = self._submit(lookups.requests)
        for table, ticket in lookups.gathers:
            try:
                ticket.result(max(0.0, deadline - time.monotonic()))
            except _TAKEN_AWAY as error:
                stale = isinstance(error, StaleHandleError)
                if stale and table.lease is not None:
                    self._let_go(table)  # what was attached is of an earlier publication
                if not stale and not table.taken_away:
                    raise
                self._end(lookups.gathers, error)
                lookups.gathers = []
                raise _Again(error) from error

    def _end(self, gathers: Sequence[tuple[PoolTable, Ticket]], error: ObmmError) -> None:
        """Until none of them writes any more; `error` when that takes too long."""
        deadline = time.monotonic() + self._request_timeout
        for _, ticket in gathers:
            ticket.abandon()
        if not all(ticket.wait(max(0.0, deadline - time.monotonic())) for _, ticket in gathers):
            raise error

    def _table(self, table_id: int) -> PoolTable:
        found: PoolTable | None = None
        try:
            found = self._find(table_id)
        except (StaleHandleError, ExchangeError) as error:
            if table_id in self._found:
                raise _Again(error) from error
            raise
        if found is not None:
            return found
        missing = _refused(
            f"table {table_id} is neither loaded here nor at {', '.join(self.config.addresses) or 'any host'}",
            "load_table() it on its node, and serve() there",
        )
        if table_id in self._found:
            raise _Again(missing)
        raise missing

    def _find(self, table_id: int) -> PoolTable | None:
        known = self._tables.get(table_id)
        if known is not None and not known.taken_away:
            return known
        device = self._ready()
        name = self._name(table_id)
        with self._attaching:
            known = self._tables.get(table_id)
            if known is not None:
                if not known.taken_away:
                    return known
                self._let_go(known)
            for peer in self._peers:
                if name not in peer.list():
                    continue
                try:
                    found = PoolTable.imported(device, peer, name)
                except RequestRefusedError:
                    continue  # withdrawn since
                self._found.add(table_id)
                self._tables[table_id] = found
                assert found.lease is not None
                found.lease.on_change(partial(self._lease_changed, found))
                if found.taken_away:  # before a listener was there
                    self._let_go(found)
                    return None
                return found
        return None

    def _lease_changed(self, table: PoolTable, event: LeaseEvent) -> None:
        """The owner waits for us: let go now, and not with the next lookup."""
        if table.taken_away:
            self._let_go(table)

    def _let_go(self, table: PoolTable) -> None:
        table.close(self._request_timeout)
        if self._tables.get(table.table_id) is table:
            self._tables.pop(table.table_id, None)

    def _publish(self, server: obmm.Server, table_id: int, table: PoolTable) -> None:
        assert table.region is not None
        server.publish(self._name(table_id), table.region, table.store.manifest.to_dict())
        self._served.add(table_id)

    def _parts(
        self, table_id: int, ids: NDArray[np.int64], out: NDArray[np.float32]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        """One lookup in pieces of at most the config's batch size."""
        step = self.config.max_batch_keys
        for at in range(0, ids.size, step):
            yield table_id, ids[at : at + step], out[at : at + step]


def _refused(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("POOL", errno.EINVAL, problem, fix, "Engram specification 8.1")
