# SPDX-License-Identifier: Apache-2.0
"""Clients of the driver model inside the test: real memory, no server.

A `Client` does what `native/emulator/client.c` does: it maps, protects and unmaps what the model says, in
this very process, so that loads, stores and signals are real.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import struct
from collections.abc import Callable

from obmm.emulator.model import Answer, Fabric, Host, KernelError, Map, OpenFile, Protect, Unmap, structs
from obmm.emulator.topology import Topology

PAGE, PMD, MIB = 4096, 2 << 20, 1 << 20
N, R, X, W = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_EXEC, mmap.PROT_READ | mmap.PROT_WRITE
STATES = {N: 0xD, R: 0x1, X: 0x5, W: 0x9}
NONE, INVAL, WB_INVAL, WB_ONLY, INFER = range(5)
VENDOR = struct.pack("<IxxxxQB7x", 0, 1, 1)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_int64,)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FIXED = 0x10


def fabric(hosts: int = 2, **kind: bool | int) -> Fabric:
    return Fabric(Topology.default(hosts, **kind))


class Buffers:
    """User memory: buffers at invented addresses; anything else is EFAULT."""

    def __init__(self) -> None:
        self._buffers: dict[int, bytes] = {}
        self.real: set[int] = set()
        """Addresses of this process that may be read."""

    def put(self, data: bytes) -> int:
        address = (len(self._buffers) + 1) << 20
        self._buffers[address] = data
        return address

    def get(self, address: int) -> bytes:
        return self._buffers[address]

    def read(self, address: int, size: int) -> bytes:
        data = self._buffers.get(address, b"")
        if address in self.real:
            return ctypes.string_at(address, size)
        if len(data) < size:
            raise KernelError(14, "D3")
        return data[:size]

    def write(self, address: int, data: bytes) -> None:
        if address not in self._buffers:
            raise KernelError(14, "D5")
        self._buffers[address] = data


class Mapped:
    """A mapping of a client."""

    def __init__(self, client: Client, file: OpenFile, address: int, length: int) -> None:
        self.client, self.file, self.address, self.length = client, file, address, length

    def load(self, offset: int = 0) -> int:
        return ctypes.c_uint64.from_address(self.address + offset).value

    def store(self, offset: int, value: int) -> None:
        ctypes.c_uint64.from_address(self.address + offset).value = value

    def signal(self, offset: int = 0, store: bool = False) -> int:
        """The signal that an access at `offset` raises in a child that shares this memory, 0 for none."""
        child = os.fork()
        if not child:
            faulthandler.disable()
            if store:
                self.store(offset, 1)
            else:
                self.load(offset)
            os._exit(0)
        return os.WTERMSIG(os.waitpid(child, 0)[1])

    def update(self, rights: int, operation: int = INFER, start: int = 0, end: int | None = None) -> None:
        end = self.length if end is None else end
        raw = struct.pack("<QQBB6x", self.address + start, self.address + end, STATES[rights], operation)
        self.client.ioctl(self.file, structs.SHMDEV_UPDATE_RANGE, raw)

    def unmap(self, start: int = 0, end: int | None = None) -> None:
        end = self.length if end is None else end
        self.client.munmap(self.address + start, end - start)

    def detach(self) -> None:
        """The process is gone: its address space too."""
        _libc.munmap(self.address, self.length)


class Client:
    """One process of a host."""

    _pids = iter(range(1 << 22, 1 << 23))

    def __init__(self, host: Host) -> None:
        self.host = host
        self.process = host.process(next(self._pids))
        self.memory = Buffers()
        self.control = self.process.open("/dev/obmm", os.O_RDWR)

    def ioctl(self, file: OpenFile, request: int, raw: bytes) -> bytes:
        address = self.memory.put(raw)
        self._apply(self.process.ioctl(file, request, address, self.memory))
        return self.memory.get(address)

    def export(self, size: int = PMD, flags: int = 1, **fields: int) -> structs.SimpleNamespace:
        raw = struct.pack("<Q", size).ljust(structs.EXPORT.size, b"\0")
        vendor = self.memory.put(VENDOR)
        fields = {"length": 1, "flags": flags, "vendor_len": len(VENDOR), "vendor_info": vendor} | fields
        raw = self.ioctl(self.control, structs.CMD_EXPORT, structs.EXPORT.store(raw, **fields))
        return structs.EXPORT.unpack(raw)

    def import_(self, address: int, length: int = PMD, flags: int = 1, **fields: int) -> structs.SimpleNamespace:
        scna = self.host.spec.controllers[0].cna
        given = {"addr": address, "length": length, "flags": flags, "scna": scna, "numa_id": -1} | fields
        raw = structs.IMPORT.store(bytes(structs.IMPORT.size), **given)
        return structs.IMPORT.unpack(self.ioctl(self.control, structs.CMD_IMPORT, raw))

    def remove(self, request: int, mem_id: int) -> None:
        self.ioctl(self.control, request, struct.pack("<QQ", mem_id, 0))

    def unexport(self, mem_id: int) -> None:
        self.remove(structs.CMD_UNEXPORT, mem_id)

    def unimport(self, mem_id: int) -> None:
        self.remove(structs.CMD_UNIMPORT, mem_id)

    def query(self, mem_id: int, offset: int = 0) -> int:
        raw = structs.ADDR_QUERY.store(bytes(32), key_type=1, mem_id=mem_id, offset=offset)
        return structs.ADDR_QUERY.unpack(self.ioctl(self.control, structs.CMD_ADDR_QUERY, raw)).pa

    def open(self, mem_id: int, flags: int = os.O_RDWR) -> OpenFile:
        return self.process.open(f"/dev/obmm_shmdev{mem_id}", flags)

    def map(self, mem_id: int, rights: int = W, length: int = PMD, offset: int = 0, flags: int = os.O_RDWR) -> Mapped:
        """Open, map and close the descriptor: the mapping holds the file."""
        file = self.open(mem_id, flags)
        try:
            return self.map_file(file, rights, length, offset)
        finally:
            file.release()

    def map_file(self, file: OpenFile, rights: int = W, length: int = PMD, offset: int = 0) -> Mapped:
        room = _libc.mmap(None, length + PMD, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        address = -(-room // PMD) * PMD
        self._apply(self.process.mmap(file, address, length, rights, mmap.MAP_SHARED, offset))
        return Mapped(self, file, address, length)

    def area(self, length: int) -> Mapped:
        """Memory of the process's own, at a PMD border."""
        room = _libc.mmap(None, length + PMD, W, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        address = -(-room // PMD) * PMD
        self.memory.real.add(address)
        return Mapped(self, self.control, address, length)

    def munmap(self, address: int, length: int) -> None:
        self._apply(self.process.munmap(address, length))

    def exit(self) -> None:
        self.process.exit()
        self.control.release()

    @staticmethod
    def _apply(answer: Answer) -> None:
        for action in answer.actions:
            if isinstance(action, Map):
                where = action.backing
                flags = mmap.MAP_SHARED | _FIXED
                got = _libc.mmap(action.address, action.length, action.prot, flags, where.fd, where.offset)
                assert got == action.address, os.strerror(ctypes.get_errno())
            elif isinstance(action, Protect):
                assert not _libc.mprotect(action.address, action.length, action.prot)
            elif isinstance(action, Unmap):
                assert not _libc.munmap(action.address, action.length)


def reach(exporter: Client, importer: Client, size: int = PMD, kind: str = "CC") -> tuple[int, int]:
    """Export on one host, program the other's decoder, import there: both mem_ids."""
    export = exporter.export(size)
    window = importer.host.program(exporter.host.spec.controllers[0].cna, export.tokenid, export.uba, size, kind)
    return export.mem_id, importer.import_(window, size).mem_id


def refusal(call: Callable[[], object]) -> KernelError:
    """The error that `call` raises."""
    try:
        call()
    except KernelError as error:
        return error
    raise AssertionError("the call was not refused")
