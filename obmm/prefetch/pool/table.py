# SPDX-License-Identifier: Apache-2.0
"""One table of a pool: where it lies, and how to let go of it (Engram specification 8.1)."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Self

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.closing import Owner
from obmm.errors import MappingBusyError
from obmm.exchange.lease import LeaseStatus
from obmm.rows import Manifest, RowStore, TableSpec

_KEPT = (LeaseStatus.ACTIVE, LeaseStatus.SUSPECT)
_POLL = 0.001


class PoolTable(Owner):
    """A float32 table ``[rows, dim]`` and how to read it.  `region` is None for another node's, `lease` for our own."""

    def __init__(
        self, store: RowStore, cleanup: ExitStack, region: obmm.ExportedRegion | None, lease: obmm.Lease | None
    ) -> None:
        (spec,) = store.tables.values()
        self.table_id: int = spec.table_id  # type: ignore[assignment]  # a pool's tables have numbers
        self.store = store
        self.rows, self.dim = spec.n_rows, spec.values
        self.region = region
        self.lease = lease
        self._cleanup = cleanup
        self._closing = threading.Lock()
        self._closed = False

    @classmethod
    def exported(cls, device: obmm.Device, table_id: int, label: str, values: NDArray[np.float32]) -> Self:
        """Room for `values` in this node's memory; nothing is written."""
        rows, dim = values.shape
        spec = TableSpec(table_id, rows, dim * 4, dtype="<f4", values=dim)
        with ExitStack() as undo:
            region = undo.enter_context(device.export_region(spec.end, label=label))
            mapping = undo.enter_context(region.map("rw"))
            store = undo.enter_context(RowStore.attach(mapping, Manifest((spec,)), verify="none"))
            return cls(store, undo.pop_all(), region, None)

    @classmethod
    def imported(cls, device: obmm.Device, peer: obmm.Peer, name: str) -> Self:
        """Another node's, through the fabric."""
        lease = peer.fetch(name)
        with ExitStack() as undo:
            undo.callback(lease.release)
            region = undo.enter_context(device.import_region(lease))
            store = undo.enter_context(RowStore.attach([region], lease.manifest))
            return cls(store, undo.pop_all(), None, lease)

    @property
    def taken_away(self) -> bool:
        """The owner wants it back, exported it again, or does not know us any more."""
        return self._closed or (self.lease is not None and self.lease.status not in _KEPT)

    def close(self, patience: float) -> None:
        """Give everything back, and the lease with it.  Idempotent; waits up to `patience` seconds for gathers.

        MappingBusyError, and nothing changed, when some still run.
        """
        deadline = time.monotonic() + patience
        with self._closing:
            self._closed = True  # no new gather begins
            while True:
                try:
                    self.store.close()
                    break
                except MappingBusyError:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_POLL)
            self._cleanup.close()
