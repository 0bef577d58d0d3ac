# SPDX-License-Identifier: Apache-2.0
"""A process of the driver model without a process: its address space is a list of pieces.

For work on the model itself.  The replay that counts uses real processes.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

from obmm.emulator.model.calls import Map, Protect, Unmap
from obmm.emulator.model.user_memory import Extent

from .system import PROT_READ, PROT_WRITE, Fault

PAGE = 4096
PMD = 2 << 20
MAP_FIXED, MAP_FIXED_NOREPLACE = 0x10, 0x100000
SIGSEGV, SIGBUS = 11, 7

_EINVAL, _EFAULT, _EEXIST = 22, 14, 17


@dataclass
class Piece:
    """[start, end) with its protection and what is behind it: bytes of ours, or a descriptor."""

    start: int
    end: int
    prot: int
    memory: bytearray | None = None
    fd: int = -1
    offset: int = 0

    def cut(self, start: int, end: int) -> Piece:
        shift = start - self.start
        memory = self.memory[shift : end - self.start] if self.memory is not None else None
        return Piece(start, end, self.prot, memory, self.fd, self.offset + shift)


class AddressSpace:
    """Non-overlapping pieces, by address."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._next = 0x7F00_0000_0000

    def find(self, address: int) -> Piece | None:
        return next((piece for piece in self.pieces if piece.start <= address < piece.end), None)

    def clear(self, start: int, end: int) -> None:
        kept = []
        for piece in self.pieces:
            if piece.end <= start or end <= piece.start:
                kept.append(piece)
                continue
            if piece.start < start:
                kept.append(piece.cut(piece.start, start))
            if end < piece.end:
                kept.append(piece.cut(end, piece.end))
        self.pieces = kept

    def protect(self, start: int, end: int, prot: int) -> None:
        for piece in [p for p in self.pieces if p.start < end and start < p.end]:
            middle = piece.cut(max(start, piece.start), min(end, piece.end))
            self.clear(middle.start, middle.end)
            middle.prot = prot
            self.pieces.append(middle)

    def put(self, piece: Piece) -> None:
        self.clear(piece.start, piece.end)
        self.pieces.append(piece)

    def room(self, length: int) -> int:
        at = self._next
        self._next += -(-max(length, 1) // PMD) * PMD + PMD
        return at

    def apply(self, actions: tuple[Any, ...]) -> None:
        for action in actions:
            end = action.address + action.length
            if isinstance(action, Map):
                backing = action.backing
                self.put(Piece(action.address, end, action.prot, None, backing.fd, backing.offset))
            elif isinstance(action, Protect):
                self.protect(action.address, end, action.prot)
            elif isinstance(action, Unmap):
                self.clear(action.address, end)

    def read(self, address: int, length: int, prot: int = PROT_READ) -> bytes:
        data = b""
        while len(data) < length:
            at = address + len(data)
            piece = self._accessible(at, prot)
            size = min(length - len(data), piece.end - at)
            start = at - piece.start
            if piece.memory is not None:
                part = bytes(piece.memory[start : start + size])
            else:
                part = os.pread(piece.fd, size, piece.offset + start)
                if len(part) < size:
                    raise Fault(SIGBUS, "BUS_ADRERR")
            data += part
        return data

    def write(self, address: int, data: bytes) -> None:
        piece = self._accessible(address, PROT_WRITE)
        start = address - piece.start
        if address + len(data) > piece.end:
            self._accessible(piece.end, PROT_WRITE)
        if piece.memory is not None:
            piece.memory[start : start + len(data)] = data
            return
        if os.fstat(piece.fd).st_size < piece.offset + start + len(data):
            raise Fault(SIGBUS, "BUS_ADRERR")
        os.pwrite(piece.fd, data, piece.offset + start)

    def _accessible(self, address: int, prot: int) -> Piece:
        piece = self.find(address)
        if piece is None:
            raise Fault(SIGSEGV, "SEGV_MAPERR")
        # a writable or executable mapping is readable as well
        effective = piece.prot | PROT_READ if piece.prot else 0
        if not effective & prot:
            raise Fault(SIGSEGV, "SEGV_ACCERR")
        return piece


class UserCopies:
    """copy_from_user and copy_to_user over an address space."""

    def __init__(self, space: AddressSpace) -> None:
        self._space = space

    def read(self, address: int, size: int) -> bytes:
        from obmm.emulator.model.calls import KernelError

        try:
            return self._space.read(address, size)
        except Fault:
            raise KernelError(_EFAULT, "D3", f"{address:#x}") from None

    def write(self, address: int, data: bytes) -> None:
        from obmm.emulator.model.calls import KernelError

        try:
            self._space.write(address, data)
        except Fault:
            raise KernelError(_EFAULT, "D5", f"{address:#x}") from None


class ModelSystem:
    """A `System` straight on the model's `Process`."""

    kernel_address = 0xFFFF_8000_0000_1000
    owns_machine = False
    _pids = itertools.count(1000)

    def __init__(self, host: Any, root: str) -> None:
        self.pid = next(self._pids)
        self._host = host
        self._root = root
        self._process = host.process(self.pid, 0)
        self.space = AddressSpace()
        self._files: dict[int, list[Any]] = {}
        self._fds = itertools.count(3)
        self._user = UserCopies(self.space)
        self.bad_address = self.space.room(PAGE)

    def _called(self, call: Any, *args: Any) -> Any:
        from obmm.emulator.model.calls import KernelError

        try:
            return call(*args)
        except KernelError as error:
            raise OSError(error.errno, str(error)) from None

    def path(self, path: str) -> str:
        return self._root + path

    def open(self, path: str, flags: int) -> int:
        file = self._called(self._process.open, path, flags)
        fd = next(self._fds)
        self._files[fd] = [file, 1]
        return fd

    def close(self, fd: int) -> None:
        entry = self._files.pop(fd)
        entry[1] -= 1
        if not entry[1]:
            entry[0].release()

    def dup(self, fd: int) -> int:
        copy = next(self._fds)
        entry = self._files[fd]
        entry[1] += 1
        self._files[copy] = entry
        return copy

    def ioctl(self, fd: int, request: int, address: int) -> int:
        answer = self._called(self._process.ioctl, self._files[fd][0], request, address, self._user)
        self.space.apply(answer.actions)
        return answer.value

    def mmap(self, address: int, length: int, prot: int, flags: int, fd: int, offset: int) -> int:
        if fd < 0:
            end = address + length
            self.munmap(address, length)
            self.space.put(Piece(address, end, prot, bytearray(length)))
            return address
        if flags & MAP_FIXED_NOREPLACE and any(
            piece.start < address + length and address < piece.end for piece in self.space.pieces
        ):
            raise OSError(_EEXIST, "mmap")
        if not flags & (MAP_FIXED | MAP_FIXED_NOREPLACE):
            address = self.space.room(length)
        answer = self._called(self._process.mmap, self._files[fd][0], address, length, prot, flags, offset)
        self.space.apply(answer.actions)
        return answer.value

    def munmap(self, address: int, length: int) -> None:
        if address % PAGE or not length:
            raise OSError(_EINVAL, "munmap")
        answer = self._called(self._process.munmap, address, length)
        self.space.apply(answer.actions)
        self.space.clear(address, address + -(-length // PAGE) * PAGE)

    def exit(self) -> None:
        self._process.exit()
        for fd in list(self._files):
            self.close(fd)

    # memory of the process itself

    def _anonymous(self, data: bytes, prot: int) -> int:
        size = -(-max(len(data), 1) // PAGE) * PAGE
        at = self.space.room(size)
        self.space.put(Piece(at, at + size, prot, bytearray(data.ljust(size, b"\0"))))
        return at

    def place(self, data: bytes) -> int:
        return self._anonymous(data, PROT_READ | PROT_WRITE)

    def place_partial(self, data: bytes) -> int:
        half = data[: len(data) // 2]
        return self._anonymous(half.rjust(PAGE, b"\0"), PROT_READ | PROT_WRITE) + PAGE - len(half)

    def place_readonly(self, data: bytes) -> int:
        return self._anonymous(data, PROT_READ)

    def read(self, address: int, length: int) -> bytes:
        return self.space.read(address, length)

    def reserve(self, length: int) -> int:
        at = self.space.room(length)
        self.space.put(Piece(at, at + length, 0, bytearray()))
        return at

    def hugemap(self, length: int, huge: bool, node: int | None, touch: bool) -> int:
        at = self._anonymous(bytes(length), PROT_READ | PROT_WRITE)
        self._process.memory.declare(Extent(at, at + length, huge, True, node or 0))
        return at

    def maps(self, address: int, length: int) -> list[dict[str, Any]]:
        return []

    # accesses

    def load(self, address: int, width: int) -> int:
        return int.from_bytes(self.space.read(address, width), "little")

    def store(self, address: int, width: int, value: int) -> None:
        self.space.write(address, (value & ((1 << 8 * width) - 1)).to_bytes(width, "little"))

    def call(self, address: int) -> int:
        raise NotImplementedError("no processor in this port")

    def all_equal(self, address: int, length: int, byte: int) -> bool:
        return self.space.read(address, length) == bytes([byte]) * length
