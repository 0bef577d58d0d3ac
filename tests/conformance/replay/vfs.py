# SPDX-License-Identifier: Apache-2.0
"""Steps that are the virtual file system's or the memory manager's rather than the driver's.

They go through libc.  On the emulator that means through its preload library,
except for files below /sys, /proc and /dev, which have a path of their own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import stat as st
import struct
from typing import TYPE_CHECKING, Any

from .system import flag_bits, open_flags, protection
from .transcript import number

if TYPE_CHECKING:
    from .agent import Agent

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = ctypes.c_void_p

_MADVICE = {
    "NORMAL": 0,
    "RANDOM": 1,
    "SEQUENTIAL": 2,
    "WILLNEED": 3,
    "DONTNEED": 4,
    "FREE": 8,
    "REMOVE": 9,
    "DONTFORK": 10,
    "DOFORK": 11,
    "MERGEABLE": 12,
    "UNMERGEABLE": 13,
    "HUGEPAGE": 14,
    "NOHUGEPAGE": 15,
    "DONTDUMP": 16,
    "DODUMP": 17,
    "WIPEONFORK": 18,
    "KEEPONFORK": 19,
    "COLD": 20,
    "PAGEOUT": 21,
    "POPULATE_READ": 22,
    "POPULATE_WRITE": 23,
    "DONTNEED_LOCKED": 24,
    "COLLAPSE": 25,
    "HWPOISON": 100,
    "SOFT_OFFLINE": 101,
}
_MSYNC = {"ASYNC": 1, "INVALIDATE": 2, "SYNC": 4}
_MREMAP = {"MAYMOVE": 1, "FIXED": 2, "DONTUNMAP": 4}
_FALLOCATE = {"KEEP_SIZE": 1, "PUNCH_HOLE": 2, "COLLAPSE_RANGE": 8, "ZERO_RANGE": 16, "INSERT_RANGE": 32}
_WHENCE = {"SEEK_SET": 0, "SEEK_CUR": 1, "SEEK_END": 2, "SEEK_DATA": 3, "SEEK_HOLE": 4}
#: What a step moves or looks at, at most: a buffer for any length that a case names would be no buffer.
_MOST = 1 << 20

Result = dict[str, Any]


def _checked(value: int) -> int:
    if value == -1 or value is None:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return value


def _size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


# files


def readfile(agent: Agent, given: Result) -> Result:
    fd = os.open(agent.system.path(given["path"]), os.O_RDONLY)
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
    finally:
        os.close(fd)
    if given.get("binary"):
        return {"ret": 0, "out": {"length": len(data), "hex_stripped": data.rstrip(b"\0").hex()}}
    return {"ret": 0, "out": {"text": data.decode()}}


def writefile(agent: Agent, given: Result) -> Result:
    if given["path"].startswith("/proc/sys/") and not agent.system.owns_machine:
        return {"ret": 0}
    fd = os.open(agent.system.path(given["path"]), os.O_WRONLY)
    try:
        os.write(fd, given["text"].encode())
    finally:
        os.close(fd)
    return {"ret": 0}


def listdir(agent: Agent, given: Result) -> Result:
    return {"ret": 0, "out": {"names": sorted(os.listdir(agent.system.path(given["path"])))}}


def stat(agent: Agent, given: Result) -> Result:
    return {"ret": 0, "out": _status(os.stat(agent.system.path(given["path"])))}


def _status(found: os.stat_result) -> Result:
    kinds = ((st.S_ISCHR, "char"), (st.S_ISDIR, "dir"), (st.S_ISREG, "file"), (st.S_ISLNK, "link"))
    out: Result = {
        "mode": f"0o{st.S_IMODE(found.st_mode):o}",
        "uid": found.st_uid,
        "gid": found.st_gid,
        "size": found.st_size,
        "kind": next(name for test, name in kinds if test(found.st_mode)),
    }
    if st.S_ISCHR(found.st_mode):
        out["rdev_minor"] = os.minor(found.st_rdev)
    return out


def fstat(agent: Agent, given: Result) -> Result:
    found = os.fstat(agent.files[given["fd"]])
    with open(agent.system.path("/proc/devices"), encoding="ascii") as lines:
        majors = [line.split()[0] for line in lines if line.split()[1:] == ["OBMM_SHMDEV"]]
    status = _status(found)
    kind = status.pop("kind")
    return {
        "ret": 0,
        "out": {
            "char_device": kind == "char",
            "major_is_OBMM_SHMDEV": str(os.major(found.st_rdev)) in majors,
            **status,
        },
    }


def readlink(agent: Agent, given: Result) -> Result:
    return {"ret": 0, "out": {"target": os.readlink(agent.system.path(given["path"]))}}


def chmod(agent: Agent, given: Result) -> Result:
    os.chmod(agent.system.path(given["path"]), int(str(given["mode"]), 8))
    return {"ret": 0}


def chown(agent: Agent, given: Result) -> Result:
    os.chown(agent.system.path(given["path"]), given["uid"], given["gid"])
    return {"ret": 0}


# descriptors


def _count(given: Result, default: int = 8) -> int:
    return min(number(given.get("n", default)), _MOST)


def read(agent: Agent, given: Result) -> Result:
    return {"ret": len(os.read(agent.files[given["fd"]], _count(given)))}


def pread(agent: Agent, given: Result) -> Result:
    return {"ret": len(os.pread(agent.files[given["fd"]], _count(given), number(given.get("offset", 0))))}


def readv(agent: Agent, given: Result) -> Result:
    return {"ret": os.readv(agent.files[given["fd"]], [bytearray(_count(given))])}


def write(agent: Agent, given: Result) -> Result:
    return {"ret": os.write(agent.files[given["fd"]], bytes(_count(given)))}


def pwrite(agent: Agent, given: Result) -> Result:
    return {"ret": os.pwrite(agent.files[given["fd"]], bytes(_count(given)), number(given.get("offset", 0)))}


def writev(agent: Agent, given: Result) -> Result:
    return {"ret": os.writev(agent.files[given["fd"]], [bytes(_count(given))])}


def lseek(agent: Agent, given: Result) -> Result:
    fd = agent.files[given["fd"]]
    return {"ret": os.lseek(fd, number(given.get("offset", 0)), flag_bits(given.get("whence", 0), _WHENCE))}


def fsync(agent: Agent, given: Result) -> Result:
    os.fsync(agent.files[given["fd"]])
    return {"ret": 0}


def fdatasync(agent: Agent, given: Result) -> Result:
    os.fdatasync(agent.files[given["fd"]])
    return {"ret": 0}


def ftruncate(agent: Agent, given: Result) -> Result:
    os.ftruncate(agent.files[given["fd"]], number(given.get("length", 4096)))
    return {"ret": 0}


def fallocate(agent: Agent, given: Result) -> Result:
    fd = agent.files[given["fd"]]
    mode, at = flag_bits(given.get("mode", 0), _FALLOCATE), number(given.get("offset", 0))
    _checked(_libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(number(given.get("length", 4096)))))
    return {"ret": 0}


def poll(agent: Agent, given: Result) -> Result:
    poller = select.poll()
    poller.register(agent.files[given["fd"]], select.POLLIN | select.POLLOUT)
    events = [bits for _, bits in poller.poll(1000)]
    names = [name for name in ("POLLIN", "POLLOUT", "POLLERR", "POLLHUP") if events]
    return {"ret": 0, "out": {"events": [n for n in names if events[0] & getattr(select, n)]}}


def epoll_add(agent: Agent, given: Result) -> Result:
    epoll = select.epoll()
    try:
        epoll.register(agent.files[given["fd"]], select.EPOLLIN)
    finally:
        epoll.close()
    return {"ret": 0}


def setfl(agent: Agent, given: Result) -> Result:
    import fcntl

    fcntl.fcntl(agent.files[given["fd"]], fcntl.F_SETFL, open_flags(given["flags"]))
    return {"ret": 0}


# address space


def mprotect(agent: Agent, given: Result) -> Result:
    at, length = agent.span(given)
    _checked(_libc.mprotect(ctypes.c_void_p(at), _size(length), protection(given["prot"])))
    return {"ret": 0}


def mremap(agent: Agent, given: Result) -> Result:
    at = agent.mappings[given["map"]][0] + number(given.get("off", 0))
    new, flags = number(given["new"]), flag_bits(given.get("flags", 0), _MREMAP)
    target = None
    if "to" in given:
        name, offset = given["to"]
        target = ctypes.c_void_p(agent.mappings[name][0] + number(offset))
    moved = _libc.mremap(ctypes.c_void_p(at), _size(number(given["old"])), _size(new), flags, target)
    if moved is None or moved == ctypes.c_void_p(-1).value:
        _checked(-1)
    agent.mappings[given["map"]] = (moved, new)
    return {"ret": 0, "out": {"moved": moved != at}}


def madvise(agent: Agent, given: Result) -> Result:
    at, length = agent.span(given)
    _checked(_libc.madvise(ctypes.c_void_p(at), _size(length), flag_bits(given["advice"], _MADVICE)))
    return {"ret": 0}


def msync(agent: Agent, given: Result) -> Result:
    at, length = agent.span(given)
    _checked(_libc.msync(ctypes.c_void_p(at), _size(length), flag_bits(given.get("flags", "SYNC"), _MSYNC)))
    return {"ret": 0}


def mlock(agent: Agent, given: Result) -> Result:
    at, length = agent.span(given)
    _checked(_libc.mlock(ctypes.c_void_p(at), _size(length)))
    return {"ret": 0}


def munlock(agent: Agent, given: Result) -> Result:
    at, length = agent.span(given)
    _checked(_libc.munlock(ctypes.c_void_p(at), _size(length)))
    return {"ret": 0}


def mincore(agent: Agent, given: Result) -> Result:
    at, length = agent.span(given)
    pages = ctypes.create_string_buffer(min(length // 4096 + 1, _MOST))
    _checked(_libc.mincore(ctypes.c_void_p(at), _size(length), pages))
    return {"ret": 0}


def _at(agent: Agent, given: Result) -> int:
    return agent.mappings[given["map"]][0] + number(given.get("off", 0))


def vm_readv(agent: Agent, given: Result) -> Result:
    count = _count(given)
    buffer = ctypes.create_string_buffer(max(count, 1))
    local = struct.pack("QQ", ctypes.addressof(buffer), count)
    remote = struct.pack("QQ", _at(agent, given), count)
    one = ctypes.c_ulong(1)
    return {"ret": _checked(_libc.process_vm_readv(os.getpid(), local, one, remote, one, ctypes.c_ulong(0)))}


def vmsplice(agent: Agent, given: Result) -> Result:
    piece = struct.pack("QQ", _at(agent, given), _count(given))
    reader, writer = os.pipe()
    try:
        return {"ret": _checked(_libc.vmsplice(writer, piece, ctypes.c_ulong(1), 0))}
    finally:
        os.close(reader)
        os.close(writer)


def write_from_map(agent: Agent, given: Result) -> Result:
    at, count = _at(agent, given), _count(given)
    reader, writer = os.pipe()
    try:
        return {"ret": _checked(_libc.write(writer, ctypes.c_void_p(at), _size(count)))}
    finally:
        os.close(reader)
        os.close(writer)


def read_into_map(agent: Agent, given: Result) -> Result:
    at, count = _at(agent, given), _count(given)
    reader, writer = os.pipe()
    try:
        os.write(writer, b"Z" * min(count, 4096))
        return {"ret": _checked(_libc.read(reader, ctypes.c_void_p(at), _size(count)))}
    finally:
        os.close(reader)
        os.close(writer)


def futex_wake(agent: Agent, given: Result) -> Result:
    at = _at(agent, given)
    number_of_call = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
    operation = 1 | (128 if given.get("private") else 0)
    return {"ret": _checked(_libc.syscall(ctypes.c_long(number_of_call), ctypes.c_void_p(at), operation, 1))}


def procmem(agent: Agent, given: Result) -> Result:
    at = _at(agent, given)
    fd = os.open("/proc/self/mem", os.O_RDWR)
    try:
        if "write" in given:
            return {"ret": os.pwrite(fd, bytes.fromhex(given["write"]), at)}
        return {"ret": 0, "out": {"hex": os.pread(fd, _count(given), at).hex()}}
    finally:
        os.close(fd)


# the process


def setuid(agent: Agent, given: Result) -> Result:
    os.setgroups([])
    os.setgid(given["uid"])
    os.setuid(given["uid"])
    return {"ret": 0}


def rlimit(agent: Agent, given: Result) -> Result:
    which = getattr(resource, "RLIMIT_" + given["name"])
    resource.setrlimit(which, (given["value"], given["value"]))
    return {"ret": 0}


def vmpin(agent: Agent, given: Result) -> Result:
    with open("/proc/self/status", encoding="ascii") as lines:
        pinned = next(line.split()[1] for line in lines if line.startswith("VmPin:"))
    return {"ret": 0, "out": {"VmPin_kB": int(pinned)}}


def max_map_count(agent: Agent, given: Result) -> Result:
    if not agent.system.owns_machine:
        return {"ret": 0}  # of the whole machine: the port sets the model's
    value = given.get("value")
    if value is None:
        with open(f"/proc/{os.getpid()}/maps", encoding="ascii") as lines:
            value = sum(1 for _ in lines) + given["spare"]
    with open("/proc/sys/vm/max_map_count", "w", encoding="ascii") as limit:
        limit.write(str(value))
    return {"ret": 0}


OPERATIONS = {
    function.__name__: function
    for function in (
        readfile, writefile, listdir, stat, fstat, readlink, chmod, chown,
        read, pread, readv, write, pwrite, writev, lseek, fsync, fdatasync, ftruncate, fallocate,
        poll, epoll_add, setfl,
        mprotect, mremap, madvise, msync, mlock, munlock, mincore,
        vm_readv, vmsplice, write_from_map, read_into_map, futex_wake, procmem,
        setuid, rlimit, vmpin, max_map_count,
    )
}  # fmt: skip

#: Operations on a region's descriptors or mappings: on the emulator only the preload library answers them.
THROUGH_LIBC = frozenset(OPERATIONS) - {
    "readfile", "writefile", "listdir", "readlink", "setuid", "rlimit", "vmpin", "max_map_count",
    "write_from_map", "read_into_map",
}  # fmt: skip
