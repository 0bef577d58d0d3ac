# SPDX-License-Identifier: Apache-2.0
"""The system-call table of an emulated node, raw: what a test passes is what the server gets."""

from __future__ import annotations

import os
import struct
from typing import Any

from obmm._native import ffi, lib
from obmm.emulator import Fabric

MIB = 1 << 20
VENDOR = struct.pack("<QQB7x", 0, 1, 1)
CNA = {"a": 0x40A, "b": 0x50A, "c": 0x60A}
EID = {name: (0x12 + i).to_bytes(16, "little") for i, name in enumerate(CNA)}


def checked(result: int) -> int:
    """`result`, or OSError for a negative errno."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


class Node:
    """One process's view of one node. Closing it gives its descriptors back and destroys its table."""

    def __init__(self, fabric: Fabric | str, name: str = "a") -> None:
        out = ffi.new("struct obmm_sys **")
        path = fabric if isinstance(fabric, str) else fabric.socket
        checked(lib.obmm_sys_emulator(path.encode(), name.encode(), out))
        self.sys = out[0]
        self.name = name
        self.control = self.open()

    def open(self) -> int:
        return checked(lib.obmm_rw_open(self.sys))

    def sys_open(self, path: str, flags: int) -> int:
        """The table's own open: obmm_rw_* always add O_CLOEXEC."""
        fd = int(self.sys.open(self.sys, path.encode(), flags))
        if fd < 0:
            raise OSError(ffi.errno, os.strerror(ffi.errno))
        return fd

    def export(self, size: int = 2 * MIB, flags: int = 1) -> Any:
        """EXPORT on NUMA node 0; the command struct with its outputs."""
        command = ffi.new("struct obmm_cmd_export *")
        vendor = ffi.new("uint8_t[]", VENDOR)
        command.length, command.size[0], command.flags = 1, size, flags
        command.vendor_len, command.vendor_info = len(VENDOR), vendor
        checked(lib.obmm_rw_export(self.sys, self.control, command))
        return command

    def unexport(self, mem_id: int) -> None:
        checked(lib.obmm_rw_unexport(self.sys, self.control, mem_id, 0))

    def program(self, owner: str, exported: Any, length: int, cache: int = 1) -> int:
        """A window of this node onto `exported` of the node `owner`."""
        window = ffi.new("struct obmm_emulator_window *")
        window.owner_cna, window.owner_eid = CNA[owner], EID[owner]
        window.tokenid, window.uba, window.length, window.cache = exported.tokenid, exported.uba, length, cache
        pa = ffi.new("uint64_t *")
        checked(lib.obmm_emulator_program(self.sys, window, pa))
        return int(pa[0])

    def import_(self, pa: int, length: int, owner: str) -> int:
        """IMPORT for mmap; the mem_id."""
        command = ffi.new("struct obmm_cmd_import *")
        command.addr, command.length, command.flags, command.numa_id = pa, length, 1, -1
        command.scna, command.dcna = CNA[self.name], CNA[owner]
        command.seid, command.deid = EID[self.name], EID[owner]
        checked(lib.obmm_rw_import(self.sys, self.control, command))
        return int(command.mem_id)

    def unimport(self, mem_id: int) -> None:
        checked(lib.obmm_rw_unimport(self.sys, self.control, mem_id, 0))

    def query(self, mem_id: int, offset: int = 0) -> int:
        """ADDR_QUERY by id: the physical address."""
        pa = ffi.new("uint64_t *")
        checked(lib.obmm_rw_query_pa(self.sys, self.control, mem_id, offset, pa))
        return int(pa[0])

    def open_region(self, mem_id: int, flags: int = os.O_RDWR) -> int:
        return checked(lib.obmm_rw_shmdev_open(self.sys, mem_id, flags))

    def ioctl(self, fd: int, request: int, argument: Any) -> int:
        return checked(lib.obmm_rw_ioctl(self.sys, fd, request, ffi.cast("void *", argument)))

    def map(self, fd: int, length: int, prot: int = 3, offset: int = 0, block: int = 0) -> int:
        """Map shared; the address."""
        out = ffi.new("void **")
        checked(lib.obmm_rw_map(self.sys, fd, ffi.NULL, offset, length, prot, block, out))
        return int(ffi.cast("uintptr_t", out[0]))

    def unmap(self, address: int, length: int) -> None:
        checked(lib.obmm_rw_unmap(self.sys, ffi.cast("void *", address), length))

    def own(self, fd: int, start: int, length: int, state: int, operation: int = 4) -> None:
        checked(lib.obmm_rw_set_ownership(self.sys, fd, start, start + length, state, operation))

    def close(self) -> None:
        if self.control >= 0:
            os.close(self.control)
            self.control = -1
            self.sys.destroy(self.sys)


def memory(address: int, length: int) -> Any:
    """The bytes at `address`, read and written in place."""
    return ffi.buffer(ffi.cast("char *", address), length)
