# SPDX-License-Identifier: Apache-2.0
"""The driver's commands as Python methods: typed values in, errors that explain themselves out.

Nothing here validates (device, region and mapping do) and nothing here remembers: one method, one call.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import Any

from obmm import abi
from obmm._native import ffi, lib
from obmm.abi import CacheOp, ExportFlag, ImportFlag, MemAccess, MemType
from obmm.backend import Backend
from obmm.errors import DeviceNotFoundError, ObmmArgumentError, ObmmError, errno_name
from obmm.explanations import causes
from obmm.unremovable import is_unremovable, note_unremovable


@dataclass(frozen=True, slots=True)
class Exported:
    """What EXPORT answered.  `uba` and `tokenid` are secret."""

    mem_id: int
    uba: int = field(repr=False)
    tokenid: int = field(repr=False)


class Driver:
    """One open control node and its system-call table.

    Methods raise `ObmmError` with the driver's errno.  Calls that can block release the interpreter lock.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.sys: Any = backend.connect()
        self.direct: Any = lib.obmm_sys_broker_base(self.sys) if backend.broker else self.sys
        """The table behind a broker's, else the same."""
        self.name: str = ffi.string(self.sys.name).decode()
        self.root: str = ffi.string(self.sys.root).decode()
        self.fd: int = lib.obmm_rw_open(self.sys)
        if self.fd < 0:
            code = -self.fd
            self.sys.destroy(self.sys)
            if code in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
                raise DeviceNotFoundError(
                    code, str(ObmmError.refused("OPEN", code, path=abi.DEV_PATH).strerror), operation="OPEN"
                )
            raise self._not_opened("OPEN", code, abi.DEV_PATH)

    def close(self) -> None:
        """Close the control node.  Regions stay (driver specification 8)."""
        lib.obmm_rw_close(self.sys, self.fd)
        self.sys.destroy(self.sys)

    def abandon(self) -> None:
        """In a forked child: close the inherited descriptor, leave the table alone (its lock may be held for ever)."""
        lib.obmm_rw_close(self.sys, self.fd)

    # --- regions -----------------------------------------------------------------------------------------------------

    def export(
        self, sizes: dict[int, int], flags: ExportFlag, *, pxm_numa: int, deid: bytes, vendor_info: bytes, priv: bytes
    ) -> Exported:
        """EXPORT (6.1): `sizes` maps a NUMA node to bytes."""
        command = ffi.new("struct obmm_cmd_export *")
        command.length = max(sizes) + 1
        for node, size in sizes.items():
            command.size[node] = size
        command.flags = flags
        command.pxm_numa = pxm_numa
        command.deid = list(deid)
        kept = _attach(command, "vendor_info", "vendor_len", vendor_info), _attach(command, "priv", "priv_len", priv)
        try:
            result = lib.obmm_rw_export(self.sys, self.fd, command)
            del kept
            if result < 0:
                raise ObmmError.refused(
                    "EXPORT",
                    -result,
                    sizes=sizes,
                    flags=int(flags),
                    pxm_numa=pxm_numa,
                    vendor_len=len(vendor_info),
                    priv_len=len(priv),
                )
            return Exported(command.mem_id, command.uba, command.tokenid)
        except BaseException:  # an interrupt right after the call: nobody else will ever know the region
            self._undo(lib.obmm_rw_unexport, command.mem_id)
            raise

    def export_user_memory(
        self, address: int, length: int, *, pid: int, pxm_numa: int, deid: bytes, vendor_info: bytes, priv: bytes
    ) -> Exported:
        """EXPORT_PID (6.2): pins `length` bytes of hugetlb memory at `address` in process `pid` (0: this one)."""
        command = ffi.new("struct obmm_cmd_export_pid *")
        command.va = ffi.cast("void *", address)
        command.length = length
        command.pid = pid
        command.pxm_numa = pxm_numa
        command.deid = list(deid)
        kept = _attach(command, "vendor_info", "vendor_len", vendor_info), _attach(command, "priv", "priv_len", priv)
        try:
            result = lib.obmm_rw_export_useraddr(self.sys, self.fd, command)
            del kept
            if result < 0:
                raise ObmmError.refused(
                    "EXPORT_PID", -result, address=address, length=length, pid=pid, pxm_numa=pxm_numa
                )
            return Exported(command.mem_id, command.uba, command.tokenid)
        except BaseException:  # an interrupt right after the call: nobody else will ever know the region
            self._undo(lib.obmm_rw_unexport, command.mem_id)
            raise

    def unexport(self, mem_id: int) -> None:
        """UNEXPORT (6.3).  Refused when an earlier removal of the region ended with ENOTRECOVERABLE."""
        self._remove("UNEXPORT", lib.obmm_rw_unexport, mem_id)

    def import_(
        self,
        address: int,
        length: int,
        flags: ImportFlag,
        *,
        scna: int,
        dcna: int,
        seid: bytes,
        deid: bytes,
        tokenid: int,
        numa_id: int = -1,
        base_dist: int = 0,
        priv: bytes = b"",
    ) -> tuple[int, int]:
        """IMPORT (6.4) -> (mem_id, numa_id).  `address` is a physical address in a local UB window."""
        command = ffi.new("struct obmm_cmd_import *")
        command.flags = flags
        command.addr = address
        command.length = length
        command.tokenid = tokenid
        command.scna = scna
        command.dcna = dcna
        command.seid = list(seid)
        command.deid = list(deid)
        command.numa_id = numa_id
        command.base_dist = base_dist
        kept = _attach(command, "priv", "priv_len", priv)
        try:
            result = lib.obmm_rw_import(self.sys, self.fd, command)
            del kept
            _check(
                "IMPORT",
                result,
                address=address,
                length=length,
                flags=int(flags),
                scna=scna,
                dcna=dcna,
                base_dist=base_dist,
            )
            return command.mem_id, command.numa_id
        except BaseException:  # an interrupt right after the call: nobody else will ever know the region
            self._undo(lib.obmm_rw_unimport, command.mem_id)
            raise

    def unimport(self, mem_id: int) -> None:
        """UNIMPORT (6.5), as `unexport`.  EINTR is passed on: a signal may be meant to end a long removal."""
        self._remove("UNIMPORT", lib.obmm_rw_unimport, mem_id)

    def _undo(self, call: Any, mem_id: int) -> None:
        if mem_id:
            call(self.sys, self.fd, mem_id, 0)

    def _remove(self, operation: str, call: Any, mem_id: int) -> None:
        if is_unremovable(self.root, mem_id):
            raise ObmmArgumentError.because(
                operation,
                errno.ENOTRECOVERABLE,
                f"region {mem_id} must never be removed again: an earlier removal ended with ENOTRECOVERABLE, and a second "
                "one is known to crash hosts",
                "reboot this host when it suits; the region does no harm until then",
                "6.5",
            )
        result = call(self.sys, self.fd, mem_id, 0)
        if result == -errno.ENOTRECOVERABLE:
            note_unremovable(self.root, mem_id)
        _check(operation, result, mem_id=mem_id)

    def declare_preimport(
        self,
        address: int,
        length: int,
        *,
        scna: int,
        dcna: int,
        seid: bytes,
        deid: bytes,
        numa_id: int = -1,
        base_dist: int = 0,
    ) -> int:
        """DECLARE_PREIMPORT (6.6) -> numa_id."""
        command = _preimport(address, length)
        command.scna = scna
        command.dcna = dcna
        command.seid = list(seid)
        command.deid = list(deid)
        command.numa_id = numa_id
        command.base_dist = base_dist
        result = lib.obmm_rw_declare_preimport(self.sys, self.fd, command)
        _check("DECLARE_PREIMPORT", result, address=address, length=length, scna=scna, base_dist=base_dist)
        return int(command.numa_id)

    def undeclare_preimport(self, address: int, length: int) -> None:
        """UNDECLARE_PREIMPORT (6.7)."""
        command = _preimport(address, length)
        result = lib.obmm_rw_undeclare_preimport(self.sys, self.fd, command)
        _check("UNDECLARE_PREIMPORT", result, address=address, length=length)

    def query_pa(self, mem_id: int, offset: int) -> int:
        """ADDR_QUERY by id and offset (6.8) -> physical address."""
        pa = ffi.new("uint64_t *")
        _check("ADDR_QUERY", lib.obmm_rw_query_pa(self.sys, self.fd, mem_id, offset, pa), mem_id=mem_id, offset=offset)
        return int(pa[0])

    def query_id(self, pa: int) -> tuple[int, int]:
        """ADDR_QUERY by physical address (6.8) -> (mem_id, offset)."""
        found = ffi.new("uint64_t[2]")
        _check("ADDR_QUERY", lib.obmm_rw_query_id(self.sys, self.fd, pa, found, found + 1), pa=pa)
        return int(found[0]), int(found[1])

    # --- region nodes ------------------------------------------------------------------------------------------------

    def open_region(self, mem_id: int, *, writable: bool, non_cacheable: bool, held: Any = None) -> int:
        """Open ``/dev/obmm_shmdev<mem_id>`` (9.1) into `held` -> descriptor, close-on-exec."""
        held = new_held() if held is None else held
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_SYNC if non_cacheable else 0)
        result = lib.obmm_held_open(self.sys, held, mem_id, flags)
        if result < 0:
            path = f"{abi.SHMDEV_PREFIX}{mem_id}"
            raise self._not_opened("SHMDEV_OPEN", -result, path, cache="nc" if non_cacheable else "cc")
        return int(held.fd)

    def _not_opened(self, operation: str, code: int, path: str, **fields: object) -> ObmmError:
        if self.backend.broker is not None and causes("BROKER_OPEN", errno_name(code)):
            return ObmmError.refused("BROKER_OPEN", code, path=path, broker=self.backend.broker, **fields)
        facts = _node_facts(self.root + path) if code in (errno.EACCES, errno.EPERM) else {}
        return ObmmError.refused(operation, code, path=path, **fields, **facts)

    def close_region(self, fd: int) -> None:
        """Close a region's descriptor."""
        lib.obmm_rw_close(self.sys, fd)

    def map(self, held: Any, offset: int, length: int, prot: int, *, pmd: bool, at: int | None = None) -> int:
        """mmap (9.3) of the node in `held` -> address.  `at` puts it there with MAP_FIXED."""
        where = ffi.NULL if at is None else ffi.cast("void *", at)
        result = lib.obmm_held_map(self.sys, held, where, offset, length, prot, pmd)
        _check("MMAP", result, offset=offset, length=length, prot=prot, granularity="pmd" if pmd else "page")
        return int(ffi.cast("uintptr_t", held.base))

    def release(self, held: Any) -> None:
        """munmap (9.5), forget the guard, close the node: what `held` has, each once."""
        _check("MUNMAP", lib.obmm_held_release(self.sys, held), length=held.length)

    def seal(self, held: Any) -> None:
        """As `release`, but inaccessible pages take the mapping's place in one step: the addresses never belong to
        anybody else until the next `release`."""
        _check("MUNMAP", lib.obmm_held_seal(self.sys, held), length=held.length)

    def update_range(self, fd: int, start: int, end: int, access: MemAccess, op: CacheOp) -> None:
        """UPDATE_RANGE (9.6) of normal memory over the addresses [start, end)."""
        state = MemType.NORMAL | access
        result = lib.obmm_rw_set_ownership(self.sys, fd, start, end, state, op)
        _check("UPDATE_RANGE", result, bytes=end - start, access=access.name, cache_op=op.name)


def new_held() -> Any:
    """Room for what a mapping holds: node, addresses, guard."""
    held = ffi.new("struct obmm_held *")
    lib.obmm_held_init(held)
    return held


def _check(operation: str, result: int, **fields: object) -> None:
    if result < 0:
        raise ObmmError.refused(operation, -result, **fields)


def _attach(command: Any, pointer: str, length: str, data: bytes) -> Any:
    """Point `command` at `data`; the result must live until the call is over."""
    if not data:
        return None
    kept = ffi.from_buffer(data)
    setattr(command, pointer, kept)
    setattr(command, length, len(data))
    return kept


def _preimport(address: int, length: int) -> Any:
    command = ffi.new("struct obmm_cmd_preimport *")
    command.pa = address
    command.length = length
    command.numa_id = -1
    return command


def _node_facts(path: str) -> dict[str, object]:
    """Owner, mode and our groups: what someone needs who may not open `path`."""
    try:
        node = os.stat(path)
    except OSError:
        return {}
    return {
        "owner": f"{node.st_uid}:{node.st_gid}",
        "mode": f"{node.st_mode & 0o7777:04o}",
        "we": f"{os.geteuid()}:{','.join(map(str, sorted({os.getegid(), *os.getgroups()})))}",
    }
