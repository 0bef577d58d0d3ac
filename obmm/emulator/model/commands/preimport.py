# SPDX-License-Identifier: Apache-2.0
"""DECLARE_PREIMPORT and UNDECLARE_PREIMPORT (driver specification 6.6, 6.7)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ...topology import MEMORY_BLOCK
from ..calls import KernelError
from ..numa import ISOLATED
from ..preimport import Preimport
from ..structs import PREIMPORT

if TYPE_CHECKING:
    from ..calls import UserMemory
    from ..process import Process


def declare_preimport(process: Process, raw: bytes, user: UserMemory) -> bytes:
    """Hot-plug a range, isolated, for later imports. Checks R2-R15 in the driver's order."""
    host = process.host
    command = PREIMPORT.unpack(raw)
    start, length = command.pa, command.length
    if length % MEMORY_BLOCK:
        raise KernelError(errno.EINVAL, "R2", f"length {length:#x} is not a multiple of the memory block")
    if start % MEMORY_BLOCK:
        raise KernelError(errno.EINVAL, "R3", f"pa {start:#x} is not a multiple of the memory block")
    if start + length >= 1 << 64:
        raise KernelError(errno.EINVAL, "R4", "pa + length overflows")
    if not length:
        raise KernelError(errno.EINVAL, "R5", "length 0")
    if command.flags:
        raise KernelError(errno.EINVAL, "R6", f"flags {command.flags:#x}")
    controller = host.controller(command.scna)
    if controller is None or controller.node is None:
        raise KernelError(errno.ENODEV, "R7", f"scna {command.scna:#x} is not a local controller's CNA")
    if 1 <= command.base_dist <= 10:
        raise KernelError(errno.EINVAL, "R8", f"base_dist {command.base_dist}")
    if not start:
        raise KernelError(errno.EINVAL, "R9", "pa 0")
    if host.imports.overlaps(start, start + length):
        raise KernelError(errno.EEXIST, "R10", f"{start:#x} is in use")
    if host.faults.no_memory:
        raise KernelError(errno.ENOMEM, "R11", "no kernel memory")
    if host.foreign_resource(start, start + length) in ("partial", "inside"):
        raise KernelError(errno.EBUSY, "R12", "a foreign resource overlaps the range")
    if host.windows.kind(controller, start, length) != "CC":
        raise KernelError(errno.EINVAL, "R13", "the range is not in a CC window")
    preimport = Preimport(start, length, command.scna, command.dcna, command.seid, command.deid, command.base_dist)
    host.imports.add(start, preimport.end, preimport)
    try:
        with host.module_use():
            preimport.node = host.numa.add(command.numa_id, start, length, ISOLATED)  # R14
            try:
                host.numa.set_distance(preimport.node, command.base_dist, controller.node)  # R15
            except KernelError:
                host.numa.remove(preimport.node, start, length)
                raise
    except KernelError:
        host.imports.remove(start)
        raise
    preimport.creating = False
    host.preimports.append(preimport)
    host.tree.changed_preimport(preimport)
    return PREIMPORT.store(raw, numa_id=preimport.node)


def undeclare_preimport(process: Process, raw: bytes, user: UserMemory) -> None:
    """Take a declared range away again. Checks V1-V7; only pa, length and flags are read."""
    host = process.host
    command = PREIMPORT.unpack(raw)
    if command.flags:
        raise KernelError(errno.EINVAL, "V1", f"flags {command.flags:#x}")
    found = host.imports.at(command.pa)
    if found is None:
        raise KernelError(errno.EFAULT, "V2", f"pa {command.pa:#x} is in no known range")
    preimport = found.owner
    if not isinstance(preimport, Preimport):
        raise KernelError(errno.EINVAL, "V3", f"pa {command.pa:#x} belongs to a plain import")
    if preimport.creating:
        raise KernelError(errno.EAGAIN, "V4", "the preimport is still being created")
    if (command.pa, command.pa + command.length) != (preimport.start, preimport.end):
        raise KernelError(errno.EINVAL, "V5", "not exactly the declared range")
    if preimport.users:
        raise KernelError(errno.EBUSY, "V6", "an import still uses the preimport")
    host.numa.remove(preimport.node, preimport.start, preimport.end - preimport.start)  # V7
    host.imports.remove(preimport.start)
    host.preimports.remove(preimport)
    host.tree.changed_preimport(preimport)
