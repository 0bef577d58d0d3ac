# SPDX-License-Identifier: Apache-2.0
"""A client's memory during one system call, as copy_from_user and copy_to_user see it."""

from __future__ import annotations

import errno

from .model.calls import KernelError


class NeedMemory(Exception):
    """The call needs bytes that the client has not sent yet.

    The server fetches them and runs the call again from its start: a command reads all its user memory
    before its first side effect.
    """

    def __init__(self, address: int, size: int) -> None:
        super().__init__(f"{size} bytes at {address:#x}")
        self.address = address
        self.size = size


class CallMemory:
    """What the client has sent for this call, and what goes back to it (`UserMemory`).

    A read of something else raises `NeedMemory`. The one write travels with the answer; whether the
    client can store it shows only there (rule D5: the call's effects stay).
    """

    __slots__ = ("_pieces", "copy_back", "copy_back_address")

    def __init__(self) -> None:
        self._pieces: list[tuple[int, int, bytes | None]] = []
        self.copy_back = b""
        self.copy_back_address = 0

    def add(self, address: int, size: int, data: bytes | None) -> None:
        """`data` stands at `address`; None: the `size` bytes there cannot be read."""
        self._pieces.append((address, size, data))

    def read(self, address: int, size: int) -> bytes:
        for start, length, data in self._pieces:
            if start <= address and address + size <= start + length:
                if data is None:
                    raise KernelError(errno.EFAULT, "D3", f"{size} bytes at {address:#x} cannot be read")
                return data[address - start : address - start + size]
        raise NeedMemory(address, size)

    def write(self, address: int, data: bytes) -> None:
        self.copy_back_address = address
        self.copy_back = data
