# SPDX-License-Identifier: Apache-2.0
"""What an agent needs from the kernel under it, and the words of the recording for flags."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any, Protocol

PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4

_MMAP_FLAGS = {
    "0": 0,
    "SHARED": 0x01,
    "PRIVATE": 0x02,
    "SHARED_VALIDATE": 0x03,
    "FIXED": 0x10,
    "ANON": 0x20,
    "ANONYMOUS": 0x20,
    "32BIT": 0x40,
    "GROWSDOWN": 0x0100,
    "DENYWRITE": 0x0800,
    "EXECUTABLE": 0x1000,
    "LOCKED": 0x2000,
    "NORESERVE": 0x4000,
    "POPULATE": 0x8000,
    "NONBLOCK": 0x10000,
    "STACK": 0x20000,
    "HUGETLB": 0x40000,
    "HUGE_2MB": 21 << 26,
    "SYNC": 0x80000,
    "FIXED_NOREPLACE": 0x100000,
}


_OPEN_FLAGS = {name: value for name, value in vars(os).items() if name.startswith("O_")}


def errno_name(code: int | None) -> str:
    """The name that the recording uses: of two names for one number, the kernel's."""
    return {errno.EAGAIN: "EAGAIN", errno.EOPNOTSUPP: "EOPNOTSUPP"}.get(code or 0) or errno.errorcode.get(
        code or 0, str(code)
    )


class Fault(Exception):
    """A load, store or jump raised a signal."""

    def __init__(self, signal: int, code: str) -> None:
        super().__init__(f"signal {signal}, {code}")
        self.signal = signal
        self.code = code


class System(Protocol):
    """One process's view of a kernel.  Every call raises OSError as libc sets errno."""

    pid: int
    #: Whether the replay may set the machine's own parameters: true in a guest made for it.
    owns_machine: bool
    #: A user address with nothing behind it, and an address of the kernel's half.
    bad_address: int
    kernel_address: int

    def open(self, path: str, flags: int) -> int: ...
    def close(self, fd: int) -> None: ...
    def dup(self, fd: int) -> int: ...
    def ioctl(self, fd: int, request: int, address: int) -> int: ...
    def mmap(self, address: int, length: int, prot: int, flags: int, fd: int, offset: int) -> int: ...
    def munmap(self, address: int, length: int) -> None: ...

    def place(self, data: bytes) -> int:
        """The address of a fresh buffer that holds `data`."""

    def place_partial(self, data: bytes) -> int:
        """Like `place`, but the second half of `data` is unreadable."""

    def place_readonly(self, data: bytes) -> int:
        """Like `place`, but not writable."""

    def read(self, address: int, length: int) -> bytes: ...

    def reserve(self, length: int) -> int:
        """A PROT_NONE anonymous area, 2 MiB aligned."""

    def hugemap(self, length: int, huge: bool, node: int | None, touch: bool) -> int:
        """Private anonymous memory, hugetlb if `huge`, of `node` if given."""

    def maps(self, address: int, length: int) -> list[dict[str, Any]]:
        """The pieces of the process's maps file in the range."""

    def load(self, address: int, width: int) -> int: ...
    def store(self, address: int, width: int, value: int) -> None: ...
    def call(self, address: int) -> int: ...
    def all_equal(self, address: int, length: int, byte: int) -> bool: ...

    def path(self, path: str) -> str:
        """Where this kernel keeps the file `path` of /sys, /proc or /dev."""


def protection(letters: str) -> int:
    if letters == "NONE":
        return 0
    values = {"R": PROT_READ, "W": PROT_WRITE, "X": PROT_EXEC}
    return sum(values[letter] for letter in letters)


def flag_bits(words: str | int, names: Mapping[str, int]) -> int:
    """``A|B|0x10`` as a number; an unknown word is an error of the replay, not zero."""
    if isinstance(words, int):
        return words
    bits = 0
    for word in words.split("|"):
        bits |= names[word] if word in names else int(word, 0)
    return bits


def mmap_flags(words: str | int) -> int:
    return flag_bits(words, _MMAP_FLAGS)


def open_flags(words: str | int) -> int:
    return flag_bits(words, _OPEN_FLAGS)
