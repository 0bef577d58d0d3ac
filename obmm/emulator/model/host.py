# SPDX-License-Identifier: Apache-2.0
"""One machine: its hardware, its loaded driver and its processes."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ..topology import Controller, HostSpec
from .caches import CoherentCaches
from .calls import KernelError
from .decoder import GRANULE, Decoder, Entry
from .dram import Dram
from .engine import CacheEngine
from .export_memory import ExportMemory
from .faults import Faults
from .files import OpenFile
from .ids import LowestFree
from .journal import Journal
from .module import Module
from .numa import RemoteNuma
from .physical import PhysicalMap
from .pool import Pool
from .preimport import Preimport
from .process import Process
from .region import ExportRegion, ImportRegion, Region
from .resources import RangeList
from .strict_caches import StrictCaches
from .structs import MAX_LOCAL_NODES, MAX_MEM_ID
from .stubs import STUBS
from .tree import Tree
from .ummu import Ummu
from .user_memory import kernel_extents
from .windows import Windows

if TYPE_CHECKING:
    from .fabric import Fabric

CONTROL_NODE = "/dev/obmm"
REGION_NODE = "/dev/obmm_shmdev"
UNCHANGED = 0xFFFFFFFF
"""A uid or gid of -1: chown leaves it as it is."""


class Host:
    """One machine of the fabric. Hardware first, then what the module keeps while it is loaded."""

    def __init__(self, fabric: Fabric, spec: HostSpec) -> None:
        self.fabric = fabric
        self.spec = spec
        self.name = spec.name
        self.faults = Faults()
        self.journal = Journal()
        self._features = spec.features
        self.contiguous_percent = spec.contiguous_percent
        self.dev_noexec = False
        """/dev is mounted noexec (rule M4)."""
        self.max_map_count = 65530
        topology = fabric.topology
        self.caches: CoherentCaches | StrictCaches = (
            StrictCaches(self, topology.seed) if topology.strict else CoherentCaches(self)
        )
        self.dead = False
        """The whole machine is gone (`inject` node-death)."""
        self.gate_shut: tuple[int | None, bool] | None = None
        """What the gate was before `inject` gate-closed."""
        self.module_taken = False
        """`inject` module-absent unloaded the module."""
        self.engine = CacheEngine(self)
        self.decoder = Decoder()
        self.numa = RemoteNuma(self)
        self.ummus: dict[int | None, Ummu] = {
            c.ummu: Ummu(c.ummu, spec.token_min, spec.token_max) for c in spec.controllers
        }
        if spec.logical_ummu:
            self.ummus[None] = Ummu(None, spec.token_min, spec.token_max)
        self.windows = Windows(spec)
        self.processes: dict[int, Process] = {}
        self.exports = ExportMemory(self)
        self.uevents: list[str] = []

        self.regions: dict[int, Region] = {}
        """Live regions by mem_id, in the order of creation."""
        self.ids = LowestFree(1, MAX_MEM_ID)
        self.physical = PhysicalMap()
        self.imports = RangeList()
        """Window ranges of plain imports and of preimports."""
        self.preimports: list[Preimport] = []
        """Declared ranges, oldest first."""
        self.files: set[OpenFile] = set()
        """Open files that reach the driver."""
        self.busy_calls = 0
        """Calls that may sleep at the moment."""
        self.tree = Tree(self)
        self.module: Module
        self.dram: Dram
        self.pools: dict[int, Pool] = {}
        self.loaded = False
        self.load()

    @property
    def features(self) -> int | None:
        """Feature mask of the firmware, None = no source; the module reads it when it loads (rule D1)."""
        return self._features

    @features.setter
    def features(self, mask: int | None) -> None:
        self._features = mask
        self.tree.changed_features()

    @property
    def open_files(self) -> int:
        """How many open files reach the driver."""
        return len(self.files)

    # --- the module ---------------------------------------------------------------------------------

    def insmod(self, params: str = "") -> None:
        """Load the module (EEXIST when it is loaded; EINVAL, EOPNOTSUPP as driver specification 2, 12)."""
        with self.fabric.lock:
            if self.loaded:
                raise KernelError(errno.EEXIST, "8", "the module is loaded")
            self._load(params)

    def rmmod(self) -> None:
        """Unload the module; EAGAIN while any region, preimport, open file or call uses it."""
        with self.fabric.lock:
            self.unload()

    def unload(self) -> None:
        """`rmmod` for callers that hold the lock."""
        if not self.loaded:
            raise KernelError(errno.ENOENT, "8", "the module is not loaded")
        if self.regions or self.files or self.preimports or self.busy_calls:
            raise KernelError(errno.EAGAIN, "8", "the module is in use")
        self.loaded = False
        self.pools = {}
        self.uevents += ["remove@.../obmm", "remove@.../obmm"]
        self.tree.module_unloaded()

    def load(self) -> None:
        """Load the module as the topology says, for callers that hold the lock."""
        self._load(self.spec.parameters())

    def _load(self, params: str) -> None:
        module = Module(params, self.features, self.contiguous_percent)
        nodes = self.local_nodes()
        if not nodes:
            raise KernelError(errno.EINVAL, "2", "no local NUMA node")
        if max(nodes) >= MAX_LOCAL_NODES:
            raise KernelError(errno.EOPNOTSUPP, "2", f"local node {max(nodes)}; the driver supports 0...15")
        self.module = module
        self.control_mode = 0o600
        """Of /dev/obmm, until the module goes."""
        self.control_owner = 0, 0
        self.dram = Dram(self.spec, module.memseg)
        target = module.mempool_size // len(nodes) // module.memseg
        self.pools = {node: Pool(self, node, target) for node in nodes}
        self.loaded = True
        self.gate_shut = None
        self.uevents += ["add@.../obmm", "add@.../obmm"]
        self.tree.module_loaded()

    @contextmanager
    def module_use(self) -> Iterator[None]:
        """A call that may sleep pins the module, so it cannot be unloading (X15, I26, R1)."""
        self.busy_calls += 1
        try:
            yield
        finally:
            self.busy_calls -= 1

    def threads(self) -> list[str]:
        """Names of the driver's kernel threads."""
        return [f"{kind}-obmm-{node}" for kind in ("clearing", "pooling") for node in self.pools]

    def pool_counters(self, node: int) -> dict[str, int]:
        """total, used, available_cleared, available_uncleared of a node's pool, in bytes."""
        with self.fabric.lock:
            return self.pools[node].counters()

    # --- tests and faults -----------------------------------------------------------------------------

    def stub(self, name: str, *values: int) -> None:
        """Arm a fault under the name and with the values that the driver transcript uses."""
        with self.fabric.lock:
            STUBS[name](self, *values)

    def take_journal(self) -> list[dict[str, Any]]:
        """What was asked of the cache engine, the UMMUs and remote NUMA since the last call (no lock)."""
        return self.journal.take()

    def pinned_bytes(self, pid: int) -> int:
        """Memory of a process that EXPORT_PID holds (VmPin)."""
        if self.address_space(pid) is None:
            return 0
        exports = (region for region in self.regions.values() if isinstance(region, ExportRegion))
        return sum(region.size for region in exports if region.pinned is not None and region.pinned.pid == pid)

    # --- processes and nodes ------------------------------------------------------------------------

    def process(self, pid: int, uid: int = 0) -> Process:
        """A client process appears."""
        with self.fabric.lock:
            process = self.processes[pid] = Process(self, pid, uid)
            return process

    def address_space(self, pid: int) -> Process | None:
        """Whose pages EXPORT_PID means by `pid` (rule P9): a client of this node, or a process of the real
        machine that never called the driver. A client of another node does not exist here."""
        process = self.processes.get(pid)
        if process is not None or pid <= 0 or any(pid in host.processes for host in self.fabric.hosts.values()):
            return process
        # a kernel thread has a folder in /proc too, but no mappings
        return Process(self, pid, 0) if any(kernel_extents(pid)) else None

    def lookup(self, path: str) -> Region | None:
        """The region behind a device node, None for the control node, ENOENT for anything else."""
        if self.dead:
            raise KernelError(errno.ENODEV, "17", f"node {self.name} is dead")
        if path == CONTROL_NODE and self.loaded:
            return None
        number = path[len(REGION_NODE) :] if path.startswith(REGION_NODE) else ""
        region = self.regions.get(int(number)) if number.isdecimal() and len(number) <= 7 else None
        if region is None or str(region.mem_id) != number:
            raise KernelError(errno.ENOENT, "OPEN1", path)
        return region

    def chmod(self, path: str, mode: int) -> None:
        """Change the mode of a device node; it is back at 0600 when the id or the module is loaded anew."""
        with self.fabric.lock:
            region = self.lookup(path)
            if region is None:
                self.control_mode = mode
            else:
                region.mode = mode
            self.tree.changed_node(region)

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Change the owner of a device node."""
        with self.fabric.lock:
            region = self.lookup(path)
            given = uid, gid
            old = self.control_owner if region is None else region.owner
            owner = tuple(was if new == UNCHANGED else new for new, was in zip(given, old, strict=True))
            if region is None:
                self.control_owner = owner[0], owner[1]
            else:
                region.owner = owner[0], owner[1]
            self.tree.changed_node(region)

    # --- hardware -----------------------------------------------------------------------------------

    def local_nodes(self) -> list[int]:
        """Online local NUMA nodes."""
        remote = self.faults.remote_nodes
        return [n.id for n in self.spec.nodes if n.online and not remote >> n.id & 1]

    def is_local(self, node: int) -> bool:
        """Whether `node` is an online local NUMA node."""
        return node in self.local_nodes()

    def one_package(self, nodes: list[int]) -> bool:
        """Whether all `nodes` are online local nodes with CPUs on one socket (rule X5).

        A kernel that knows `max_nodes` nodes does not see a larger number and accepts it.
        """
        local = self.local_nodes()
        packages = {n.id: n.package for n in self.spec.nodes if n.id in local and n.cpus}
        found = {packages.get(node) for node in nodes if node < self.spec.max_nodes}
        return len(found) == 1 and None not in found

    def controller(self, cna: int) -> Controller | None:
        """The local controller with primary CNA `cna`."""
        return self.windows.controller(cna)

    def in_window(self, pa: int) -> bool:
        """Whether `pa` lies in any window of this host."""
        return self.windows.at(pa) is not None

    def foreign_resource(self, start: int, end: int) -> Literal["partial", "inside"] | None:
        """How a foreign /proc/iomem entry (DRAM, an injected one) collides with [start, end).

        One that contains the range or equals it does not (rules I15, R12).
        """
        foreign = list(self.spec.memory_ranges().values())
        if self.faults.blocker is not None:
            foreign.append((self.faults.blocker[0], sum(self.faults.blocker)))
        found: Literal["inside"] | None = None
        for low, high in foreign:
            if high <= start or end <= low or (low <= start and end <= high):
                continue
            if not (start <= low and high <= end):
                return "partial"
            found = "inside"
        return found

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
            self._decoder_changed(address, length)
            return address

    def unprogram(self, address: int) -> None:
        """Forget the decoder entry that starts at `address` (ENOENT when there is none)."""
        with self.fabric.lock:
            self._decoder_changed(address, self.decoder.remove(address).length)

    def opens(self, mem_id: int) -> int:
        """How many open files a region has (ENOENT when there is none)."""
        with self.fabric.lock:
            if mem_id not in self.regions:
                raise KernelError(errno.ENOENT, "9", f"no region {mem_id}")
            return self.regions[mem_id].opens

    def unprogram_unused(self, addresses: Collection[int]) -> None:
        """Forget those of a dead process's entries that no import uses: no living process knows them."""
        with self.fabric.lock:
            for entry in [entry for entry in self.decoder if entry.pa in addresses]:
                if not self.imports.overlaps(entry.pa, entry.end):
                    self.decoder.remove(entry.pa)

    def _decoder_changed(self, pa: int, length: int) -> None:
        """Mappings of imports at [pa, pa + length) show something else from their process's next call on."""
        if not self.imports.overlaps(pa, pa + length):
            return
        for process in self.processes.values():
            for vma in process.vmas:
                if isinstance(vma.region, ImportRegion):
                    shift = vma.start - vma.region.pa - vma.offset
                    start, end = max(vma.start, pa + shift), min(vma.end, pa + length + shift)
                    if start < end:
                        self.caches.drop(vma.region, vma.offset + start - vma.start, end - start)
                        process.stale.append((start, end))

    # --- regions ------------------------------------------------------------------------------------

    def take_id(self, region: Region, rule: str) -> None:
        """The lowest free mem_id (ENOSPC by `rule`)."""
        mem_id = None if self.faults.no_ids else self.ids.take()
        if mem_id is None:
            raise KernelError(errno.ENOSPC, rule, "no free mem_id")
        region.mem_id = mem_id

    def publish(self, region: Region) -> None:
        """The region becomes visible: node, sysfs, queries."""
        self.regions[region.mem_id] = region
        self.physical.add(region)
        self.tree.region_added(region)

    def withdraw(self, region: Region) -> None:
        """The region is gone: node, sysfs, queries, and its id is free again."""
        del self.regions[region.mem_id]
        self.physical.remove(region)
        self.ids.give(region.mem_id)
        self.tree.region_removed(region)

    def close(self) -> None:
        """Destroy the memory of this host."""
        self.caches.close()
        for region in self.regions.values():
            if isinstance(region, ExportRegion) and region.memory is not None and not region.from_user:
                region.memory.destroy()
        self.windows.close()
