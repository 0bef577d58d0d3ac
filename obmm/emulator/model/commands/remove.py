# SPDX-License-Identifier: Apache-2.0
"""UNEXPORT and UNIMPORT (driver specification 6.3, 6.5)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, TypeVar

from ..calls import KernelError
from ..numa import ISOLATED, ONLINE, RELEASE
from ..ownership import INVAL
from ..region import ExportRegion, ImportRegion
from ..structs import MAX_MEM_ID, REMOVE

if TYPE_CHECKING:
    from ..calls import UserMemory
    from ..host import Host
    from ..process import Process


def unexport(process: Process, raw: bytes, user: UserMemory) -> None:
    """Remove an export: its memory is unreachable afterwards, for importers too."""
    host = process.host
    region = _claim(host, raw, ExportRegion)
    try:
        assert region.ummu is not None
        region.ummu.detach(region, host)  # U6
    except KernelError:
        region.destroying = False
        raise
    host.exports.free(region)
    host.withdraw(region)


def unimport(process: Process, raw: bytes, user: UserMemory) -> None:
    """Remove an import: offline its memory, drop dirty lines without writing them back, free the range.

    Any failure leaves the region alive.
    """
    host = process.host
    region = _claim(host, raw, ImportRegion)
    try:
        if region.numa_remote:
            _offline(host, region)
        try:
            host.engine.flush(region, 0, region.size, INVAL)
        except KernelError:
            if region.numa_remote:
                _online_again(host, region)
            raise
    except KernelError as error:
        region.destroying = False
        region.broken = region.broken or error.errno == errno.ENOTRECOVERABLE
        raise
    host.caches.forget(region)
    if region.preimport is not None:
        region.preimport.release(region.pa, region.size)
    else:
        host.imports.remove(region.pa)
    host.withdraw(region)


_Kind = TypeVar("_Kind", ExportRegion, ImportRegion)


def _claim(host: Host, raw: bytes, kind: type[_Kind]) -> _Kind:
    command = REMOVE.unpack(raw)
    if not 1 <= command.mem_id <= MAX_MEM_ID:
        raise KernelError(errno.ENOENT, "U1", f"mem_id {command.mem_id} outside 1...{MAX_MEM_ID}")
    if command.flags:
        raise KernelError(errno.EINVAL, "U2", f"flags {command.flags:#x}")
    region = host.regions.get(command.mem_id)
    if region is None:
        raise KernelError(errno.ENOENT, "U3", f"no region {command.mem_id}")
    if region.busy:
        raise KernelError(errno.EBUSY, "U4", f"region {command.mem_id} is open, mapped or being removed")
    if not isinstance(region, kind):
        raise KernelError(errno.EINVAL, "U5", f"region {command.mem_id} is an {region.kind}")
    region.destroying = True
    return region


def _offline(host: Host, region: ImportRegion) -> None:
    if region.broken and region.preimport is None:
        raise KernelError(errno.ENOTRECOVERABLE, "6.5", "an earlier roll-back failed: the memory is gone")
    host.numa.remove(region.numa_id, region.pa, region.size)
    if region.preimport is not None:
        try:
            host.numa.add(region.numa_id, region.pa, region.size, ISOLATED)
        except KernelError:
            raise KernelError(errno.ENOTRECOVERABLE, "6.5", "the memory cannot be put back isolated") from None


def _online_again(host: Host, region: ImportRegion) -> None:
    try:
        if region.preimport is not None:
            host.numa.add(region.numa_id, region.pa, region.size, RELEASE)
        else:
            host.numa.add(region.numa_id, region.pa, region.size, ONLINE)
            host.numa.set_distance(region.numa_id, region.base_dist, region.controller_node)
    except KernelError:
        raise KernelError(errno.ENOTRECOVERABLE, "6.5", "roll-back of the removal failed") from None
