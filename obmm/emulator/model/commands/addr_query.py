# SPDX-License-Identifier: Apache-2.0
"""ADDR_QUERY (driver specification 6.8)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ..calls import KernelError
from ..structs import ADDR_QUERY

if TYPE_CHECKING:
    from ..calls import UserMemory
    from ..process import Process

BY_PA, BY_ID_OFFSET = 0, 1


def addr_query(process: Process, raw: bytes, user: UserMemory) -> bytes:
    """Physical address of (mem_id, offset), or the reverse."""
    host = process.host
    query = ADDR_QUERY.unpack(raw)
    if query.key_type == BY_PA:
        found = host.physical.find(query.pa)
        if found is None:
            raise KernelError(errno.ENOENT, "Q", f"no live region contains {query.pa:#x}")
        return ADDR_QUERY.store(raw, mem_id=found[0].mem_id, offset=found[1])
    if query.key_type == BY_ID_OFFSET:
        region = host.regions.get(query.mem_id)
        if region is None or region.destroying:
            raise KernelError(errno.ENOENT, "Q", f"no region {query.mem_id}")
        if query.offset >= region.size:
            raise KernelError(errno.EINVAL, "Q", f"offset {query.offset:#x} >= size {region.size:#x}")
        return ADDR_QUERY.store(raw, pa=region.physical_address(query.offset))
    raise KernelError(errno.EINVAL, "Q", f"key_type {query.key_type}")
