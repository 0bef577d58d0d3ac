# SPDX-License-Identifier: Apache-2.0
"""EXPORT_PID: huge pages of a process become a region (driver specification 6.2)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ...topology import PMD
from ..calls import KernelError
from ..mapping import map_pieces
from ..memory import Memory
from ..ownership import WB_INVAL
from ..region import ExportRegion
from ..structs import (
    EXPORT_ALLOW_MMAP,
    EXPORT_FAST,
    EXPORT_MASK,
    EXPORT_PID,
    MAX_LOCAL_NODES,
    MAX_PRIV_LEN,
    MAX_VENDOR_LEN,
)
from ..user_memory import Extent, page_floor
from ..vma import READ, WRITE
from .attached import read_attached

if TYPE_CHECKING:
    from ..calls import UserMemory
    from ..host import Host
    from ..process import Process


def export_pid(process: Process, raw: bytes, user: UserMemory) -> bytes:
    """Checks P1-P17 in the driver's order."""
    host = process.host
    command = EXPORT_PID.unpack(raw)
    if command.flags & ~EXPORT_MASK:
        raise KernelError(errno.EINVAL, "P1", f"flags {command.flags:#x} outside {EXPORT_MASK:#x}")
    if command.flags & EXPORT_ALLOW_MMAP:
        raise KernelError(errno.EINVAL, "P2", "ALLOW_MMAP")
    if command.flags & EXPORT_FAST:
        raise KernelError(errno.EINVAL, "P3", "FAST")
    if not command.length:
        raise KernelError(errno.EINVAL, "P4", "length 0")
    if command.length % PMD:
        raise KernelError(errno.EINVAL, "P5", f"length {command.length:#x} is not a multiple of 2 MiB")
    if host.faults.no_memory:
        raise KernelError(errno.ENOMEM, "P6", "no kernel memory")  # P10 and P14 likewise
    priv = read_attached(user, command.priv, command.priv_len, MAX_PRIV_LEN, "P7")
    vendor = read_attached(user, command.vendor_info, command.vendor_len, MAX_VENDOR_LEN, "P7")
    region = ExportRegion(
        size=command.length,
        priv=priv,
        vendor=vendor,
        deid=command.deid,
        allow_mmap=False,
        from_user=True,
        mutex=host.fabric.mutex(),
    )
    host.take_id(region, "P8")
    try:
        with host.module_use():
            target = host.address_space(command.pid) if command.pid else process
            if target is None:
                raise KernelError(errno.ESRCH, "P9", f"no process {command.pid}")
            extents = _pin(target, page_floor(command.va), command.length)
            sizes = _sizes(host, extents, command.pxm_numa)
            if command.length % host.module.memseg:
                raise KernelError(errno.EINVAL, "P15", f"length {command.length:#x} is not a memseg multiple")
            if target is process and command.va % PMD == 0:
                region.memory = _shared(process, command.va, command.length, user)
            host.exports.pin(region, target, sizes, extents)
            try:
                if host.faults.linear_error:
                    raise KernelError(host.faults.linear_error, "P16", "the linear mapping cannot be removed")
                if target is process:
                    host.engine.flush(region, 0, region.size, WB_INVAL)  # P16
                host.exports.attach(region)  # P17
            except KernelError:
                host.exports.unpin(region)
                raise
    except BaseException:
        host.ids.give(region.mem_id)
        raise
    if region.memory is not None:
        _replace(process, command.va, extents, region.memory)
    host.publish(region)
    return EXPORT_PID.store(raw, uba=region.uba, mem_id=region.mem_id, tokenid=region.tokenid)


def _shared(process: Process, va: int, length: int, user: UserMemory) -> Memory | None:
    """Memory with the contents of the caller's pages, or what already took their place in an earlier export.

    Pages of a process cannot be mapped elsewhere. So that importers see them, memory of the emulator takes
    their place in the caller's address space. None: the pages are an account without contents.
    """
    memory = process.exported.get((va, va + length))
    if memory is None:
        try:
            contents = user.read(va, length)
        except KernelError:
            return None
        memory = Memory(f"obmm-user-{process.pid}-{va:x}", length)
        os.pwrite(memory.fd, contents, 0)
    return memory


def _replace(process: Process, va: int, extents: list[Extent], memory: Memory) -> None:
    """Tell the client to map `memory` over its pages; for EXPORT_PID they are what they were."""
    end = va + memory.size
    if (va, end) in process.exported:
        return
    for extent in extents:
        process.memory.declare(extent)
    process.exported[va, end] = memory
    process.pending += map_pieces(va, READ | WRITE, iter([(memory.backing(0), memory.size)]))


def _pin(target: Process, va: int, length: int) -> list[Extent]:
    """Pin for write: EFAULT at the first page (P11), ENOMEM for a part of the range (P12)."""
    if va + length >= 1 << 64:
        raise KernelError(errno.ENOMEM, "P12", "va + length wraps")
    extents: list[Extent] = []
    for extent in target.memory.extents(va, va + length):
        if not extent.writable:
            break
        extents.append(extent)
    if not extents:
        raise KernelError(errno.EFAULT, "P11", f"{va:#x} is not writable memory of process {target.pid}")
    if extents[-1].end < va + length:
        raise KernelError(errno.ENOMEM, "P12", f"only {extents[-1].end - va:#x} bytes could be pinned")
    return extents


def _sizes(host: Host, extents: list[Extent], pxm_numa: int) -> tuple[int, ...]:
    """P13: hugetlb pages on one package with `pxm_numa`; returns the bytes per node."""
    if not all(extent.hugetlb and 0 <= extent.node < MAX_LOCAL_NODES for extent in extents):
        raise KernelError(errno.EOPNOTSUPP, "P13", "a page is not a hugetlb page of a local node")
    if not 0 <= pxm_numa <= MAX_LOCAL_NODES:
        raise KernelError(errno.EOPNOTSUPP, "P13", f"pxm_numa {pxm_numa}")
    sizes = [0] * (max(extent.node for extent in extents) + 1)
    for extent in extents:
        sizes[extent.node] += extent.end - extent.start
    if not host.one_package([*(node for node, size in enumerate(sizes) if size), pxm_numa]):
        raise KernelError(errno.EOPNOTSUPP, "P13", f"the pages and pxm_numa {pxm_numa} are not on one package")
    return tuple(sizes)
