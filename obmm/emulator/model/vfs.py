# SPDX-License-Identifier: Apache-2.0
"""What the kernel around the driver answers (driver specification 9.2, 9.4)."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import TYPE_CHECKING

from ..topology import PAGE, PMD
from . import mapping
from .calls import Answer, KernelError, UserMemory
from .vma import EXEC, READ, WRITE, Vma

if TYPE_CHECKING:
    from .files import OpenFile
    from .process import Process

FIGETBSZ, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE = 0x2, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460
FIFREEZE, FITHAW, FS_IOC_FIEMAP = 0xC0045877, 0xC0045878, 0xC020660B
FICLONE, FICLONERANGE, FIDEDUPERANGE = 0x40049409, 0x4020940D, 0xC0189436
IOCTLS = frozenset(
    {FIGETBSZ, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE, FIFREEZE, FITHAW, FS_IOC_FIEMAP}
    | {FICLONE, FICLONERANGE, FIDEDUPERANGE}
)
"""Requests that the VFS answers itself; they never reach the driver, gate or not (rule D2)."""

REFUSED_ADVICE = {
    4: errno.EINVAL,  # DONTNEED
    8: errno.EINVAL,  # FREE
    9: errno.ENODEV,  # REMOVE
    11: errno.EINVAL,  # DOFORK
    17: errno.EINVAL,  # DODUMP
    20: errno.EINVAL,  # COLD
    21: errno.EINVAL,  # PAGEOUT
    22: errno.EINVAL,  # POPULATE_READ
    23: errno.EINVAL,  # POPULATE_WRITE
}
ACCEPTED_ADVICE = frozenset({0, 1, 2, 3, 10, 12, 13, 14, 15, 16})
"""NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTFORK, MERGEABLE, UNMERGEABLE, (NO)HUGEPAGE, DONTDUMP: no effect."""
MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 1, 2, 4
MS_ASYNC, MS_INVALIDATE, MS_SYNC = 1, 2, 4


def ioctl(request: int, argument: int, user: UserMemory) -> Answer:
    """One of `IOCTLS` on a character device."""
    if request == FIOQSIZE:
        raise KernelError(errno.ENOTTY, "D2", "FIOQSIZE of a device")
    if request in (FIFREEZE, FITHAW, FS_IOC_FIEMAP):
        raise KernelError(errno.EOPNOTSUPP, "D2", f"request {request:#x} of a device")
    if request == FICLONERANGE:
        user.read(argument, 32)
    if request in (FICLONE, FICLONERANGE):
        raise KernelError(errno.EXDEV, "D2", "the other file is on another file system")
    if request == FIDEDUPERANGE:
        user.read(argument, 24)
        raise KernelError(errno.EINVAL, "D2", "bytes of a device are not shared")
    if request == FIGETBSZ:
        user.write(argument, PAGE.to_bytes(4, "little"))
    elif request in (FIONBIO, FIOASYNC) and any(user.read(argument, 4)) and request == FIOASYNC:
        raise KernelError(errno.ENOTTY, "D2", "FIOASYNC of a device without asynchronous notification")
    return Answer(0)


class FileOperation(IntEnum):
    """System calls on a descriptor that the driver does not implement."""

    READ = 1
    WRITE = 2
    LSEEK = 3
    FSYNC = 4
    FALLOCATE = 5
    FTRUNCATE = 6


def file_operation(file: OpenFile, operation: int) -> Answer:
    """read, write, lseek, fsync, fallocate, ftruncate and their relatives: always refused (2, 9.2)."""
    if operation == FileOperation.LSEEK:
        raise KernelError(errno.ESPIPE, "9.2", "lseek")
    if operation == FileOperation.READ and not file.readable:
        raise KernelError(errno.EBADF, "9.2", "read of a write-only descriptor")
    if operation in (FileOperation.WRITE, FileOperation.FALLOCATE) and not file.writable:
        raise KernelError(errno.EBADF, "9.2", "write to a read-only descriptor")
    if operation == FileOperation.FALLOCATE:
        raise KernelError(errno.ENODEV, "9.2", "fallocate")
    raise KernelError(errno.EINVAL, "9.2", "the driver has no such operation")


def mprotect(process: Process, address: int, length: int, prot: int) -> Answer:
    """EACCES when a right is not in the VMA's MAY flags (they follow ownership), else EOPNOTSUPP."""
    pieces = _pieces(process, address, length)
    if address % PAGE:
        raise KernelError(errno.EINVAL, "9.4", f"address {address:#x} is not page aligned")
    if prot & (READ | WRITE | EXEC) & ~pieces[0].may:
        raise KernelError(errno.EACCES, "9.4", "a right that the mapping does not have")
    raise KernelError(errno.EOPNOTSUPP, "9.4", "mprotect of a region")


def mremap(process: Process, address: int, old: int, new: int, flags: int, target: int) -> Answer:
    """Same size: nothing; smaller: munmap of the tail; larger or moved: refused.

    The driver's failed move runs the release of the mapping once; the model refuses without that (Q29).
    """
    pieces = _pieces(process, address, 1)
    old, new = (-(-size // PAGE) * PAGE for size in (old, new))
    if address % PAGE or not new:
        raise KernelError(errno.EINVAL, "9.4", "address not page aligned or new size 0")
    if flags & (MREMAP_FIXED | MREMAP_DONTUNMAP):
        if not flags & MREMAP_MAYMOVE or target % PAGE:
            raise KernelError(errno.EINVAL, "9.4", "mremap flags")
        if pieces[0].region.unit == PMD and (old % PMD or new % PMD):
            raise KernelError(errno.EINVAL, "9.4", "a PMD region at a size that is not a PMD multiple")
        raise KernelError(errno.EOPNOTSUPP, "9.4", "move of a region's mapping")
    if new > old or not old:
        raise KernelError(errno.EFAULT, "9.4", "growth of a region's mapping")
    if new == old:
        return Answer(address)
    return Answer(address, tuple(mapping.unmap(process, address + new, old - new)))


def madvise(process: Process, address: int, length: int, advice: int) -> Answer:
    """EINVAL, ENODEV, or no effect, by advice."""
    _pieces(process, address, length)
    if address % PAGE:
        raise KernelError(errno.EINVAL, "9.4", f"address {address:#x} is not page aligned")
    if advice in ACCEPTED_ADVICE:
        return Answer(0)
    raise KernelError(REFUSED_ADVICE.get(advice, errno.EINVAL), "9.4", f"advice {advice}")


def msync(process: Process, address: int, length: int, flags: int) -> Answer:
    """MS_SYNC of a mapping made through a writable descriptor is EINVAL, everything else does nothing."""
    pieces = _pieces(process, address, length)
    if address % PAGE or flags & ~7 or flags & 5 == 5:
        raise KernelError(errno.EINVAL, "9.2", "msync arguments")
    if flags & MS_SYNC and any(vma.file.writable for vma in pieces):
        raise KernelError(errno.EINVAL, "9.2", "msync(MS_SYNC): the driver has no fsync")
    return Answer(0)


def _pieces(process: Process, address: int, length: int) -> list[Vma]:
    """Mappings of regions in the range; ranges without any are none of the model's business."""
    pieces = process.vmas.overlapping(address, address + length)
    if not pieces:
        raise KernelError(errno.ENOMEM, "9.4", f"no region is mapped at {address:#x}")
    return pieces
