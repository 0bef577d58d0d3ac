# SPDX-License-Identifier: Apache-2.0
"""IMPORT: a range of a local window becomes a region (driver specification 6.4)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ..calls import KernelError
from ..numa import ONLINE, RELEASE
from ..preimport import Preimport
from ..region import ImportRegion
from ..structs import (
    IMPORT,
    IMPORT_ALLOW_MMAP,
    IMPORT_GRANULE,
    IMPORT_MASK,
    IMPORT_NUMA_REMOTE,
    IMPORT_PREIMPORT,
    MAX_PRIV_LEN,
)
from .attached import read_attached

if TYPE_CHECKING:
    from ..calls import UserMemory
    from ..host import Host
    from ..process import Process


def import_(process: Process, raw: bytes, user: UserMemory) -> bytes:
    """Checks I2-I26 in the driver's order. The decoder is never looked at."""
    host = process.host
    command = IMPORT.unpack(raw)
    flags, start, length = command.flags, command.addr, command.length
    if host.faults.no_memory:
        raise KernelError(errno.ENOMEM, "I1", "no kernel memory")
    if flags & ~IMPORT_MASK:
        raise KernelError(errno.EINVAL, "I2", f"flags {flags:#x} outside {IMPORT_MASK:#x}")
    numa_remote = bool(flags & IMPORT_NUMA_REMOTE)
    if bool(flags & IMPORT_ALLOW_MMAP) == numa_remote:
        raise KernelError(errno.EINVAL, "I3", "exactly one of ALLOW_MMAP and NUMA_REMOTE")
    preimported = bool(flags & IMPORT_PREIMPORT)
    if preimported and not numa_remote:
        raise KernelError(errno.EINVAL, "I4", "PREIMPORT without NUMA_REMOTE")
    priv = read_attached(user, command.priv, command.priv_len, MAX_PRIV_LEN, "I5")
    if not length:
        raise KernelError(errno.EINVAL, "I6", "length 0")
    if start % IMPORT_GRANULE or length % IMPORT_GRANULE:
        raise KernelError(errno.EINVAL, "I7", f"addr {start:#x} or length {length:#x} not a 2 MiB multiple")
    if not start:
        raise KernelError(errno.EINVAL, "I8", "addr 0")
    if start + length >= 1 << 64:
        raise KernelError(errno.EINVAL, "I9", "addr + length wraps")
    if numa_remote and not preimported and 1 <= command.base_dist <= 10:
        raise KernelError(errno.EINVAL, "I10", f"base_dist {command.base_dist}")
    region = ImportRegion(
        size=length,
        priv=priv,
        pa=start,
        scna=command.scna,
        dcna=command.dcna,
        seid=command.seid,
        deid=command.deid,
        numa_remote=numa_remote,
        base_dist=command.base_dist,
        mutex=host.fabric.mutex(),
    )
    host.take_id(region, "I11")
    try:
        with host.module_use():
            _place(host, region, command.numa_id, preimported)
    except KernelError:
        host.ids.give(region.mem_id)
        raise
    host.publish(region)
    return IMPORT.store(raw, mem_id=region.mem_id, numa_id=region.numa_id)


def _place(host: Host, region: ImportRegion, numa_id: int, preimported: bool) -> None:
    """I12-I25: find the controller and the range, and bring NUMA memory online."""
    start, end = region.pa, region.pa + region.size
    controller = host.controller(region.scna)
    if controller is None or controller.node is None:
        raise KernelError(errno.ENODEV, "I12", f"scna {region.scna:#x} is not a local controller's CNA")
    region.controller_node = controller.node
    if not preimported and host.imports.overlaps(start, end):
        raise KernelError(errno.EEXIST, "I13", f"{start:#x}...{end:#x} is in use")
    kind = host.windows.kind(controller, start, region.size)
    if kind is None:
        raise KernelError(errno.EINVAL, "I14", f"{start:#x}...{end:#x} is not in one window of the controller")
    region.cacheable, region.noncacheable = kind == "CC", kind == "NC"
    if preimported:
        _join_preimport(host, region)
        return
    if host.foreign_resource(start, end) == "partial":
        raise KernelError(errno.EBUSY, "I15", "a foreign resource overlaps the range")
    host.imports.add(start, end, region)
    try:
        if region.numa_remote:
            _check_cacheable(region)
            region.numa_id = host.numa.add(numa_id, start, region.size, ONLINE)  # I23
        try:
            if region.numa_remote:
                host.numa.set_distance(region.numa_id, region.base_dist, region.controller_node)  # I24
            if host.foreign_resource(start, end) == "inside":
                raise KernelError(errno.EBUSY, "I25", "a foreign resource lies inside the range")
        except KernelError:
            if region.numa_remote:
                _undo_hotplug(host, region)
            raise
    except KernelError:
        host.imports.remove(start)
        raise


def _join_preimport(host: Host, region: ImportRegion) -> None:
    """I16-I23 for an import that releases blocks of a preimport."""
    start, length = region.pa, region.size
    found = host.imports.at(start)
    if found is None:
        raise KernelError(errno.EFAULT, "I16", f"{start:#x} is in no declared range")
    preimport = found.owner
    if not isinstance(preimport, Preimport):
        raise KernelError(errno.EINVAL, "I17", f"{start:#x} belongs to a plain import")
    if preimport.creating:
        raise KernelError(errno.EAGAIN, "I18", "the preimport is still being created")
    path = (region.scna, region.dcna, region.seid, region.deid)
    if path != (preimport.scna, preimport.dcna, preimport.seid, preimport.deid):
        raise KernelError(errno.EINVAL, "I19", "scna, dcna, seid or deid differ from the preimport")
    if start + length > preimport.end:
        raise KernelError(errno.EINVAL, "I20", "the range runs past the preimport")
    if preimport.blocks_in_use(start, length):
        raise KernelError(errno.EEXIST, "I21", "a memory block of the range is in use")
    preimport.hold(start, length)
    try:
        _check_cacheable(region)
        region.numa_id = host.numa.add(preimport.node, start, length, RELEASE)  # I23
        if host.foreign_resource(start, start + length) == "inside":
            _undo_hotplug(host, region)
            raise KernelError(errno.EBUSY, "I25", "a foreign resource lies inside the range")
    except KernelError:
        preimport.release(start, length)
        raise
    region.preimport = preimport


def _check_cacheable(region: ImportRegion) -> None:
    if not region.cacheable:
        raise KernelError(errno.EINVAL, "I22", "NUMA_REMOTE in an NC window")


def _undo_hotplug(host: Host, region: ImportRegion) -> None:
    try:
        host.numa.remove(region.numa_id, region.pa, region.size)
    except KernelError:
        raise KernelError(errno.ENOTRECOVERABLE, "6.4", "roll-back of the hot-plug failed") from None
