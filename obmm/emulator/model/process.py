# SPDX-License-Identifier: Apache-2.0
"""A client process: the system calls it makes and the mappings it owns."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from . import mapping, vfs
from .calls import Action, Answer, KernelError, UserMemory
from .commands import COMMANDS
from .files import O_PATH, OpenFile
from .memory import Memory
from .structs import SHMDEV_UPDATE_RANGE, UPDATE_RANGE
from .update_range import Change, undo_update, update_range
from .user_memory import UserPages
from .vma import Vma, VmaList

if TYPE_CHECKING:
    from .host import Host
    from .region import Region

O_CREAT, O_EXCL, O_DIRECTORY = 0o100, 0o200, 0o200000


class Process:
    """System calls of one process. Each raises `KernelError` with the errno the caller would see."""

    def __init__(self, host: Host, pid: int, uid: int) -> None:
        self.host = host
        self.pid = pid
        self.uid = uid
        self.vmas = VmaList()
        self.mmap_lock = host.fabric.mutex()
        self.memory = UserPages(pid)
        """The process's own pages, for EXPORT_PID."""
        self.last_update: tuple[Region, list[Change]]
        """What the last UPDATE_RANGE changed, should the client not be able to follow."""
        self.stale: list[tuple[int, int]] = []
        """Addresses that its client has to map anew with the next call: what is behind them has changed."""
        self.exported: dict[tuple[int, int], Memory] = {}
        """Memory that took the place of own pages [start, end) when they were exported."""
        self.pending: list[Action] = []
        """What the client has to do with the answer of the call that is running."""

    def open(self, path: str, flags: int) -> OpenFile:
        """open(2) of a device node, in the order of 9.1."""
        host = self.host
        with host.fabric.lock:
            region = host.lookup(path)
            if host.faults.open_error:
                raise KernelError(host.faults.open_error, "OPEN1", "injected")
            if flags & O_CREAT and flags & O_EXCL:
                raise KernelError(errno.EEXIST, "OPEN1", f"{path} exists")
            if flags & O_DIRECTORY:
                raise KernelError(errno.ENOTDIR, "OPEN1", f"{path} is not a folder")
            if flags & O_PATH:
                return OpenFile(host, path, flags, None)
            mode, owner = (region.mode, region.owner) if region else (host.control_mode, host.control_owner)
            if not _may_open(mode, owner, self.uid, flags):
                raise KernelError(errno.EACCES, "OPEN1", f"mode {mode:#o}, uid {self.uid}")
            if region is not None:
                self._open_region(region, flags)
            if flags & os.O_DIRECT:
                raise KernelError(errno.EINVAL, "9.1", "O_DIRECT")
            if region is not None:
                region.opens += 1
            return OpenFile(host, path, flags, region)

    def _open_region(self, region: Region, flags: int) -> None:
        if flags & os.O_SYNC:
            if not region.noncacheable:
                raise KernelError(errno.EPERM, "OPEN3", "O_SYNC, but the region has no non-cacheable capability")
        elif not region.cacheable:
            raise KernelError(errno.EPERM, "OPEN2", "no O_SYNC, but the region has no cacheable capability")
        if region.destroying:
            raise KernelError(errno.EAGAIN, "OPEN4", "the region is being removed")

    def ioctl(self, file: OpenFile, request: int, argument: int, user: UserMemory) -> Answer:
        """ioctl(2) on either node: dispatch rules D1-D5, or UPDATE_RANGE."""
        with self.host.fabric.lock:
            if file.path_only:
                raise KernelError(errno.EBADF, "9.1", "O_PATH descriptor")
            if request in vfs.IOCTLS:
                return vfs.ioctl(request, argument, user)
            if file.region is not None:
                if request != SHMDEV_UPDATE_RANGE:
                    raise KernelError(errno.ENOTTY, "9.2", f"request {request:#x}")
                raw = user.read(argument, UPDATE_RANGE.size)  # O1
                return self._answer(0, update_range(self, file, raw))
            return self._answer(0, self._control(request, argument, user))

    def undo_update(self) -> Answer:
        """The client could not do what the last UPDATE_RANGE told it: rights and counters are as before (O10)."""
        with self.host.fabric.lock:
            return Answer(0, tuple(undo_update(self)))

    def _control(self, request: int, argument: int, user: UserMemory) -> list[Action]:
        host = self.host
        if host.dead:
            raise KernelError(errno.ENODEV, "17", f"node {host.name} is dead")
        if not host.module.gate_open:
            raise KernelError(errno.EOPNOTSUPP, "D1", "the firmware reports no UB memory feature")
        command = COMMANDS.get(request)
        if command is None:
            raise KernelError(errno.ENOTTY, "D2", f"request {request:#x}")
        raw = user.read(argument, command.layout.size)  # D3
        try:
            result = command.run(self, raw, user)
        except KernelError:
            host.fabric.pause(host.faults.latency)
            raise
        host.fabric.pause(host.faults.latency)
        if result is not None:
            user.write(argument, result)  # D5
        return []

    def _answer(self, value: int, actions: list[Action]) -> Answer:
        """A call has succeeded; stale addresses are mapped anew with it."""
        caches = self.host.caches
        caches.tick()
        actions = [*self.pending, *actions]
        self.pending.clear()
        for start, end in self.stale:
            for vma in self.vmas.overlapping(start, end):
                actions += caches.map_actions(vma, max(vma.start, start), min(vma.end, end))
        self.stale.clear()
        return Answer(value, tuple(actions))

    def mmap(self, file: OpenFile, address: int, length: int, prot: int, flags: int, offset: int) -> Answer:
        """mmap(2) of `file` at `address`, which the client has chosen (driver specification 9.3).

        `offset` may come as the signed off_t of the call: bit 63 makes it negative.
        """
        with self.host.fabric.lock, self.mmap_lock:
            if file.path_only:
                raise KernelError(errno.EBADF, "9.1", "O_PATH descriptor")
            actions = mapping.map_region(self, file, address, length, prot, flags, offset & (1 << 64) - 1)
            return self._answer(address, actions)

    def munmap(self, address: int, length: int) -> Answer:
        """munmap(2) (driver specification 9.5); ranges of no region are left to the client."""
        with self.host.fabric.lock, self.mmap_lock:
            self._forget_memory(address, address + length)
            return self._answer(0, mapping.unmap(self, address, length))

    def mprotect(self, address: int, length: int, prot: int) -> Answer:
        """mprotect(2) of a range with mappings of regions (9.4)."""
        with self.host.fabric.lock, self.mmap_lock:
            return vfs.mprotect(self, address, length, prot)

    def mremap(self, address: int, old: int, new: int, flags: int = 0, target: int = 0) -> Answer:
        """mremap(2) of a range with mappings of regions (9.4)."""
        with self.host.fabric.lock, self.mmap_lock:
            return vfs.mremap(self, address, old, new, flags, target)

    def madvise(self, address: int, length: int, advice: int) -> Answer:
        """madvise(2) of a range with mappings of regions (9.4)."""
        with self.host.fabric.lock, self.mmap_lock:
            return vfs.madvise(self, address, length, advice)

    def msync(self, address: int, length: int, flags: int) -> Answer:
        """msync(2) of a range with mappings of regions (9.2)."""
        with self.host.fabric.lock, self.mmap_lock:
            return vfs.msync(self, address, length, flags)

    def file_operation(self, file: OpenFile, operation: int, *arguments: int) -> Answer:
        """read, write, lseek, fsync, fallocate, ftruncate by `vfs.FileOperation` (2, 9.2)."""
        return vfs.file_operation(file, operation)

    def _forget_memory(self, start: int, end: int) -> None:
        """Own pages in [start, end) are gone."""
        self.memory.forget(start, end)
        for low, high in [key for key in self.exported if key[0] < end and start < key[1]]:
            del self.exported[low, high]

    def split(self, vma: Vma, address: int) -> Vma:
        """Cut a piece at `address`; returns the upper part. PMD regions are cut at PMD borders only."""
        if address % vma.region.unit:
            raise KernelError(errno.EINVAL, "9.5", f"a PMD region cannot be cut at {address:#x}")
        if len(self.vmas) >= self.host.max_map_count:
            raise KernelError(errno.ENOMEM, "9.4", "too many mappings")
        upper = vma.split(address)
        vma.region.mapping_count += 1
        self.vmas.add(upper)
        return upper

    def exit(self) -> None:
        """The process is gone, orderly or killed: its mappings close as in munmap."""
        host = self.host
        with host.fabric.lock, self.mmap_lock:
            for vma in list(self.vmas):
                mapping.close_piece(self, vma)
            self.exported.clear()
            if host.processes.get(self.pid) is self:
                del host.processes[self.pid]


def _may_open(mode: int, owner: tuple[int, int], uid: int, flags: int) -> bool:
    """Whether the VFS lets `uid` open a node of `mode` and `owner`."""
    want = {os.O_RDONLY: 4, os.O_WRONLY: 2}.get(flags & os.O_ACCMODE, 6)
    have = mode >> 6 if uid == owner[0] else mode
    return uid == 0 or not want & ~have & 7
