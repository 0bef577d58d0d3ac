# SPDX-License-Identifier: Apache-2.0
"""mmap and munmap of regions (driver specification 9.3 to 9.5)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..topology import PAGE, PMD
from .calls import Action, Backing, KernelError, Map, Protect, Unmap
from .ownership import NONE, OwnershipTable
from .region import ExportRegion, ImportRegion, Region
from .structs import HUGETLB_PMD
from .vma import EXEC, READ, WRITE, Vma

if TYPE_CHECKING:
    from .files import OpenFile
    from .host import Host
    from .process import Process

MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE, MAP_TYPE = 1, 2, 3, 0xF
MAP_FIXED, MAP_GROWSDOWN, MAP_HUGETLB, MAP_SYNC = 0x10, 0x100, 0x40000, 0x80000
MAP_FIXED_NOREPLACE = 0x100000
ADDRESS_SPACE = 1 << 48


def map_region(
    process: Process, file: OpenFile, address: int, length: int, prot: int, flags: int, offset: int
) -> list[Action]:
    """What the kernel checks (M1-M4), then the driver (M5-M14); returns what the client has to map.

    MAP_FIXED unmaps what is there before the driver is asked, also when the driver then refuses: the
    error carries that unmapping as its actions.
    """
    host = process.host
    length = _check_vfs(process, file, address, length, prot, flags, offset)
    replaced: list[Action] = []
    if flags & MAP_FIXED:
        replaced = unmap(process, address, length)
    else:
        # the kernel gave the client a free address: what the model knows there was unmapped behind its back
        for vma in process.vmas.overlapping(address, address + length):
            close_piece(process, vma)
    region = file.region
    assert region is not None
    may_exec = 0 if host.dev_noexec else EXEC
    try:
        vma = _check_driver(file, region, address, length, prot, flags, offset)
        vma.may = READ | (WRITE if file.writable else 0) | may_exec
        with region.mutex:
            _insert(process, region, vma, PMD if offset & HUGETLB_PMD else PAGE)
            return [*replaced, *host.caches.map_actions(vma, vma.start, vma.end)]
    except KernelError as error:
        error.actions = tuple(replaced)
        raise


def _check_vfs(process: Process, file: OpenFile, address: int, length: int, prot: int, flags: int, offset: int) -> int:
    """M1-M4 and what else the kernel refuses before the driver; returns the length in whole pages."""
    if offset % PAGE:
        raise KernelError(errno.EINVAL, "M1", f"offset {offset:#x} is not page aligned")
    if flags & MAP_HUGETLB:
        raise KernelError(errno.EINVAL, "9.3", "MAP_HUGETLB of a device")
    if not length:
        raise KernelError(errno.EINVAL, "M1", "length 0")
    length = -(-length // PAGE) * PAGE
    if length >= ADDRESS_SPACE:
        raise KernelError(errno.ENOMEM, "M2", f"length {length:#x}")
    if offset + length > (1 << 64) - 1:
        raise KernelError(errno.EOVERFLOW, "M2", "offset + length wraps")
    if len(process.vmas) > process.host.max_map_count:
        raise KernelError(errno.ENOMEM, "M2", "too many mappings")
    if flags & MAP_FIXED_NOREPLACE and process.vmas.overlapping(address, address + length):
        raise KernelError(errno.EEXIST, "9.3", "MAP_FIXED_NOREPLACE over a mapping")
    kind = flags & MAP_TYPE
    if kind not in (MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE):
        raise KernelError(errno.EINVAL, "9.3", f"mapping type {kind}")
    if kind == MAP_SHARED_VALIDATE and flags & MAP_SYNC:
        raise KernelError(errno.EOPNOTSUPP, "9.3", "MAP_SYNC")
    if not file.readable or (kind != MAP_PRIVATE and prot & WRITE and not file.writable):
        raise KernelError(errno.EACCES, "M3", "the descriptor's mode does not allow this mapping")
    if prot & EXEC and process.host.dev_noexec:
        raise KernelError(errno.EPERM, "M4", "/dev is mounted noexec")
    if file.region is None:
        raise KernelError(errno.ENODEV, "2", "the control node cannot be mapped")
    if flags & MAP_GROWSDOWN:
        raise KernelError(errno.EINVAL, "9.3", "MAP_GROWSDOWN")
    return length


def _check_driver(file: OpenFile, region: Region, address: int, length: int, prot: int, flags: int, offset: int) -> Vma:
    """M5-M9; M7 cannot fail after M3."""
    if flags & MAP_TYPE == MAP_PRIVATE:
        raise KernelError(errno.EINVAL, "M5", "MAP_PRIVATE")
    if not region.allow_mmap:
        raise KernelError(errno.EPERM, "M6", "the region was created without ALLOW_MMAP")
    start = offset & ~HUGETLB_PMD
    if offset & HUGETLB_PMD:
        if address % PMD or length % PMD:
            raise KernelError(errno.EINVAL, "M8", f"address {address:#x} or length {length:#x} not PMD aligned")
        if start % PMD:
            raise KernelError(errno.EINVAL, "M9", f"offset {start:#x} not PMD aligned")
    prot &= READ | WRITE | EXEC
    rights = prot | READ if prot & WRITE else prot
    return Vma(address, address + length, start, region, file, prot, rights, not file.noncacheable)


def _insert(process: Process, region: Region, vma: Vma, granularity: int) -> None:
    """M10-M14, then the mapping exists. Called with the region's mutex held."""
    length = vma.end - vma.start
    if region.granularity not in (None, granularity):
        raise KernelError(errno.EPERM, "M10", "the region is fixed to the other granularity")
    if vma.offset >= region.size or length > region.size - vma.offset:
        raise KernelError(errno.EINVAL, "M11", f"{vma.offset:#x}+{length:#x} is past the end {region.size:#x}")
    if region.mapping_mode not in (None, vma.mode):
        raise KernelError(errno.EPERM, "M12", f"the region is mapped {region.mapping_mode} at the moment")
    if process.host.faults.remap_error:
        # M14: granularity and ownership table are as before the call (Q13)
        raise KernelError(process.host.faults.remap_error, "M14", "the page tables cannot be built")
    region.granularity = granularity
    region.mapping_mode = vma.mode
    region.mapping_count += 1
    vma.file.get()
    process.vmas.add(vma)
    if vma.cacheable:
        if region.ownership is None:  # M13
            region.ownership = OwnershipTable(-(-region.size // granularity))
        region.ownership.change(vma.offset // granularity, (vma.offset + length) // granularity, 0, vma.rights)


def unmap(process: Process, address: int, length: int) -> list[Action]:
    """munmap: cut at both ends, then close every piece in between (9.5).

    A cut that is refused leaves the cut before it, and closes nothing.
    """
    if address % PAGE or not length:
        raise KernelError(errno.EINVAL, "9.5", f"address {address:#x} not page aligned or length 0")
    end = address + -(-length // PAGE) * PAGE
    if end > ADDRESS_SPACE:
        raise KernelError(errno.EINVAL, "9.5", f"{end:#x} is past the address space")
    pieces = process.vmas.overlapping(address, end)
    if not pieces:
        return []
    if pieces[0].start < address:
        if end < pieces[0].end and len(process.vmas) >= process.host.max_map_count:
            raise KernelError(errno.ENOMEM, "9.5", "too many mappings")
        pieces[0] = process.split(pieces[0], address)
    if end < pieces[-1].end:
        process.split(pieces[-1], end)
    for vma in pieces:
        close_piece(process, vma)
    return joined(Unmap(vma.start, vma.end - vma.start) for vma in pieces)


def close_piece(process: Process, vma: Vma) -> None:
    """One piece goes: counters drop, the inferred flush runs, its errors are only logged.

    A non-cacheable piece was never counted and is not discounted (Q11).
    """
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


def page_protection(rights: int) -> int:
    """What the page tables allow: a write right also reads, execution is readable, never with write."""
    if rights & WRITE:
        return READ | WRITE
    return rights | READ if rights & EXEC else rights


def joined(actions: Iterator[Protect] | Iterator[Unmap]) -> list[Action]:
    """Neighbouring actions of one kind as one."""
    result: list[Action] = []
    for action in actions:
        last = result[-1] if result else None
        if isinstance(last, Unmap) and isinstance(action, Unmap) and last.address + last.length == action.address:
            result[-1] = Unmap(last.address, last.length + action.length)
        elif (
            isinstance(last, Protect)
            and isinstance(action, Protect)
            and last.address + last.length == action.address
            and last.prot == action.prot
        ):
            result[-1] = Protect(last.address, last.length + action.length, last.prot)
        else:
            result.append(action)
    return result


def map_pieces(address: int, rights: int, pieces: Iterator[tuple[Backing, int]]) -> list[Action]:
    """The client's mmap calls that put `pieces` at `address`; pieces that continue each other are one."""
    prot = page_protection(rights)
    actions: list[Action] = []
    last: Map | None = None
    for backing, length in pieces:
        if last is not None and _continues(last, backing):
            actions[-1] = last = Map(last.address, last.length + length, prot, last.backing)
        else:
            last = Map(address, length, prot, backing)
            actions.append(last)
        address += length
    return actions


def _continues(last: Map, backing: Backing) -> bool:
    return last.backing.fd == backing.fd and last.backing.offset + last.length == backing.offset


def memory_pieces(host: Host, region: Region, offset: int, length: int) -> Iterator[tuple[Backing, int]]:
    """What answers at [offset, offset + length) of `region`: its own memory, or through the decoder."""
    if isinstance(region, ImportRegion):
        yield from window_pieces(host, region.pa + offset, length)
    elif isinstance(region, ExportRegion):
        yield from host.fabric.export_pieces(region, offset, length)


def window_pieces(host: Host, pa: int, length: int) -> Iterator[tuple[Backing, int]]:
    """What answers behind a local window: decoded remote memory, backed windows, or nothing (SIGBUS)."""
    end = pa + length
    for entry in host.decoder.overlapping(pa, end):
        if pa < entry.pa:
            yield from _undecoded(host, pa, entry.pa)
            pa = entry.pa
        stop = min(end, entry.end)
        found = host.fabric.resolve(entry.dcna, entry.tokenid, entry.uba + pa - entry.pa)
        if found is not None:
            region, at = found
            part = min(stop - pa, region.size - at)
            yield from host.fabric.export_pieces(region, at, part)
            pa += part
        if pa < stop:
            yield host.fabric.hole.backing(0), stop - pa
            pa = stop
    if pa < end:
        yield from _undecoded(host, pa, end)


def _undecoded(host: Host, pa: int, end: int) -> Iterator[tuple[Backing, int]]:
    while pa < end:
        found = host.windows.memory(pa)
        if found is None:
            yield host.fabric.hole.backing(0), end - pa
            return
        memory, offset, rest = found
        part = min(end - pa, rest)
        yield memory.backing(offset), part
        pa += part
