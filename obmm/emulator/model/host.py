# SPDX-License-Identifier: Apache-2.0
"""One machine: its hardware, its loaded driver and its processes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ..topology import GIB, Controller, HostSpec, Window
from .calls import KernelError
from .decoder import GRANULE, Decoder, Entry
from .dram import Dram
from .engine import CacheEngine
from .faults import Faults
from .files import OpenFile
from .ids import LowestFree
from .memory import Memory
from .module import Module
from .physical import PhysicalMap
from .process import Process
from .region import ExportRegion, ImportRegion, Region
from .resources import RangeList
from .structs import MAX_MEM_ID
from .ummu import Ummu, uba_of

if TYPE_CHECKING:
    from .fabric import Fabric

CONTROL_NODE = "/dev/obmm"
REGION_NODE = "/dev/obmm_shmdev"


class Host:
    """One machine of the fabric."""

    def __init__(self, fabric: Fabric, spec: HostSpec) -> None:
        self.fabric = fabric
        self.spec = spec
        self.name = spec.name
        self.faults = Faults()
        self.module = Module(spec)
        self.engine = CacheEngine(self)
        self.dram = Dram(spec, self.module.memseg)
        self.decoder = Decoder()
        self.ummus: dict[int | None, Ummu] = {
            c.ummu: Ummu(c.ummu, spec.token_min, spec.token_max) for c in spec.controllers
        }
        if spec.logical_ummu:
            self.ummus[None] = Ummu(None, spec.token_min, spec.token_max)
        self.regions: dict[int, Region] = {}
        """Live regions by mem_id, in the order of creation."""
        self.ids = LowestFree(1, MAX_MEM_ID)
        self.physical = PhysicalMap()
        self.imports = RangeList()
        self.open_files = 0
        self.processes: dict[int, Process] = {}
        self._window_memory: dict[Window, Memory] = {}

    def process(self, pid: int, uid: int = 0) -> Process:
        """A client process appears."""
        with self.fabric.lock:
            process = self.processes[pid] = Process(self, pid, uid)
            return process

    def controller(self, cna: int) -> Controller | None:
        """The local controller with primary CNA `cna`."""
        for controller in self.spec.controllers:
            if controller.cna == cna:
                return controller
        return None

    def program(
        self,
        dcna: int,
        tokenid: int,
        uba: int,
        length: int,
        kind: str = "CC",
        *,
        scna: int | None = None,
        address: int | None = None,
        alignment: int = GRANULE,
    ) -> int:
        """Program the decoder, as a management plane would: `length` bytes of a local window of `kind`
        mean (`dcna`, `tokenid`, `uba`) from now on. Returns the local physical address for IMPORT.

        `scna` chooses the local controller, `address` the place; both default to the first that fits.
        Raises ENODEV for an unknown controller, ENOSPC for a full window, EEXIST for a taken address.
        """
        with self.fabric.lock:
            if length <= 0 or length % GRANULE:
                raise KernelError(errno.EINVAL, "22.3", f"length {length:#x} is not a multiple of 2 MiB")
            controllers = [c for c in self.spec.controllers if scna is None or c.cna == scna]
            if not controllers:
                raise KernelError(errno.ENODEV, "22.3", f"no local controller has CNA {scna}")
            windows = [w for c in controllers for w in c.windows if w.kind == kind]
            if address is not None:
                if not any(w.base <= address and address + length <= w.end for w in windows):
                    raise KernelError(errno.EINVAL, "22.3", f"{address:#x} is not in a {kind} window")
            else:
                for window in windows:
                    address = self.decoder.free_range(window, length, alignment)
                    if address is not None:
                        break
                else:
                    raise KernelError(errno.ENOSPC, "22.3", f"no {kind} window has {length:#x} free bytes")
            self.decoder.add(Entry(address, length, dcna, tokenid, uba))
            return address

    def unprogram(self, address: int) -> None:
        """Forget the decoder entry that starts at `address` (ENOENT when there is none)."""
        with self.fabric.lock:
            self.decoder.remove(address)

    def window_memory(self, pa: int) -> tuple[Memory, int, int] | None:
        """Plain memory behind a `backed` window at `pa`: (memory, offset, bytes to its end)."""
        for controller in self.spec.controllers:
            for window in controller.windows:
                if window.backed and window.base <= pa < window.end:
                    memory = self._window_memory.get(window)
                    if memory is None:
                        name = f"obmm-{self.name}-window-{window.base:x}"
                        memory = self._window_memory[window] = Memory(name, window.size)
                    return memory, pa - window.base, window.end - pa
        return None

    def lookup(self, path: str) -> Region | None:
        """The region behind a device node, None for the control node, ENOENT for anything else."""
        if path == CONTROL_NODE and self.module.loaded:
            return None
        number = path[len(REGION_NODE) :] if path.startswith(REGION_NODE) else ""
        region = self.regions.get(int(number)) if number.isdecimal() and len(number) <= 7 else None
        if region is None or str(region.mem_id) != number:
            raise KernelError(errno.ENOENT, "9.1", path)
        return region

    def check_permission(self, mode: int, owner: tuple[int, int], uid: int, flags: int) -> None:
        """What the VFS asks before the driver's open (EACCES)."""
        if uid == 0:
            return
        want = {os.O_RDONLY: 4, os.O_WRONLY: 2}.get(flags & os.O_ACCMODE, 6)
        have = mode >> 6 if uid == owner[0] else mode
        if want & ~have & 7:
            raise KernelError(errno.EACCES, "9.1", f"mode {mode:#o}, uid {uid}")

    def opened(self, path: str, flags: int, region: Region | None) -> OpenFile:
        """A new open file."""
        self.open_files += 1
        return OpenFile(self, path, flags, region)

    def is_local(self, node: int) -> bool:
        """Whether `node` is an online local NUMA node."""
        return any(n.id == node and n.online for n in self.spec.nodes)

    def one_package(self, nodes: list[int]) -> bool:
        """Whether all `nodes` are online local nodes with CPUs on one socket (rule X5)."""
        packages = {n.id: n.package for n in self.spec.nodes if n.online and n.cpus}
        found = {packages.get(node) for node in nodes}
        return len(found) == 1 and None not in found

    def window_kind(self, controller: Controller, start: int, length: int) -> str | None:
        """CC or NC when the range lies in one window of `controller`, else None."""
        for window in controller.windows:
            if window.base <= start and start + length <= window.end:
                return window.kind
        return None

    def take_id(self, region: Region, rule: str) -> None:
        """The lowest free mem_id (ENOSPC by `rule`)."""
        mem_id = self.ids.take()
        if mem_id is None:
            raise KernelError(errno.ENOSPC, rule, "no free mem_id")
        region.mem_id = mem_id

    def allocate(self, region: ExportRegion, fast: bool) -> None:
        """Take the memory of an export (rule X12)."""
        for node, size in enumerate(region.node_sizes):
            if size // self.dram.memseg > self.dram.available(node):
                raise KernelError(errno.ENOMEM, "X12", f"node {node} has not {size:#x} bytes")
        region.memory = Memory(f"obmm-{self.name}-{region.mem_id}", region.size)
        segments: list[tuple[int, int]] = []
        for node, size in enumerate(region.node_sizes):
            segments += self.dram.take(node, size // self.dram.memseg)
        region.place(segments)

    def free(self, region: ExportRegion) -> None:
        """Give the memory of an export back to the kernel."""
        if region.memory is not None:
            region.memory.destroy()
            region.memory = None
        index = 0
        for node, size in enumerate(region.node_sizes):
            count = size // self.dram.memseg
            self.dram.give(node, region.segments[index : index + count])
            index += count

    def attach(self, region: ExportRegion) -> None:
        """Token and bus address for an export (rules X13, X14)."""
        for ummu in self.ummus.values():
            if ummu.accepts(region.vendor):
                break
        else:
            raise KernelError(errno.EPERM, "X13", "no UMMU accepts the vendor_info")
        tokenid = ummu.tokens.take()
        if tokenid is None:
            raise KernelError(errno.EPERM, "X13", "token ids exhausted")
        region.ummu, region.tokenid, region.uba = ummu, tokenid, uba_of(region.size)
        ummu.exports[tokenid] = region

    def release_export(self, region: ExportRegion) -> None:
        """Undo `attach` and `allocate`."""
        assert region.ummu is not None
        del region.ummu.exports[region.tokenid]
        region.ummu.tokens.give(region.tokenid)
        self.physical.remove(region)
        self.free(region)

    def publish(self, region: Region) -> None:
        """The region becomes visible: node, sysfs, queries."""
        self.regions[region.mem_id] = region
        self.physical.add(region)

    def withdraw(self, region: Region) -> None:
        """The region is gone: node, sysfs, queries, and its id is free again."""
        del self.regions[region.mem_id]
        if isinstance(region, ImportRegion):
            self.physical.remove(region)
        self.ids.give(region.mem_id)

    def close(self) -> None:
        """Destroy the memory of this host."""
        for region in list(self.regions.values()):
            memory = getattr(region, "memory", None)
            if memory is not None:
                memory.destroy()
        for memory in self._window_memory.values():
            memory.destroy()


_ = GIB
