# SPDX-License-Identifier: Apache-2.0
"""The driver's commands as Python methods: typed values in, errors that explain themselves out.

Nothing here validates (device, region and mapping do) and nothing here remembers: one method, one call.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.driver import abi
from obmm.driver.abi import CacheOp, ExportFlag, ImportFlag, MemAccess, MemType
from obmm.driver.backend import Backend, fabric_hint
from obmm.driver.unremovable import is_unremovable, note_unremovable
from obmm.errors import DeviceNotFoundError, ObmmArgumentError, ObmmError, errno_name
from obmm.explanations import causes


@dataclass(frozen=True, slots=True)
class Exported:
    """What EXPORT answered.  `uba` and `tokenid` are secret."""

    mem_id: int
    uba: int = field(repr=False)
    tokenid: int = field(repr=False)


class Connection(Owner):
    """The system-call table of a backend, given back once: when closed, or when forgotten."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        # what native calls take is noted by themselves, and given back at last by a function in C: no interrupt cuts either
        self._node = node = ffi.new("struct obmm_node *")
        lib.obmm_node_init(node)
        # apart from the memory, which others name: a collector that ends them all begins with any of them
        self._closer = ffi.gc(node, lib.obmm_node_close)
        backend.connect(ffi.addressof(self._node, "sys"))
        self.name: str = ffi.string(self.sys.name).decode()
        self.root: str = ffi.string(self.sys.root).decode()

    @property
    def sys(self) -> Any:
        """``struct obmm_sys *``: the table that answers."""
        return self._node.sys

    @sys.setter
    def sys(self, table: Any) -> None:
        self._node.sys = table

    def close(self) -> None:
        """Close the control node, if it was opened, and forget the table.  Regions stay (driver specification 8)."""
        lib.obmm_node_close(self._node)


class Driver(Connection):
    """One open control node and its system-call table.

    Methods raise `ObmmError` with the driver's errno.  Calls that can block release the interpreter lock.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.direct: Any = lib.obmm_sys_broker_base(self.sys) if backend.broker else self.sys
        """The table behind a broker's, else the same."""
        code = -lib.obmm_node_open(self._node)
        if code in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
            why = str(ObmmError.refused("OPEN", code, path=abi.DEV_PATH).strerror)
            raise DeviceNotFoundError(code, why + fabric_hint(), operation="OPEN")
        if code:
            raise self._not_opened("OPEN", code, abi.DEV_PATH)

    @property
    def fd(self) -> int:
        """The control node's descriptor; -1 once closed."""
        return int(self._node.fd)

    def abandon(self) -> None:
        """In a forked child: close the inherited descriptor, leave the table alone (its lock may be held for ever)."""
        lib.obmm_node_abandon(self._node)

    # --- regions -----------------------------------------------------------------------------------------------------

    def export(
        self,
        sizes: dict[int, int],
        flags: ExportFlag,
        *,
        pxm_numa: int,
        deid: bytes,
        vendor_info: bytes,
        priv: bytes,
        owned: Any = None,
    ) -> Exported:
        """EXPORT (6.1): `sizes` maps a NUMA node to bytes.  The region is noted in `owned` (`new_owned`)."""
        command = ffi.new("struct obmm_cmd_export *")
        command.length = max(sizes) + 1
        for node, size in sizes.items():
            command.size[node] = size
        command.flags = flags
        command.pxm_numa = pxm_numa
        command.deid = list(deid)
        kept = _attach(command, "vendor_info", "vendor_len", vendor_info), _attach(command, "priv", "priv_len", priv)
        result = lib.obmm_owned_export(self._node, command, new_owned() if owned is None else owned)
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

    def export_user_memory(
        self,
        address: int,
        length: int,
        *,
        pid: int,
        pxm_numa: int,
        deid: bytes,
        vendor_info: bytes,
        priv: bytes,
        owned: Any = None,
    ) -> Exported:
        """EXPORT_PID (6.2): pins `length` bytes of hugetlb memory at `address` in process `pid` (0: this one)."""
        command = ffi.new("struct obmm_cmd_export_pid *")
        command.va = ffi.cast("void *", address)
        command.length = length
        command.pid = pid
        command.pxm_numa = pxm_numa
        command.deid = list(deid)
        kept = _attach(command, "vendor_info", "vendor_len", vendor_info), _attach(command, "priv", "priv_len", priv)
        result = lib.obmm_owned_export_useraddr(self._node, command, new_owned() if owned is None else owned)
        del kept
        if result < 0:
            raise ObmmError.refused("EXPORT_PID", -result, address=address, length=length, pid=pid, pxm_numa=pxm_numa)
        return Exported(command.mem_id, command.uba, command.tokenid)

    def unexport(self, mem_id: int) -> None:
        """UNEXPORT (6.3).  Refused when an earlier removal of the region ended with ENOTRECOVERABLE."""
        self.unexport_owned(new_owned(mem_id))

    def unexport_owned(self, owned: Any) -> None:
        """`unexport` of what is noted in `owned`, and the note; idempotent."""
        self._remove("UNEXPORT", lib.obmm_owned_unexport, owned)

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
        owned: Any = None,
    ) -> tuple[int, int]:
        """IMPORT (6.4) -> (mem_id, numa_id), noted in `owned`.  `address` is a physical address in a local UB window."""
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
        result = lib.obmm_owned_import(self._node, command, new_owned() if owned is None else owned)
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

    def unimport(self, mem_id: int) -> None:
        """UNIMPORT (6.5), as `unexport`.  EINTR is passed on: a signal may be meant to end a long removal."""
        self.unimport_owned(new_owned(mem_id))

    def unimport_owned(self, owned: Any) -> None:
        """`unimport` of what is noted in `owned`, and the note; idempotent."""
        self._remove("UNIMPORT", lib.obmm_owned_unimport, owned)

    def _remove(self, operation: str, call: Any, owned: Any) -> None:
        mem_id = owned.mem_id
        if is_unremovable(self.root, mem_id):
            raise ObmmArgumentError.because(
                operation,
                errno.ENOTRECOVERABLE,
                f"region {mem_id} must never be removed again: an earlier removal ended with ENOTRECOVERABLE, and a second "
                "one is known to crash hosts",
                "reboot this host when it suits; the region does no harm until then",
                "6.5",
            )
        result = call(self._node, owned)
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

    def open_region(self, mem_id: int, *, writable: bool, non_cacheable: bool, held: Any) -> int:
        """Open ``/dev/obmm_shmdev<mem_id>`` (9.1) into `held` -> descriptor, close-on-exec."""
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

    def map(self, held: Any, offset: int, length: int, prot: int, *, pmd: bool, at: int | None = None) -> int:
        """mmap (9.3) of the node in `held` -> address.  `at` puts it there with MAP_FIXED."""
        where = ffi.NULL if at is None else ffi.cast("void *", at)
        result = lib.obmm_held_map(self.sys, held, where, offset, length, prot, pmd)
        _check("MMAP", result, offset=offset, length=length, prot=prot, granularity="pmd" if pmd else "page")
        return int(ffi.cast("uintptr_t", held.base))

    def new_held(self) -> Any:
        """Room for what a mapping holds: node, addresses, guard.  Given back with its memory, if not before."""
        held = ffi.new("struct obmm_held *")
        lib.obmm_held_init(held)  # first: zeros would be descriptor 0
        end = partial(lib.obmm_held_end, self._node)
        end.__dict__["node"] = self._closer  # open for as long as something is held of it
        return ffi.gc(held, end)

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


def new_owned(mem_id: int = 0) -> Any:
    """Room for the note of a region that this process made."""
    return ffi.new("struct obmm_owned *", (mem_id,))


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
