# SPDX-License-Identifier: Apache-2.0
"""IMPORT: a range of a local window becomes a region (driver specification 6.4)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ..calls import KernelError
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
    from ..process import Process


def import_(process: Process, raw: bytes, user: UserMemory) -> bytes:
    """Checks I2-I26 in the driver's order."""
    host = process.host
    command = IMPORT.unpack(raw)
    flags, start, length = command.flags, command.addr, command.length
    if flags & ~IMPORT_MASK:
        raise KernelError(errno.EINVAL, "I2", f"flags {flags:#x} outside {IMPORT_MASK:#x}")
    if bool(flags & IMPORT_ALLOW_MMAP) == bool(flags & IMPORT_NUMA_REMOTE):
        raise KernelError(errno.EINVAL, "I3", "exactly one of ALLOW_MMAP and NUMA_REMOTE")
    if flags & IMPORT_PREIMPORT and not flags & IMPORT_NUMA_REMOTE:
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
    numa_remote = bool(flags & IMPORT_NUMA_REMOTE)
    if numa_remote and not flags & IMPORT_PREIMPORT and 1 <= command.base_dist <= 10:
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
        mutex=host.fabric.mutex(),
    )
    host.take_id(region, "I11")
    try:
        controller = host.controller(command.scna)
        if controller is None or controller.node is None:
            raise KernelError(errno.ENODEV, "I12", f"scna {command.scna:#x} is no local controller's CNA")
        if host.imports.overlaps(start, start + length):
            raise KernelError(errno.EEXIST, "I13", f"{start:#x} is in use by another import")
        kind = host.window_kind(controller, start, length)
        if kind is None:
            raise KernelError(errno.EINVAL, "I14", f"{start:#x}+{length:#x} is not in one window of the controller")
        region.cacheable, region.noncacheable = kind == "CC", kind == "NC"
    except KernelError:
        host.ids.give(region.mem_id)
        raise
    host.imports.add(start, start + length, region)
    host.publish(region)
    return IMPORT.store(raw, mem_id=region.mem_id, numa_id=region.numa_id)
