# SPDX-License-Identifier: Apache-2.0
"""What the stand-in's daemons know together: names, regions, objects, leases (SDK specification 6-9)."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from obmm import topology
from obmm.device import Device
from obmm.device import open as open_device
from obmm.errors import ObmmError
from obmm.sdk import standin_wire as wire
from obmm.sdk.abi import Flag, ffi
from obmm.sdk.codes import Code
from obmm.sdk.standin_objects import Caller, Lease, SharedUnits
from obmm.sdk.standin_wire import Op, Refused, Request

RETRY_SECONDS: Final = 0.05
_ENGINE_NAME: Final = re.compile(r"[A-Za-z0-9.:_-]+")
_Handler = Callable[["StandinCluster", Caller, Request], bytes]


class StandinCluster:
    """All nodes of an emulated fabric under one daemon.  Any thread; one request at a time changes it.

    Every node is every other's neighbour, so there is one group of hosts.
    """

    def __init__(self, fabric: str, nodes: list[str], unit: int) -> None:
        self.fabric, self.nodes, self.unit = fabric, nodes, unit
        self._devices: dict[str, Device] = {node: open_device(f"emulator:{fabric}#{node}") for node in nodes}
        self._regions: dict[tuple[str, str], dict[str, bool]] = {}
        self._objects: dict[str, SharedUnits] = {}
        self._leases: dict[int, Lease] = {}
        self._numbers = itertools.count(1)
        self._orphans: list[tuple[SharedUnits, str, Caller]] = []
        self._orphaned_leases: list[Lease] = []
        self._changed = threading.Condition()
        self._open = True
        self._collector = threading.Thread(target=self._collect, name="standin-collector", daemon=True)
        self._collector.start()

    def answer(self, caller: Caller, request: Request) -> bytes:
        """The body of the answer; Refused with another code than 0."""
        handler = _HANDLERS.get(request.op)
        if handler is None:
            raise Refused(Code.BUFF)
        with self._changed:
            return handler(self, caller, request)

    def gone(self, caller: Caller) -> None:
        """A process closed its connection or died: everything that it held is released (5)."""
        with self._changed:
            for name, found in self._objects.items():
                self._drop_lock(found, caller)
                attachment = found.attached.get(caller.node)
                if attachment and caller in attachment.callers:
                    self._orphans.append((found, name, caller))
            for number, lease in list(self._leases.items()):
                if lease.caller is caller:
                    del self._leases[number]
                    self._orphaned_leases.append(lease)
            self._sweep()
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        """Names, attachments and leases, for tests and people."""
        with self._changed:
            objects = {
                name: {node: [c.pid for c in there.callers] for node, there in found.attached.items()}
                for name, found in self._objects.items()
            }
            return {"objects": objects, "leases": len(self._leases), "busy": self._busy()}

    def close(self) -> None:
        """Give the memory back as far as nobody uses it."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._collector.join()
        for device in self._devices.values():
            with contextlib.suppress(ObmmError):
                device.close(force=True)

    # --- regions and hosts -------------------------------------------------------------------------------------------

    def _groups(self, caller: Caller, request: Request) -> bytes:
        if len(self.nodes) < 2:
            raise Refused(Code.UBSE)
        out = ffi.new("ubsmem_regions_t *")
        out.num = 1
        _fill(out.region[0], dict.fromkeys(self._group_of(caller.node), False))
        return bytes(ffi.buffer(out))

    def _group_of(self, node: str) -> list[str]:
        """This node first, as the engine lists it."""
        return [node, *(other for other in self.nodes if other != node)]

    def _region_create(self, caller: Caller, request: Request) -> bytes:
        attributes = ffi.new("ubsmem_region_attributes_t *")
        ffi.memmove(attributes, request.body, ffi.sizeof("ubsmem_region_attributes_t"))
        key = (caller.node, request.region)
        if key in self._regions:
            raise Refused(Code.ALREADY_EXIST)
        hosts = (attributes.hosts[i] for i in range(attributes.host_num))
        self._regions[key] = {ffi.string(host.host_name).decode(): bool(host.affinity) for host in hosts}
        return b""

    def _region_lookup(self, caller: Caller, request: Request) -> bytes:
        out = ffi.new("ubsmem_region_desc_t *")
        hosts = self._region(caller.node, request.region)
        out.region_name = request.region.encode()
        _fill(out.region_attr, hosts)
        return bytes(ffi.buffer(out))

    def _region_destroy(self, caller: Caller, request: Request) -> bytes:
        self._region(caller.node, request.region)
        del self._regions[caller.node, request.region]
        return b""

    def _region(self, node: str, name: str) -> dict[str, bool]:
        found = self._regions.get((node, name))
        if found is None:
            raise Refused(Code.NOT_FOUND)
        return found

    def _providers(self, node: str, region: str) -> tuple[list[str], frozenset[str]]:
        """Who may give memory in `region`, best first, and who may attach it."""
        if region == "default":
            return self._group_of(node), frozenset(self._group_of(node))
        hosts = self._region(node, region)
        return [host for host, affinity in hosts.items() if affinity], frozenset(hosts)

    def _cluster(self, caller: Caller, request: Request) -> bytes:
        out = ffi.new("ubsmem_cluster_info_t *")
        out.host_num = len(self.nodes)
        for slot, node in enumerate(self.nodes):
            host = out.host[slot]
            host.host_name = node.encode()
            numa = sorted({controller.numa for controller in topology.controllers(self._devices[node].root)})
            host.numa_num = len(numa)
            for i, number in enumerate(numa):
                host.numa[i] = self._numa(node, slot, number)
        return bytes(ffi.buffer(out))

    def _numa(self, node: str, slot: int, numa: int) -> dict[str, int]:
        pool = Path(self._devices[node].root) / f"sys/kernel/obmm_mempool/obmm-{numa}"
        total, used = (int((pool / name).read_text(), 16) for name in ("total", "used"))
        held = [*self._objects.values(), *self._leases.values()]
        return {
            "slot_id": slot + 1,
            "socket_id": 0,
            "numa_id": numa,
            "mem_lend_ratio": 100,
            "mem_total": total,
            "mem_free": max(total - used, 0),
            "mem_borrow": sum(x.caller.node == node != x.provider for x in self._leases.values()) * self.unit,
            "mem_lend": sum(len(x.exports) for x in held if x.provider == node) * self.unit,
        }

    def _slot(self, caller: Caller, request: Request) -> bytes:
        return (self.nodes.index(caller.node) + 1).to_bytes(4, "little")

    # --- objects -----------------------------------------------------------------------------------------------------

    def _resolve(self, caller: Caller, request: Request) -> bytes:
        self._providers(caller.node, request.region)
        return b""

    def _create(self, caller: Caller, request: Request) -> bytes:
        providers, nodes = self._providers(caller.node, request.region)
        if not providers:
            raise Refused(Code.UBSE)
        return self._make(caller, request, providers[0], nodes)

    def _create_at(self, caller: Caller, request: Request) -> bytes:
        provider = ffi.new("ubs_mem_provider_t *")
        ffi.memmove(provider, request.body, ffi.sizeof("ubs_mem_provider_t"))
        host = ffi.string(provider.host_name).decode(errors="replace")
        if host not in self.nodes:
            raise Refused(Code.NOT_FOUND)
        return self._make(caller, request, host, frozenset(self.nodes))

    def _make(self, caller: Caller, request: Request, provider: str, nodes: frozenset[str]) -> bytes:
        if request.name in self._busy():
            raise Refused(Code.BUSY)
        if request.name in self._objects:
            raise Refused(Code.ALREADY_EXIST)
        if not _ENGINE_NAME.fullmatch(request.name):
            raise Refused(Code.UBSE)
        size, mode, flags, _ = request.arg
        self._objects[request.name] = SharedUnits(
            self._devices, provider, size, self.unit, flags, creator=caller, mode=mode, nodes=nodes
        )
        return b""

    def _map(self, caller: Caller, request: Request) -> bytes:
        found = self._object(request.name)
        there = found.attach(caller, request.arg[0])
        return wire.units(found.size, found.unit, there.mem_ids, found.flags_on(caller.node), there.open_mode)

    def _unmap(self, caller: Caller, request: Request) -> bytes:
        found = self._object(request.name)
        try:
            found.detach(caller)
        except ObmmError as error:
            raise Refused(Code.UBSE) from error
        return b""

    def _delete(self, caller: Caller, request: Request) -> bytes:
        found = self._object(request.name)
        if (caller.uid, caller.gid) != (found.uid, found.gid):
            raise Refused(Code.NOPERM)
        if found.attached:
            raise Refused(Code.IN_USING)
        try:
            found.free()
        except ObmmError as error:
            raise Refused(Code.UBSE) from error
        del self._objects[request.name]
        return b""

    def _object(self, name: str) -> SharedUnits:
        if name in self._busy():
            raise Refused(Code.BUSY)
        found = self._objects.get(name)
        if found is None:
            raise Refused(Code.NOT_FOUND)
        return found

    def _list(self, caller: Caller, request: Request) -> bytes:
        if not self._objects:
            raise Refused(Code.NOT_FOUND)
        matching = [(name, found) for name, found in self._objects.items() if name.startswith(request.name)]
        out = ffi.new("ubsmem_shmem_desc_t[]", len(matching))
        for entry, (name, found) in zip(out, matching, strict=True):
            entry.name, entry.size = name.encode(), found.size
        return bytes(ffi.buffer(out))

    def _lookup(self, caller: Caller, request: Request) -> bytes:
        found = self._objects.get(request.name)
        there = found.attached.get(caller.node) if found else None
        if found is None or there is None:
            raise Refused(Code.NOT_FOUND)
        out = ffi.new("ubsmem_shmem_info_t *")
        out.name, out.size = request.name.encode(), found.size
        out.mem_num, out.mem_unit_size = len(there.mem_ids), found.unit
        out.mem_id_list = list(there.mem_ids)
        return bytes(ffi.buffer(out))

    # --- locks -------------------------------------------------------------------------------------------------------

    def _write_lock(self, caller: Caller, request: Request) -> bytes:
        found = self._object(request.name)
        if found.lock:
            raise Refused(Code.LOCK_ALREADY_LOCKED if caller in found.lock[1] else Code.DLOCK)
        found.lock = ("w", [caller])
        return b""

    def _read_lock(self, caller: Caller, request: Request) -> bytes:
        found = self._object(request.name)
        if found.lock is None:
            found.lock = ("r", [caller])
        elif found.lock[0] == "r":
            found.lock[1].append(caller)
        else:
            raise Refused(Code.LOCK_ALREADY_LOCKED if caller in found.lock[1] else Code.DLOCK)
        return b""

    def _unlock(self, caller: Caller, request: Request) -> bytes:
        found = self._object(request.name)
        if found.lock is None or caller not in found.lock[1]:
            raise Refused(Code.NOT_FOUND)
        found.lock[1].remove(caller)
        if not found.lock[1]:
            found.lock = None
        return b""

    @staticmethod
    def _drop_lock(found: SharedUnits, caller: Caller) -> None:
        if found.lock:
            left = [other for other in found.lock[1] if other is not caller]
            found.lock = (found.lock[0], left) if left else None

    # --- leases ------------------------------------------------------------------------------------------------------

    def _lease(self, caller: Caller, request: Request) -> bytes:
        providers, _ = self._providers(caller.node, request.region)
        if not providers:
            raise Refused(Code.PARAM_INVALID)
        others = [host for host in providers if host != caller.node]
        return self._lend(caller, request, (others or providers)[0])

    def _lease_at(self, caller: Caller, request: Request) -> bytes:
        place = ffi.new("ubs_mem_location_t *")
        ffi.memmove(place, request.body, ffi.sizeof("ubs_mem_location_t"))
        if not 1 <= place.slot_id <= len(self.nodes):
            raise Refused(Code.UBSE)
        return self._lend(caller, request, self.nodes[place.slot_id - 1])

    def _lend(self, caller: Caller, request: Request, provider: str) -> bytes:
        size, _, flags, _ = request.arg
        if flags & Flag.MALLOC_WITH_NUMA:
            raise Refused(Code.UBSE)  # a remote NUMA node cannot appear on this machine
        lease = Lease(self._devices, provider, size, self.unit, flags, caller)
        number = next(self._numbers)
        self._leases[number] = lease
        return wire.units(size, self.unit, lease.mem_ids, flags, 2, number)

    def _lease_free(self, caller: Caller, request: Request) -> bytes:
        lease = self._leases.get(request.arg[0])
        if lease is None or lease.caller is not caller:
            raise Refused(Code.NOT_FOUND)
        try:
            lease.free()
        except ObmmError as error:
            raise Refused(Code.UBSE) from error
        del self._leases[request.arg[0]]
        return b""

    # --- what the dead left ------------------------------------------------------------------------------------------

    def _busy(self) -> list[str]:
        return [name for _, name, _ in self._orphans]

    def _sweep(self) -> None:
        """Release what can be released now; the rest is still mapped by a process that is on its way out."""
        orphans, self._orphans = self._orphans, []
        for found, name, caller in orphans:
            try:
                found.detach(caller)
            except ObmmError:
                self._orphans.append((found, name, caller))
        leases, self._orphaned_leases = self._orphaned_leases, []
        for lease in leases:
            try:
                lease.free()
            except ObmmError:
                self._orphaned_leases.append(lease)

    def _collect(self) -> None:
        """The real daemon looks again after minutes."""
        with self._changed:
            while self._open:
                waiting = bool(self._orphans or self._orphaned_leases)
                self._changed.wait(RETRY_SECONDS if waiting else None)
                self._sweep()


def _fill(attributes: Any, hosts: dict[str, bool]) -> None:
    attributes.host_num = len(hosts)
    for entry, (host, affinity) in zip(attributes.hosts, hosts.items(), strict=False):
        entry.host_name, entry.affinity = host.encode(), affinity


_HANDLERS: Final[dict[Op, _Handler]] = {
    Op.GROUPS: StandinCluster._groups,
    Op.RESOLVE: StandinCluster._resolve,
    Op.CREATE: StandinCluster._create,
    Op.CREATE_AT: StandinCluster._create_at,
    Op.MAP: StandinCluster._map,
    Op.UNMAP: StandinCluster._unmap,
    Op.DELETE: StandinCluster._delete,
    Op.REGION_CREATE: StandinCluster._region_create,
    Op.REGION_LOOKUP: StandinCluster._region_lookup,
    Op.REGION_DESTROY: StandinCluster._region_destroy,
    Op.WRITE_LOCK: StandinCluster._write_lock,
    Op.READ_LOCK: StandinCluster._read_lock,
    Op.UNLOCK: StandinCluster._unlock,
    Op.CLUSTER: StandinCluster._cluster,
    Op.LIST: StandinCluster._list,
    Op.LOOKUP: StandinCluster._lookup,
    Op.SLOT: StandinCluster._slot,
    Op.LEASE: StandinCluster._lease,
    Op.LEASE_AT: StandinCluster._lease_at,
    Op.LEASE_FREE: StandinCluster._lease_free,
}
