# SPDX-License-Identifier: Apache-2.0
"""What crosses the line between the driver model and its server.

The model answers system calls.  It never touches a client's memory, address
space or descriptors by itself: it reads user memory through `UserMemory`, and
it tells the client what to do to its address space as a list of `Action`.
"""

from __future__ import annotations

import errno as _errno
import os
from dataclasses import dataclass
from typing import Protocol


class KernelError(Exception):
    """A refused system call: what the caller finds in ``errno``.

    `rule` is the rule of the specification that refused it ("X5", "M10"). `actions` is what the client
    has to do nevertheless: mmap with MAP_FIXED unmaps the range before the driver refuses.
    """

    def __init__(self, errno: int, rule: str, detail: str = "") -> None:
        super().__init__(f"{_errno.errorcode.get(errno, errno)} by {rule}: {detail or os.strerror(errno)}")
        self.errno = errno
        self.rule = rule
        self.actions: tuple[Action, ...] = ()


class UserMemory(Protocol):
    """The calling process's memory, as copy_from_user and copy_to_user see it."""

    def read(self, address: int, size: int) -> bytes:
        """The bytes at `address`, or raise ``KernelError(EFAULT, ...)``."""

    def write(self, address: int, data: bytes) -> None:
        """Store `data` at `address`, or raise ``KernelError(EFAULT, ...)``."""


@dataclass(frozen=True, slots=True)
class Backing:
    """A piece of memory that a client can map: a descriptor of the server's and an offset in it.

    `keeper` keeps the descriptor open while the answer is on its way to the client.
    """

    fd: int
    offset: int
    keeper: object = None


@dataclass(frozen=True, slots=True)
class Map:
    """Map `length` bytes of `backing` shared at exactly `address`, with protection `prot`."""

    address: int
    length: int
    prot: int
    backing: Backing


@dataclass(frozen=True, slots=True)
class Protect:
    """Change the protection of `[address, address + length)` to `prot`."""

    address: int
    length: int
    prot: int


@dataclass(frozen=True, slots=True)
class Unmap:
    """Remove whatever is mapped at `[address, address + length)`."""

    address: int
    length: int


Action = Map | Protect | Unmap


@dataclass(frozen=True, slots=True)
class Answer:
    """A system call's result and what the client has to do before it returns."""

    value: int
    actions: tuple[Action, ...] = ()
