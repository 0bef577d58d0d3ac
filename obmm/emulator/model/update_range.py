# SPDX-License-Identifier: Apache-2.0
"""SHMDEV_UPDATE_RANGE: rights of a range of a mapping, and cache maintenance (driver specification 9.6)."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from .calls import Action, KernelError, Protect
from .mapping import joined, page_protection
from .ownership import INVAL, NONE, WB_INVAL, WB_ONLY
from .structs import UPDATE_RANGE
from .vma import EXEC, READ, WRITE, Vma

if TYPE_CHECKING:
    from .files import OpenFile
    from .process import Process
    from .region import Region

log = logging.getLogger("obmm.emulator")

RIGHTS = {0x0: READ, 0x4: READ | EXEC, 0x8: READ | WRITE, 0xC: 0}
OPERATIONS = {0: NONE, 1: INVAL, 2: WB_INVAL, 3: WB_ONLY}
INFER = 4
CACHE_NORMAL, CACHE_NC, CACHE_DEVICE = 1, 2, 3

Change = tuple[Vma, int, int, int]
"""A piece, and its `prot`, `rights` and `may` before the call."""


def update_range(process: Process, file: OpenFile, raw: bytes) -> list[Action]:
    """Checks O2-O11 in order (O1 is the caller's); returns the new protections."""
    start, end, mem_state, cache_ops = UPDATE_RANGE.values(raw)
    region = file.region
    assert region is not None
    if file.noncacheable:
        raise KernelError(errno.EINVAL, "O2", "the descriptor was opened with O_SYNC")
    if region.ownership is None:
        raise KernelError(errno.EINVAL, "O3", "no cacheable mapping of this region was ever made")
    if start >= end:
        raise KernelError(errno.EINVAL, "O4", f"start {start:#x} >= end {end:#x}")
    if start % region.unit or end % region.unit:
        raise KernelError(errno.EINVAL, "O5", f"start {start:#x} or end {end:#x} not aligned to {region.unit:#x}")
    rights = RIGHTS[mem_state & 0xC]
    if (rights & READ and not file.readable) or (rights & WRITE and not file.writable):
        raise KernelError(errno.EPERM, "O6", "the descriptor's mode does not allow this right")
    if not valid_state(mem_state):
        raise KernelError(errno.EINVAL, "O7", f"mem_state {mem_state:#x}")
    if cache_ops > INFER:
        raise KernelError(errno.EINVAL, "O8", f"cache_ops {cache_ops}")
    explicit = OPERATIONS.get(cache_ops)
    done: list[Change] = []
    with process.mmap_lock, region.mutex:
        try:
            address = start
            for vma in process.vmas.overlapping(start, end):
                if vma.start > address or vma.region is not region:
                    break
                if not vma.cacheable:
                    _noncacheable_piece(process, region)
                vma = _cut(process, vma, start, end)  # O10
                address = vma.end
                done.append((vma, vma.prot, vma.rights, vma.may))
                operation = _change(region, vma, rights)
                if explicit is not None:
                    operation = explicit
                if operation != NONE:
                    process.host.engine.flush(region, vma.offset, vma.end - vma.start, operation)  # O11
            if address < end:
                raise KernelError(errno.EFAULT, "O9", f"{address:#x} is not a mapping of this region")
        except KernelError:
            _restore(region, done)
            raise
        for vma, *_ in done:
            process.host.caches.acquire(vma)
    process.last_update = region, done
    if process.host.faults.range_ineffective:
        return []
    protection = page_protection(rights)
    return joined(Protect(vma.start, vma.end - vma.start, protection) for vma, *_ in done)


def undo_update(process: Process) -> list[Action]:
    """Take the last UPDATE_RANGE back: the client's kernel could not split the mapping (O10)."""
    region, done = process.last_update
    with process.mmap_lock, region.mutex:
        _restore(region, done)
    return [Protect(vma.start, vma.end - vma.start, page_protection(vma.rights)) for vma, *_ in done]


def _restore(region: Region, done: list[Change]) -> None:
    for vma, prot, rights, may in done:
        _change(region, vma, rights)
        vma.prot, vma.may = prot, may


def valid_state(mem_state: int) -> bool:
    """Rule O7: the cache field must be set, and what is not NORMAL gives no right."""
    if mem_state & ~0xF:
        return False
    cache, access = mem_state & 3, mem_state & 0xC
    if cache == CACHE_NORMAL:
        return True
    if cache == CACHE_NC:
        return access == 0xC
    return cache == CACHE_DEVICE and access != 0x4


def _cut(process: Process, vma: Vma, start: int, end: int) -> Vma:
    """The part of `vma` in [start, end) as a piece of its own; splits stay when the call fails later."""
    for border in (start, end):
        if vma.start < border < vma.end:
            faults = process.host.faults
            if faults.split_error:
                if faults.split_skip <= 0:
                    raise KernelError(faults.split_error, "O10", "the mapping cannot be split")
                faults.split_skip -= 1
            upper = process.split(vma, border)
            vma = upper if border == start else vma
    return vma


def _noncacheable_piece(process: Process, region: Region) -> None:
    """A cacheable descriptor asks for rights of a non-cacheable mapping: the driver does it and thereby makes
    the mapping cacheable (Q12). The model leaves it as it is and says so, or refuses in strict mode."""
    if process.host.fabric.topology.strict:
        raise KernelError(errno.EINVAL, "Q12", "UPDATE_RANGE of a non-cacheable mapping")
    log.warning("host %s: UPDATE_RANGE of a non-cacheable mapping of region %d", process.host.name, region.mem_id)


def _change(region: Region, vma: Vma, rights: int) -> int:
    """Counters and VMA rights; only READ and WRITE of the VMA change, an EXEC from mmap stays (Q14)."""
    operation = NONE
    if vma.cacheable and region.ownership is not None:
        unit = region.unit
        first = vma.offset // unit
        operation = region.ownership.change(first, first + (vma.end - vma.start) // unit, vma.rights, rights)
    vma.prot = (vma.prot & EXEC) | (rights & (READ | WRITE))
    vma.may = (vma.may & EXEC) | (rights & (READ | WRITE))
    vma.rights = rights
    return operation
