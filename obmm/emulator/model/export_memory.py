# SPDX-License-Identifier: Apache-2.0
"""Where the memory of exports comes from and goes to: pools, processes, UMMUs."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .calls import KernelError
from .memory import Memory, SegmentedMemory
from .pool import Pool
from .region import ExportRegion
from .user_memory import Extent, UserPins

if TYPE_CHECKING:
    from .host import Host
    from .process import Process


class ExportMemory:
    """Memory of the exports of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._pins = UserPins()

    def allocate(self, region: ExportRegion, fast: bool) -> None:
        """Take the memory of a pool export: all segments of node 0, then node 1, ... (X11, X12)."""
        taken: list[tuple[Pool, list[tuple[int, int]]]] = []
        try:
            for node, size in enumerate(region.node_sizes):
                if size:
                    pool = self._host.pools.get(node)
                    if pool is None:
                        raise KernelError(errno.ENODEV, "X11", f"node {node} has no pool")
                    taken.append((pool, pool.take(size // self._host.module.memseg, fast)))
            name, unit = f"obmm-{self._host.name}-{region.mem_id}", self._host.fabric.topology.poison_unit
            region.memory = SegmentedMemory(name, region.size, unit) if unit else Memory(name, region.size)
        except BaseException:
            for pool, segments in taken:
                pool.give(segments)
            raise
        region.place([segment for _, segments in taken for segment in segments])

    def attach(self, region: ExportRegion) -> None:
        """Token and bus address from the first UMMU that takes the vendor data (X13, X14)."""
        for ummu in self._host.ummus.values():
            if ummu.accepts(region.vendor) and not self._host.faults.ummu_refuses:
                ummu.attach(region, self._host)
                return
        self._host.journal.add("ummu", call="alloc_tdev", vendor_len=len(region.vendor), refused=True)
        raise KernelError(errno.EPERM, "X13", "no UMMU accepts the vendor_info")

    def free(self, region: ExportRegion) -> None:
        """Memory of an export back to where it came from; nothing can reach its contents any more."""
        self._host.caches.forget(region)
        if region.from_user:
            region.memory = None
            self.unpin(region)
            return
        if region.memory is not None:
            region.memory.destroy()
            region.memory = None
        index = 0
        for node, size in enumerate(region.node_sizes):
            count = size // self._host.module.memseg
            if count:
                self._host.pools[node].give(region.segments[index : index + count])
            index += count

    def pin(self, region: ExportRegion, target: Process, sizes: tuple[int, ...], extents: list[Extent]) -> None:
        """Hold pages of a process for EXPORT_PID; the counter knows no RLIMIT_MEMLOCK (6.2)."""
        region.node_sizes = sizes
        region.pinned = target
        region.place(self._pins.take(target.pid, extents))

    def unpin(self, region: ExportRegion) -> None:
        """Let the pages of an EXPORT_PID region go; the process may be gone already."""
        self._pins.give(region.segments)
        region.pinned = None
