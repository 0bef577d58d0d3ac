# SPDX-License-Identifier: Apache-2.0
"""The fabric: all hosts, one lock, and what connects them."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Any

from ..topology import Topology
from .calls import Backing, KernelError
from .check import check_host
from .host import Host
from .inject import faults, inject
from .memory import Memory
from .mutex import Mutex
from .process import Process
from .region import ExportRegion, ImportRegion
from .ummu import Ummu
from .vma import Vma

LONGEST_WAIT = 3600.0


@dataclass(frozen=True, slots=True)
class View:
    """A part of one mapping: `length` bytes at `address` of `process` show an export from `offset` on."""

    host: Host
    process: Process
    vma: Vma
    address: int
    offset: int
    length: int


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
        self._wakes = 0
        self.hole = Memory("obmm-hole", 0)
        """Empty memory: what is mapped where nothing answers. Every access is a SIGBUS."""
        self.hosts: dict[str, Host] = {spec.name: Host(self, spec) for spec in self.topology.hosts}
        self._ummus: dict[int, tuple[Host, Ummu]] = {
            controller.cna: (host, host.ummus[controller.ummu])
            for host in self.hosts.values()
            for controller in host.spec.controllers
        }

    def mutex(self) -> Mutex:
        """A kernel mutex that can be held across `pause`."""
        return Mutex(self._changed)

    def pause(self, seconds: float) -> None:
        """Sleep inside a call, with the lock held: other calls run meanwhile. `wake` ends it early."""
        until, wakes = time.monotonic() + seconds, self._wakes
        while self._wakes == wakes and (rest := until - time.monotonic()) > 0:
            self._changed.wait(min(rest, LONGEST_WAIT))

    def wake(self) -> None:
        """End all pauses: the faults that caused them were disarmed, or the fabric goes down."""
        self._wakes += 1
        self._changed.notify_all()

    def resolve(self, dcna: int, tokenid: int, uba: int) -> tuple[ExportRegion, int] | None:
        """The export and offset that (destination CNA, token, UBA) name, or None when none answers."""
        found = self._ummus.get(dcna)
        if found is None or found[0].dead:
            return None
        return found[1].find(tokenid, uba)

    def export_pieces(self, region: ExportRegion, offset: int, length: int) -> Iterator[tuple[Backing, int]]:
        """What answers for a part of an export: its memory; None for pages of a process (EXPORT_PID)."""
        hole = self.hole.backing(0)
        if region.memory is None:
            yield hole, length
        else:
            yield from region.memory.pieces(offset, length, hole)

    def views(self, region: ExportRegion) -> Iterator[View]:
        """Every mapping of an export's memory: its own, and those of imports that are decoded to it."""
        for host in self.hosts.values():
            for process in host.processes.values():
                for vma in process.vmas:
                    length = vma.end - vma.start
                    if vma.region is region:
                        yield View(host, process, vma, vma.start, vma.offset, length)
                    elif isinstance(vma.region, ImportRegion):
                        for pa, offset, part in self._decoded(host, vma.region.pa + vma.offset, length, region):
                            at = vma.start + pa - vma.region.pa - vma.offset
                            yield View(host, process, vma, at, offset, part)

    def _decoded(self, host: Host, pa: int, length: int, region: ExportRegion) -> Iterator[tuple[int, int, int]]:
        """(local address, offset, length) of the parts of a window range that reach `region`."""
        for entry in host.decoder.overlapping(pa, pa + length):
            low, high = max(pa, entry.pa), min(pa + length, entry.end)
            found = self.resolve(entry.dcna, entry.tokenid, entry.uba + low - entry.pa)
            if found is not None and found[0] is region:
                yield low, found[1], min(high - low, region.size - found[1])

    def inject(self, host: str, fault: str, **arguments: Any) -> None:
        """Make something go wrong on `host`; `faults()` lists what (EINVAL for anything else)."""
        with self.lock:
            if host not in self.hosts:
                raise KernelError(errno.ENOENT, "inject", f"no host {host!r}; there are {', '.join(self.hosts)}")
            inject(self.hosts[host], fault, **arguments)

    @staticmethod
    def faults() -> dict[str, str]:
        """Name and description of every fault."""
        return faults()

    def check(self) -> None:
        """Raise AssertionError that names the broken invariant, if any; for stress tests."""
        with self.lock:
            for host in self.hosts.values():
                check_host(host)

    def close(self) -> None:
        """Destroy all memory. Existing mappings of clients get SIGBUS."""
        with self.lock:
            self.wake()
            for host in self.hosts.values():
                host.close()
            self.hole.destroy()
