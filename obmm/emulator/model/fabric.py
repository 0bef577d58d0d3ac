# SPDX-License-Identifier: Apache-2.0
"""The fabric: all hosts, one lock, and what connects them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Condition, Lock

from ..topology import Topology
from .calls import Backing
from .host import Host
from .memory import Memory
from .mutex import Mutex
from .region import ExportRegion
from .ummu import Ummu


class Fabric:
    """The hosts of `topology` by name, in its order.

    Every entry of the model (a system call, an injection) holds `lock`; a call that has to wait lets go
    of it meanwhile (`pause`).
    """

    def __init__(self, topology: Topology | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.topology = topology or Topology.default()
        self.clock = clock
        self.lock = Lock()
        self._changed = Condition(self.lock)
        self.hole = Memory("obmm-hole", 0)
        """Empty memory: what is mapped where nothing answers. Every access is a SIGBUS."""
        self.hosts: dict[str, Host] = {spec.name: Host(self, spec) for spec in self.topology.hosts}
        self._ummus: dict[int, Ummu] = {
            controller.cna: host.ummus[controller.ummu]
            for host in self.hosts.values()
            for controller in host.spec.controllers
        }

    def mutex(self) -> Mutex:
        """A kernel mutex that can be held across `pause`."""
        return Mutex(self._changed)

    def pause(self, seconds: float) -> None:
        """Sleep inside a call: other calls run meanwhile. Called with the lock held."""
        self.lock.release()
        try:
            time.sleep(seconds)
        finally:
            self.lock.acquire()

    def resolve(self, dcna: int, tokenid: int, uba: int) -> tuple[ExportRegion, int] | None:
        """The export and offset that (destination CNA, token, UBA) name, or None: nobody answers."""
        ummu = self._ummus.get(dcna)
        return ummu.find(tokenid, uba) if ummu else None

    def export_pieces(self, region: ExportRegion, offset: int, length: int) -> Iterator[tuple[Backing, int]]:
        """The memory behind a part of an export; nobody answers for memory of another process's own."""
        memory = region.memory or self.hole
        yield memory.backing(offset if region.memory else 0), length

    def close(self) -> None:
        """Destroy all memory. Existing mappings of clients get SIGBUS."""
        with self.lock:
            for host in self.hosts.values():
                host.close()
            self.hole.destroy()
