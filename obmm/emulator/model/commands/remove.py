# SPDX-License-Identifier: Apache-2.0
"""UNEXPORT and UNIMPORT (driver specification 6.3, 6.5)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ..calls import KernelError
from ..ownership import INVAL
from ..region import ExportRegion, ImportRegion, Region
from ..structs import MAX_MEM_ID, REMOVE

if TYPE_CHECKING:
    from ..calls import UserMemory
    from ..host import Host
    from ..process import Process


def unexport(process: Process, raw: bytes, user: UserMemory) -> None:
    """Remove an export: its memory is unreachable afterwards, for importers too."""
    host = process.host
    region = _claim(host, raw, "export")
    assert isinstance(region, ExportRegion)
    host.release_export(region)
    host.withdraw(region)


def unimport(process: Process, raw: bytes, user: UserMemory) -> None:
    """Remove an import: dirty lines are dropped, not written back."""
    host = process.host
    region = _claim(host, raw, "import")
    assert isinstance(region, ImportRegion)
    try:
        host.engine.flush(region, 0, region.size, INVAL)
    except KernelError:
        region.destroying = False
        raise
    host.imports.remove(region.pa)
    host.withdraw(region)


def _claim(host: Host, raw: bytes, kind: str) -> Region:
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
    if region.kind != kind:
        raise KernelError(errno.EINVAL, "U5", f"region {command.mem_id} is an {region.kind}")
    region.destroying = True
    return region
