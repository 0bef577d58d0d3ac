# SPDX-License-Identifier: Apache-2.0
"""EXPORT: memory of this host's pool becomes a region (driver specification 6.1)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from ..calls import KernelError
from ..region import ExportRegion
from ..structs import (
    EXPORT,
    EXPORT_ALLOW_MMAP,
    EXPORT_FAST,
    EXPORT_MASK,
    MAX_LOCAL_NODES,
    MAX_PRIV_LEN,
    MAX_VENDOR_LEN,
    SIZES,
)
from .attached import read_attached

if TYPE_CHECKING:
    from ..calls import UserMemory
    from ..host import Host
    from ..process import Process


def export(process: Process, raw: bytes, user: UserMemory) -> bytes:
    """Checks X1-X15 in the driver's order."""
    host = process.host
    command = EXPORT.unpack(raw)
    sizes = _sizes(host, command)
    if host.faults.no_memory:
        raise KernelError(errno.ENOMEM, "X6", "no kernel memory")
    if command.flags & ~EXPORT_MASK:
        raise KernelError(errno.EINVAL, "X7", f"flags {command.flags:#x} outside {EXPORT_MASK:#x}")
    priv = read_attached(user, command.priv, command.priv_len, MAX_PRIV_LEN, "X8")
    vendor = read_attached(user, command.vendor_info, command.vendor_len, MAX_VENDOR_LEN, "X9")
    region = ExportRegion(
        size=sum(sizes),
        priv=priv,
        vendor=vendor,
        deid=command.deid,
        allow_mmap=bool(command.flags & EXPORT_ALLOW_MMAP),
        from_user=False,
        mutex=host.fabric.mutex(),
    )
    region.node_sizes = sizes
    host.take_id(region, "X10")
    try:
        with host.module_use():
            host.exports.allocate(region, fast=bool(command.flags & EXPORT_FAST))  # X11, X12
            try:
                host.exports.attach(region)  # X13, X14
            except KernelError:
                host.exports.free(region)
                raise
    except KernelError:
        host.ids.give(region.mem_id)
        raise
    host.publish(region)
    return EXPORT.store(raw, uba=region.uba, mem_id=region.mem_id, tokenid=region.tokenid)


def _sizes(host: Host, command: Any) -> tuple[int, ...]:
    length, pxm_numa = command.length, command.pxm_numa
    if length > MAX_LOCAL_NODES:
        raise KernelError(errno.E2BIG, "X1", f"length {length} counts entries of size[], at most 16")
    if not 0 <= pxm_numa <= MAX_LOCAL_NODES:
        raise KernelError(errno.EINVAL, "X2", f"pxm_numa {pxm_numa}")
    sizes = SIZES.unpack(command.size)[:length]
    total = 0
    for node, size in enumerate(sizes):
        if size % host.module.memseg:
            raise KernelError(errno.EINVAL, "X3a", f"size[{node}] {size:#x} is not a multiple of memseg")
        if size and not host.is_local(node):
            raise KernelError(errno.ENODEV, "X3b", f"node {node} is not an online local node")
        total += size
        if total >= 1 << 64:
            raise KernelError(errno.EOVERFLOW, "X3c", "the sizes add up to more than 64 bits")
    if not total:
        raise KernelError(errno.EINVAL, "X4", "nothing to export")
    if not host.one_package([*(node for node, size in enumerate(sizes) if size), pxm_numa]):
        raise KernelError(errno.EINVAL, "X5", f"memory nodes and pxm_numa {pxm_numa} are not on one package")
    while not sizes[-1]:
        sizes = sizes[:-1]
    return sizes
