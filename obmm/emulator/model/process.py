# SPDX-License-Identifier: Apache-2.0
"""A client process: the system calls it makes and the mappings it owns."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from . import mapping
from .calls import Answer, KernelError, UserMemory
from .commands import COMMANDS
from .files import OpenFile
from .structs import SHMDEV_UPDATE_RANGE, UPDATE_RANGE
from .update_range import update_range
from .vma import Vma, VmaList

if TYPE_CHECKING:
    from .host import Host
    from .region import Region

O_PATH = 0o10000000
VFS_IOCTLS = frozenset({0x5450, 0x5451, 0x5421, 0x5452})
"""FIONCLEX, FIOCLEX, FIONBIO, FIOASYNC: answered by the VFS, they never reach the driver (rule D2)."""


class Process:
    """System calls of one process. Each raises `KernelError` with the errno the caller would see."""

    def __init__(self, host: Host, pid: int, uid: int) -> None:
        self.host = host
        self.pid = pid
        self.uid = uid
        self.vmas = VmaList()
        self.mmap_lock = host.fabric.mutex()

    def open(self, path: str, flags: int) -> OpenFile:
        """open(2) of a device node, in the order of 9.1."""
        host = self.host
        with host.fabric.lock:
            region = host.lookup(path)
            if flags & O_PATH:
                return host.opened(path, flags, None)
            if region is None:
                host.check_permission(0o600, (0, 0), self.uid, flags)
            else:
                host.check_permission(region.mode, region.owner, self.uid, flags)
                self._open_region(region, flags)
            if flags & os.O_DIRECT:
                raise KernelError(errno.EINVAL, "9.1", "O_DIRECT")
            if region is not None:
                region.opens += 1
            return host.opened(path, flags, region)

    def _open_region(self, region: Region, flags: int) -> None:
        if flags & os.O_SYNC:
            if not region.noncacheable:
                raise KernelError(errno.EPERM, "9.1", "O_SYNC, but the region has no non-cacheable capability")
        elif not region.cacheable:
            raise KernelError(errno.EPERM, "9.1", "no O_SYNC, but the region has no cacheable capability")
        if region.destroying:
            raise KernelError(errno.EAGAIN, "9.1", "the region is being removed")

    def ioctl(self, file: OpenFile, request: int, argument: int, user: UserMemory) -> Answer:
        """ioctl(2) on either node: dispatch rules D1-D5, or UPDATE_RANGE."""
        host = self.host
        with host.fabric.lock:
            if request in VFS_IOCTLS:
                return Answer(0)
            if file.region is not None:
                if request != SHMDEV_UPDATE_RANGE:
                    raise KernelError(errno.ENOTTY, "9.2", f"request {request:#x}")
                raw = user.read(argument, UPDATE_RANGE.size)  # O1
                return Answer(0, tuple(update_range(self, file, raw)))
            if not host.module.gate_open:
                raise KernelError(errno.EOPNOTSUPP, "D1", "the firmware reports no UB memory feature")
            command = COMMANDS.get(request)
            if command is None:
                raise KernelError(errno.ENOTTY, "D2", f"request {request:#x}")
            raw = user.read(argument, command.layout.size)  # D3
            result = command.run(self, raw, user)
            if result is not None:
                user.write(argument, result)  # D5
            return Answer(0)

    def mmap(self, file: OpenFile, address: int, length: int, prot: int, flags: int, offset: int) -> Answer:
        """mmap(2) of `file` at `address`, which the client has chosen (driver specification 9.3)."""
        with self.host.fabric.lock, self.mmap_lock:
            actions = mapping.map_region(self, file, address, length, prot, flags, offset)
            return Answer(address, tuple(actions))

    def munmap(self, address: int, length: int) -> Answer:
        """munmap(2) (driver specification 9.5); ranges of no region are left to the client."""
        with self.host.fabric.lock, self.mmap_lock:
            return Answer(0, tuple(mapping.unmap(self, address, length)))

    def split(self, vma: Vma, address: int) -> Vma:
        """Cut a piece at `address`; returns the upper part."""
        upper = vma.split(address)
        vma.region.mapping_count += 1
        self.vmas.add(upper)
        return upper

    def exit(self) -> None:
        """The process is gone, orderly or killed: its mappings close as in munmap."""
        host = self.host
        with host.fabric.lock:
            for vma in list(self.vmas):
                mapping.close_piece(self, vma)
            if host.processes.get(self.pid) is self:
                del host.processes[self.pid]
