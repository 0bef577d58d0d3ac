# SPDX-License-Identifier: Apache-2.0
"""mmap and munmap of regions (driver specification 9.3 to 9.5)."""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..topology import PAGE, PMD
from .calls import Action, Backing, KernelError, Map, Unmap
from .ownership import NONE, OwnershipTable
from .region import ExportRegion, ImportRegion, Region
from .structs import HUGETLB_PMD
from .vma import EXEC, READ, WRITE, Vma

if TYPE_CHECKING:
    from .files import OpenFile
    from .host import Host
    from .process import Process

MAP_TYPE = 0x0F


def map_region(
    process: Process, file: OpenFile, address: int, length: int, prot: int, flags: int, offset: int
) -> list[Action]:
    """Checks M1-M14 in order; returns what the client has to map."""
    if not length or offset % PAGE:
        raise KernelError(errno.EINVAL, "M1", f"length {length:#x}, offset {offset:#x}")
    length = -(-length // PAGE) * PAGE
    if offset + length > 1 << 64:
        raise KernelError(errno.EOVERFLOW, "M2", "offset + length wraps")
    shared = flags & MAP_TYPE != mmap.MAP_PRIVATE
    if not file.readable or (shared and prot & WRITE and not file.writable):
        raise KernelError(errno.EACCES, "M3", "the descriptor's mode does not allow this protection")
    region = file.region
    if region is None:
        raise KernelError(errno.ENODEV, "2", "the control node cannot be mapped")
    if not shared:
        raise KernelError(errno.EINVAL, "M5", "MAP_PRIVATE")
    if not region.allow_mmap:
        raise KernelError(errno.EPERM, "M6", "the region was created without ALLOW_MMAP")
    granularity, start = PAGE, offset
    if offset & HUGETLB_PMD:
        granularity, start = PMD, offset & ~HUGETLB_PMD
        if address % PMD or length % PMD:
            raise KernelError(errno.EINVAL, "M8", "address or length not PMD aligned")
        if start % PMD:
            raise KernelError(errno.EINVAL, "M9", f"offset {start:#x} not PMD aligned")
    with region.mutex:
        if region.granularity not in (None, granularity):
            raise KernelError(errno.EPERM, "M10", "the region is fixed to the other granularity")
        if start >= region.size or length > region.size - start:
            raise KernelError(errno.EINVAL, "M11", f"{start:#x}+{length:#x} is past the end {region.size:#x}")
        mode = "NC" if file.noncacheable else "CC"
        if region.mapping_mode not in (None, mode):
            raise KernelError(errno.EPERM, "M12", f"the region is mapped {region.mapping_mode} at the moment")
        cacheable = mode == "CC"
        rights = prot | READ if prot & WRITE else prot
        vma = Vma(address, address + length, start, region, file, prot, rights, cacheable)
        region.granularity = granularity
        region.mapping_mode = "CC" if cacheable else "NC"
        region.mapping_count += 1
        file.get()
        process.vmas.add(vma)
        if cacheable:
            if region.ownership is None:
                region.ownership = OwnershipTable(-(-region.size // granularity))
            region.ownership.change(start // granularity, (start + length) // granularity, 0, rights)
        return map_actions(process.host, vma)


def unmap(process: Process, address: int, length: int) -> list[Action]:
    """munmap: whole pieces and parts of pieces (9.5)."""
    if address % PAGE or not length:
        raise KernelError(errno.EINVAL, "9.5", "address not page aligned or length 0")
    end = address + -(-length // PAGE) * PAGE
    pieces = process.vmas.overlapping(address, end)
    for vma in pieces:
        for cut in (address, end):
            if vma.start < cut < vma.end and cut % vma.region.unit:
                raise KernelError(errno.EINVAL, "9.5", f"a PMD region cannot be cut at {cut:#x}")
    actions: list[Action] = []
    for vma in pieces:
        if vma.start < address:
            vma = process.split(vma, address)
        if vma.end > end:
            process.split(vma, end)
        close_piece(process, vma)
        actions.append(Unmap(vma.start, vma.end - vma.start))
    return actions


def close_piece(process: Process, vma: Vma) -> None:
    """One piece goes: counters drop, the inferred flush runs, its errors are only logged."""
    region = vma.region
    with region.mutex:
        process.vmas.remove(vma)
        if vma.cacheable and region.ownership is not None:
            unit = region.unit
            first = vma.offset // unit
            last = first + (vma.end - vma.start) // unit
            operation = region.ownership.change(first, last, vma.rights, 0)
            if operation != NONE:
                with contextlib.suppress(KernelError):
                    process.host.engine.flush(region, vma.offset, vma.end - vma.start, operation)
        region.mapping_count -= 1
        if not region.mapping_count:
            region.mapping_mode = None
    vma.file.put()


def map_actions(host: Host, vma: Vma) -> list[Action]:
    """The client's mmap calls that make `vma` real."""
    prot = page_protection(vma.rights)
    actions: list[Action] = []
    address = vma.start
    for backing, length in memory_pieces(host, vma.region, vma.offset, vma.end - vma.start):
        actions.append(Map(address, length, prot, backing))
        address += length
    return actions


def page_protection(rights: int) -> int:
    """What the page tables allow: a write right also reads, execution is readable, never with write."""
    if rights & WRITE:
        return READ | WRITE
    return rights | READ if rights & EXEC else rights


def memory_pieces(host: Host, region: Region, offset: int, length: int) -> Iterator[tuple[Backing, int]]:
    """What answers at [offset, offset + length) of `region`: its own memory, or through the decoder."""
    if isinstance(region, ExportRegion):
        assert region.memory is not None
        yield region.memory.backing(offset), length
    elif isinstance(region, ImportRegion):
        yield from window_pieces(host, region.pa + offset, length)


def window_pieces(host: Host, pa: int, length: int) -> Iterator[tuple[Backing, int]]:
    """What answers behind a local window: decoded remote memory, backed windows, or nobody."""
    end = pa + length
    for entry in [*host.decoder.overlapping(pa, end), None]:
        stop = min(end, entry.pa) if entry else end
        if pa < stop:
            yield from _undecoded(host, pa, stop)
            pa = stop
        if entry is None or pa >= end:
            return
        stop = min(end, entry.end)
        found = host.fabric.resolve(entry.dcna, entry.tokenid, entry.uba + pa - entry.pa)
        if found is not None and found[0].memory is not None:
            region, at = found
            part = min(stop - pa, region.size - at)
            yield found[0].memory.backing(at), part
            pa += part
        if pa < stop:
            yield host.fabric.hole.backing(0), stop - pa
            pa = stop


def _undecoded(host: Host, pa: int, end: int) -> Iterator[tuple[Backing, int]]:
    while pa < end:
        found = host.window_memory(pa)
        if found is None:
            yield host.fabric.hole.backing(0), end - pa
            return
        memory, offset, rest = found
        part = min(end - pa, rest)
        yield memory.backing(offset), part
        pa += part
