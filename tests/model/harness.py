# SPDX-License-Identifier: Apache-2.0
"""A client without a process: user memory in a dict, mappings done for real in this one."""

from __future__ import annotations

import errno
import struct

from obmm.emulator.model import KernelError


class Buffers:
    """User memory: buffers at invented addresses; anything else is EFAULT."""

    def __init__(self) -> None:
        self._buffers: dict[int, bytearray] = {}
        self._next = 0x10000
        self.readonly: set[int] = set()

    def put(self, data: bytes, readonly: bool = False) -> int:
        address = self._next
        self._next += (len(data) + 0x1FFF) & ~0xFFF
        self._buffers[address] = bytearray(data)
        if readonly:
            self.readonly.add(address)
        return address

    def get(self, address: int) -> bytes:
        return bytes(self._buffers[address])

    def read(self, address: int, size: int) -> bytes:
        for base, data in self._buffers.items():
            if base <= address and address + size <= base + len(data):
                return bytes(data[address - base : address - base + size])
        raise KernelError(errno.EFAULT, "D3")

    def write(self, address: int, data: bytes) -> None:
        for base, old in self._buffers.items():
            if base <= address and address + len(data) <= base + len(old) and base not in self.readonly:
                old[address - base : address - base + len(data)] = data
                return
        raise KernelError(errno.EFAULT, "D5")


VENDOR = struct.pack("<IxxxxQB7x", 0, 1, 1)
