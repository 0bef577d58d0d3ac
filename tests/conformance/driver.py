# SPDX-License-Identifier: Apache-2.0
"""A process that talks to the driver, for the rule tests: every call is made and its answer kept, none raises."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from .replay.port import Port, Process
from .replay.transcript import number

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE, PMD, BLOCK = 4 * KIB, 2 * MIB, 128 * MIB
BIT63 = 1 << 63

# the recorded machine (driver transcript, header): topology A, and what B adds
CNA, CNA_B = 0x40A, 0x50B
CC, CC_END = 0xA000_0000, 0xC000_0000
CC_NEXT = 0xC000_0000
NC = 0xD000_0000
CC_B, NC_B = 0xE000_0000, 0xE800_0000
HOLE = 0x50_0000_0000

ALLOW_MMAP, FAST = 1, 2
IMPORT_MMAP, PREIMPORT, NUMA_REMOTE = 1, 2, 4

READ, EXEC, WRITE, NONE = 0x1, 0x5, 0x9, 0xD
NO_FLUSH, INVAL, WB_INVAL, WB_ONLY, INFER = 0, 1, 2, 3, 4


def vendor(ummu: int = 0, on_chip: int = 1, mask: int | None = None) -> str:
    """24 bytes of vendor_info, version 1, as hex (driver specification 18)."""
    chosen = 1 << ummu if mask is None else mask
    return (bytes(8) + chosen.to_bytes(8, "little") + bytes([on_chip]) + bytes(7)).hex()


@dataclass(frozen=True)
class Reply:
    """One answer. `errno` None = success; `flush` what the cache engine was asked: (op, offset, length)."""

    errno: str | None = None
    out: dict[str, Any] = field(default_factory=dict)
    value: int | None = None
    signal: str | None = None
    code: str | None = None
    flush: tuple[tuple[Any, ...], ...] = ()
    numa: tuple[dict[str, Any], ...] = ()
    handle: str = ""

    @property
    def ok(self) -> bool:
        return self.errno is None and self.signal is None

    def __getattr__(self, name: str) -> Any:
        """Outputs by their field name: ``reply.mem_id``."""
        try:
            return self.out[name]
        except KeyError:
            raise AttributeError(f"{name}: not in {self.out} (errno {self.errno})") from None


def _joined(flushes: list[dict[str, Any]]) -> tuple[tuple[Any, ...], ...]:
    """(op, offset or address, length) and ("DRAIN", scna); adjacent pieces of one operation are joined."""
    found: list[tuple[Any, ...]] = []
    for entry in flushes:
        if entry["op"] == "DRAIN":
            found.append(("DRAIN", entry["scna"]))
            continue
        place = entry.get("offset", entry.get("pa", 0))
        last = found[-1] if found else None
        if last and len(last) == 3 and last[0] == entry["op"] and last[1] + last[2] == place:
            found[-1] = (last[0], last[1], last[2] + entry["length"])
        else:
            found.append((entry["op"], place, entry["length"]))
    return tuple(found)


class Driver:
    """One process's calls. Arguments that a test does not name are those of a call that succeeds."""

    def __init__(self, port: Port, process: Process) -> None:
        self._port = port
        self.process = process
        self._names = itertools.count()

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, op: str, handle: str = "", timeout: float | None = None, **given: Any) -> Reply:
        """Any operation of the transcript."""
        self._port.account()
        raw = self.process.perform(op, given, timeout)
        raw = self._port.augment(self.process, op, given, raw)
        if "failure" in raw or "hang" in raw:
            raise AssertionError(f"{op} {given}: {raw}")
        if raw.get("copied_back_on_failure"):
            raise AssertionError(f"{op} {given}: the caller's struct changed although the call failed")
        account = self._port.account()
        return Reply(
            raw.get("errno"),
            raw.get("out", {}),
            raw.get("value"),
            raw.get("signal"),
            raw.get("si_code"),
            _joined(account.flush),
            tuple(account.numa_calls),
            handle,
        )

    def flushes(self) -> tuple[tuple[Any, ...], ...]:
        """What the cache engine was asked since the last call."""
        return _joined(self._port.account().flush)

    # commands

    def ioctl(self, name: str, *, fd: str | None = None, ptr: str | None = None, **args: Any) -> Reply:
        given: dict[str, Any] = {"args": {key: value for key, value in args.items() if value is not None}}
        if fd is not None:
            given["fd"] = fd
        if ptr is not None:
            given["ptr_mode"] = ptr
        return self.do(f"ioctl {name}", **given)

    def raw(self, request: int, *, fd: str | None = None, ptr: str | None = None) -> Reply:
        given: dict[str, Any] = {"args": {}, "nr": request}
        if fd is not None:
            given["fd"] = fd
        if ptr is not None:
            given["ptr_mode"] = ptr
        return self.do(f"ioctl {request:#x}", **given)

    def export(self, size: int | list[int] = PMD, **changed: Any) -> Reply:
        sizes = [size] if isinstance(size, int) else size
        args: dict[str, Any] = {
            "size": sizes,
            "length": len(sizes),
            "flags": ALLOW_MMAP,
            "vendor_len": 24,
            "vendor_info": vendor(),
        }
        return self.ioctl("EXPORT", **args | changed)

    def export_pid(self, mapping: str | None = None, length: int = PMD, **changed: Any) -> Reply:
        args: dict[str, Any] = {"map": mapping, "length": length, "vendor_len": 24, "vendor_info": vendor()}
        return self.ioctl("EXPORT_PID", **args | changed)

    def import_(self, addr: int = CC, length: int = PMD, flags: int = IMPORT_MMAP, **changed: Any) -> Reply:
        args: dict[str, Any] = {
            "addr": addr,
            "length": length,
            "flags": flags,
            "scna": CNA,
            "dcna": 0x77,
            "tokenid": 5,
            "numa_id": -1,
            "seid": 0x12,
            "deid": 0x34,
        }
        return self.ioctl("IMPORT", **args | changed)

    def import_numa(self, addr: int = CC, length: int = BLOCK, **changed: Any) -> Reply:
        return self.import_(addr, length, NUMA_REMOTE, **changed)

    def import_preimport(self, addr: int = CC, length: int = BLOCK, **changed: Any) -> Reply:
        return self.import_(addr, length, NUMA_REMOTE | PREIMPORT, **changed)

    def unexport(self, mem_id: int, flags: int = 0) -> Reply:
        return self.ioctl("UNEXPORT", mem_id=mem_id, flags=flags)

    def unimport(self, mem_id: int, flags: int = 0) -> Reply:
        return self.ioctl("UNIMPORT", mem_id=mem_id, flags=flags)

    def declare(self, pa: int = CC, length: int = BLOCK, **changed: Any) -> Reply:
        args: dict[str, Any] = {
            "pa": pa,
            "length": length,
            "scna": CNA,
            "dcna": 0x77,
            "numa_id": -1,
            "seid": 0x12,
            "deid": 0x34,
        }
        return self.ioctl("DECLARE_PREIMPORT", **args | changed)

    def undeclare(self, pa: int = CC, length: int = BLOCK, **changed: Any) -> Reply:
        return self.ioctl("UNDECLARE_PREIMPORT", **{"pa": pa, "length": length} | changed)

    def pa_of(self, mem_id: int, offset: int = 0) -> Reply:
        return self.ioctl("ADDR_QUERY", key_type=1, mem_id=mem_id, offset=offset)

    def id_of(self, pa: int) -> Reply:
        return self.ioctl("ADDR_QUERY", key_type=0, pa=pa)

    # descriptors and mappings

    def open(self, mem_id: int | str, flags: str = "O_RDWR") -> Reply:
        path = mem_id if isinstance(mem_id, str) else f"/dev/obmm_shmdev{mem_id}"
        handle = f"f{next(self._names)}"
        return self.do("open", handle, path=path, flags=flags, fd=handle)

    def close(self, fd: str) -> Reply:
        return self.do("close", fd=fd)

    def mmap(
        self,
        fd: str,
        length: int = PMD,
        prot: str = "RW",
        offset: int = 0,
        flags: str = "SHARED",
        at: tuple[str, int] | None = None,
    ) -> Reply:
        handle = f"m{next(self._names)}"
        given: dict[str, Any] = {"fd": fd, "length": length, "prot": prot, "offset": offset, "flags": flags}
        if at is not None:
            given["at"] = list(at)
        return self.do("mmap", handle, map=handle, **given)

    def munmap(self, mapping: str, off: int = 0, length: int | None = None) -> Reply:
        given: dict[str, Any] = {"map": mapping, "off": off}
        if length is not None:
            given["length"] = length
        return self.do("munmap", **given)

    def reserve(self, length: int) -> str:
        handle = f"r{next(self._names)}"
        assert self.do("reserve", map=handle, length=length).ok
        return handle

    def hugemap(self, length: int = PMD, **changed: Any) -> str:
        handle = f"h{next(self._names)}"
        assert self.do("hugemap", map=handle, length=length, **changed).ok
        return handle

    def own(
        self, fd: str, mapping: str, state: int, ops: int = INFER, off: int = 0, length: int | None = None
    ) -> Reply:
        args: dict[str, Any] = {"map": mapping, "off": off, "len": length, "mem_state": state, "cache_ops": ops}
        return self.ioctl("UPDATE_RANGE", fd=fd, **args)

    def load(self, mapping: str, off: int = 0, width: int = 8) -> Reply:
        return self.do("load", map=mapping, off=off, width=width)

    def store(self, mapping: str, off: int = 0, value: int = 1, width: int = 8) -> Reply:
        return self.do("store", map=mapping, off=off, value=value, width=width)

    def vmas(self, mapping: str) -> list[tuple[int, int, str]]:
        """(offset, length, rwx letters) of the pieces of a mapping."""
        pieces = self.do("maps", map=mapping).out["vmas"]
        return [(number(piece["off"]), number(piece["len"]), piece["perm"][:3]) for piece in pieces]

    # files

    def text(self, path: str) -> str:
        reply = self.do("readfile", path=path)
        assert reply.ok, f"{path}: {reply.errno}"
        return str(reply.out["text"])

    def names(self, path: str) -> list[str]:
        reply = self.do("listdir", path=path)
        assert reply.ok, f"{path}: {reply.errno}"
        return list(reply.out["names"])

    # shortcuts

    def exported(self, size: int | list[int] = PMD, flags: str = "O_RDWR", **changed: Any) -> tuple[int, str]:
        """An export with an open descriptor: (mem_id, fd)."""
        return self._opened(self.export(size, **changed), flags)

    def imported(self, addr: int = CC, length: int = PMD, flags: str = "O_RDWR", **changed: Any) -> tuple[int, str]:
        """An import with an open descriptor: (mem_id, fd)."""
        return self._opened(self.import_(addr, length, **changed), flags)

    def _opened(self, created: Reply, flags: str) -> tuple[int, str]:
        assert created.ok, created
        opened = self.open(created.mem_id, flags)
        assert opened.ok, opened
        return created.mem_id, opened.handle

    def mapped(self, fd: str, length: int = PMD, prot: str = "RW", offset: int = 0, **changed: Any) -> str:
        """A mapping that must succeed."""
        reply = self.mmap(fd, length, prot, offset, **changed)
        assert reply.ok, reply
        return reply.handle
