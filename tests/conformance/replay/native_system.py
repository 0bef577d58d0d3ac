# SPDX-License-Identifier: Apache-2.0
"""A real process: real mappings, real loads, real signals.

With a system-call table the five calls that the table has go through it; with
none everything is plain libc, which is a kernel or the preload library.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import subprocess
from pathlib import Path
from typing import Any

from .system import Fault

PAGE = 4096
PMD = 2 << 20
PROT_NONE, PROT_READ, PROT_RW = 0, 1, 3
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAP_HUGETLB = 0x40000
FAILED = ctypes.c_void_p(-1).value

CODES = {
    (11, 1): "SEGV_MAPERR",
    (11, 2): "SEGV_ACCERR",
    (7, 1): "BUS_ADRALN",
    (7, 2): "BUS_ADRERR",
    (7, 3): "BUS_OBJERR",
    (4, 1): "ILL_ILLOPC",
    (4, 2): "ILL_ILLOPN",
}

#: Files that belong to the machine under test and not to the one that tests.
_OF_THE_MACHINE = ("/sys/", "/dev/", "/proc/obmm", "/proc/iomem", "/proc/devices")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_uint64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]


def build_probe(folder: Path) -> Path:
    """Compile `probe.c` into `folder`; needs a C compiler, as the package itself does."""
    library = folder / "probe.so"
    source = Path(__file__).with_name("probe.c")
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compiler, "-o", str(library), str(source)], check=True)
    return library


def _failed() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


class LibcCalls:
    """The five calls as libc makes them."""

    root = ""

    def open(self, path: str, flags: int) -> int:
        return self._checked(_libc.open(path.encode(), flags))

    def close(self, fd: int) -> None:
        self._checked(_libc.close(fd))

    def ioctl(self, fd: int, request: int, address: int) -> int:
        return self._checked(_libc.ioctl(fd, request, address))

    def mmap(self, address: int, length: int, prot: int, flags: int, fd: int, offset: int) -> int:
        at = _libc.mmap(address, length, prot, flags, fd, offset)
        if at is None or at == FAILED:
            raise _failed()
        return int(at)

    def munmap(self, address: int, length: int) -> None:
        self._checked(_libc.munmap(address, length))

    @staticmethod
    def _checked(value: int) -> int:
        if value < 0:
            raise _failed()
        return value


class TableCalls:
    """The five calls through the emulator's system-call table."""

    def __init__(self, socket: str, node: str | None) -> None:
        from obmm import _native

        self._ffi = ffi = _native.ffi
        table = ffi.new("struct obmm_sys **")
        name = ffi.NULL if node is None else ffi.new("char[]", node.encode())
        status = _native.lib.obmm_sys_emulator(ffi.new("char[]", socket.encode()), name, table)
        if status < 0:
            raise OSError(-status, f"{socket}: {os.strerror(-status)}")
        self._table = table[0]
        self.root = ffi.string(self._table.root).decode()

    def _checked(self, value: int) -> int:
        if value < 0:
            code = self._ffi.errno
            raise OSError(code, os.strerror(code))
        return value

    def open(self, path: str, flags: int) -> int:
        return self._checked(self._table.open(self._table, path.encode(), flags))

    def close(self, fd: int) -> None:
        self._checked(self._table.close(self._table, fd))

    def ioctl(self, fd: int, request: int, address: int) -> int:
        pointer = self._ffi.cast("void *", address)
        return self._checked(self._table.ioctl(self._table, fd, request, pointer))

    def mmap(self, address: int, length: int, prot: int, flags: int, fd: int, offset: int) -> int:
        pointer = self._ffi.cast("void *", address)
        at = self._table.mmap(self._table, pointer, length, prot, flags, fd, offset)
        at = int(self._ffi.cast("uintptr_t", at))
        if at == FAILED:
            self._checked(-1)
        return at

    def munmap(self, address: int, length: int) -> None:
        self._checked(self._table.munmap(self._table, self._ffi.cast("void *", address), length))


class NativeSystem:
    """A `System` on the running process."""

    kernel_address = 0xFFFF_8000_0000_1000

    def __init__(self, probe: Path, calls: LibcCalls | TableCalls, real_hugetlb: bool = True) -> None:
        self._probe = ctypes.CDLL(str(probe))
        self._probe.probe_load.restype = ctypes.c_uint64
        self._probe.probe_load.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._probe.probe_store.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
        self._probe.probe_call.restype = ctypes.c_uint64
        self._probe.probe_call.argtypes = [ctypes.c_void_p]
        self._probe.probe_all_equal.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
        self._calls = calls
        self.owns_machine = self._real_hugetlb = real_hugetlb
        self._kept: list[Any] = []
        self.open, self.close, self.ioctl = calls.open, calls.close, calls.ioctl
        self.mmap, self.munmap = calls.mmap, calls.munmap
        self.bad_address = self._anonymous(PAGE, PROT_NONE)

    @property
    def pid(self) -> int:
        return os.getpid()

    def dup(self, fd: int) -> int:
        copy = os.dup(fd)
        os.set_inheritable(copy, True)
        return copy

    def path(self, path: str) -> str:
        return self._calls.root + path if path.startswith(_OF_THE_MACHINE) else path

    # memory of the process itself

    def _anonymous(self, length: int, prot: int, flags: int = 0) -> int:
        at = _libc.mmap(0, length, prot, ANONYMOUS | flags, -1, 0)
        if at is None or at == FAILED:
            raise _failed()
        return int(at)

    def place(self, data: bytes) -> int:
        buffer = ctypes.create_string_buffer(data, len(data))
        self._kept.append(buffer)
        return ctypes.addressof(buffer)

    def place_partial(self, data: bytes) -> int:
        pages = self._anonymous(2 * PAGE, PROT_RW)
        half = len(data) // 2
        ctypes.memmove(pages + PAGE - half, data[:half], half)
        _libc.mprotect(pages + PAGE, PAGE, PROT_NONE)
        return pages + PAGE - half

    def place_readonly(self, data: bytes) -> int:
        page = self._anonymous(PAGE, PROT_RW)
        ctypes.memmove(page, data, len(data))
        _libc.mprotect(page, PAGE, PROT_READ)
        return page

    def read(self, address: int, length: int) -> bytes:
        return ctypes.string_at(address, length)

    def reserve(self, length: int) -> int:
        return self._aligned(length, PROT_NONE)

    def _aligned(self, length: int, prot: int) -> int:
        area = self._anonymous(length + PMD, prot)
        at = -(-area // PMD) * PMD
        if at > area:
            _libc.munmap(area, at - area)
        _libc.munmap(at + length, area + PMD - at)
        return at

    def hugemap(self, length: int, huge: bool, node: int | None, touch: bool) -> int:
        if huge and self._real_hugetlb:
            at = self._anonymous(length, PROT_RW, MAP_HUGETLB)
            if node is not None:
                mask = ctypes.c_ulong(1 << node)
                call = {"x86_64": 237, "aarch64": 235}[os.uname().machine]
                _libc.syscall(ctypes.c_long(call), ctypes.c_void_p(at), ctypes.c_ulong(length), 2, mask, 64, 0)
        else:
            at = self._aligned(length, PROT_RW)
        if touch:
            for offset in range(0, length, PMD if huge else PAGE):
                ctypes.c_uint8.from_address(at + offset).value = 0
        return at

    def maps(self, address: int, length: int) -> list[dict[str, Any]]:
        pieces: list[dict[str, Any]] = []
        inside = False
        with open("/proc/self/smaps", encoding="utf-8") as lines:
            for line in lines:
                words = line.split()
                if "-" in words[0] and not words[0].endswith(":"):
                    start, end = (int(word, 16) for word in words[0].split("-"))
                    inside = start < address + length and address < end
                    if inside:
                        # neighbours of the same kind are one piece for the kernel: cut at the mapping's borders
                        low, high = max(start, address), min(end, address + length)
                        at = int(words[2], 16) + (low - start if len(words) > 5 else 0)
                        pieces.append(
                            {
                                "off": low - address,
                                "len": high - low,
                                "perm": words[1],
                                "file_offset": f"{at:x}",
                                "path": " ".join(words[5:]),
                            }
                        )
                elif inside and words[0] == "KernelPageSize:":
                    pieces[-1]["KernelPageSize"] = f"{words[1]}kB"
        return pieces

    # accesses

    def _raise_fault(self) -> None:
        signal = self._probe.probe_signal()
        if signal:
            code = self._probe.probe_code()
            raise Fault(signal, CODES.get((signal, code), str(code)))

    def load(self, address: int, width: int) -> int:
        value = self._probe.probe_load(address, width)
        self._raise_fault()
        return int(value)

    def store(self, address: int, width: int, value: int) -> None:
        self._probe.probe_store(address, width, value)
        self._raise_fault()

    def call(self, address: int) -> int:
        value = self._probe.probe_call(address)
        self._raise_fault()
        return int(value)

    def all_equal(self, address: int, length: int, byte: int) -> bool:
        return bool(self._probe.probe_all_equal(address, length, byte * 0x0101010101010101))


def tidy() -> None:
    """Before work starts: no collector runs, so that freed address ranges are not handed to the interpreter."""
    import gc

    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):
        gc.disable()
