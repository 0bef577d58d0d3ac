# SPDX-License-Identifier: Apache-2.0
"""The remote-NUMA layer: hot-plugged nodes whose memory is on other hosts (driver specification 15)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ..topology import MEMORY_BLOCK
from .calls import KernelError
from .structs import MAX_DISTANCE

if TYPE_CHECKING:
    from .host import Host

RELEASE, ONLINE, ISOLATED = 0, 1, 2
"""How memory is added: released to a node that holds it isolated, online at once, or isolated (preimport)."""
DEFAULT_REMOTE = 100


class RemoteNuma:
    """Remote nodes of one host and the ranges they hold."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.nodes: dict[int, set[int]] = {}
        """Node that was ever made -> numbers of the memory blocks that it holds."""
        self.distances: dict[int, dict[int, int]] = {}
        """Remote node -> distance from each local node."""

    def add(self, nid: int, pa: int, size: int, how: int) -> int:
        """Hot-plug a range; `nid` -1 makes a new node. Every refusal reaches the caller as EPERM (I23, R14)."""
        faults = self._host.faults
        if faults.add_sleep:
            self._host.fabric.pause(faults.add_sleep)
        error = faults.add_error or self._refusal(nid, pa, size)
        node = nid
        if not error and nid == -1:
            node = self._lowest_free()
        self._host.journal.add(
            "numa", call="add_memory_remote", nid=nid, pa=pa, size=size, flags=how, ret=-error if error else node
        )
        if error:
            raise KernelError(errno.EPERM, "I23", f"hot-plug of {size:#x} at {pa:#x} to node {nid} refused")
        blocks = self.nodes.setdefault(node, set())
        if not blocks:
            self.distances[node] = dict.fromkeys(self._host.local_nodes(), DEFAULT_REMOTE)
        blocks.update(_blocks(pa, size))
        return node

    def remove(self, nid: int, pa: int, size: int) -> None:
        """Migrate and offline a range; interruptible, so any errno is possible."""
        error = self._host.faults.remove_error
        blocks = self.nodes.get(nid, set())
        if not error and not blocks.issuperset(_blocks(pa, size)):
            error = errno.EINVAL
        self._host.journal.add("numa", call="remove_memory_remote", nid=nid, pa=pa, size=size, ret=-error)
        if error:
            raise KernelError(error, "6.5", f"memory {pa:#x} of node {nid} cannot be removed")
        blocks.difference_update(_blocks(pa, size))
        if not blocks:
            del self.distances[nid]

    def set_distance(self, nid: int, base: int, controller_node: int) -> None:
        """Distance of every local node n: min(255, base + distance(L, n) - distance(L, L)) with L the node
        of the controller; base 0 keeps the default (rules I24, R15)."""
        if not base:
            return
        spec = self._host.spec
        own = spec.distance(controller_node, controller_node)
        distances = {
            node: min(MAX_DISTANCE, base + spec.distance(controller_node, node) - own)
            for node in self._host.local_nodes()
        }
        error = self._host.faults.distance_error
        self._host.journal.add("numa", call="set_distance", nid=nid, ret=-error, distances=distances)
        if error:
            raise KernelError(error, "I24", f"the distance of node {nid} cannot be set")
        self.distances[nid] = distances

    def _refusal(self, nid: int, pa: int, size: int) -> int:
        known = nid == -1 or nid in self.nodes
        if not self._host.spec.numa_remote or not self._host.faults.numa_remote or not known:
            return errno.EPERM
        return errno.EPERM if pa % MEMORY_BLOCK or size % MEMORY_BLOCK else 0

    def _lowest_free(self) -> int:
        node = max((n.id for n in self._host.spec.nodes), default=-1) + 1
        while self.nodes.get(node):
            node += 1
        return node


def _blocks(pa: int, size: int) -> range:
    return range(pa // MEMORY_BLOCK, (pa + size) // MEMORY_BLOCK)
