# SPDX-License-Identifier: Apache-2.0
"""Regions through the C core alone: what the tests of page tables and signals touch themselves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

from obmm._native import ffi, lib

CHUNK = 2 << 20
PAGE = 4096
READ, WRITE = 1, 2
#: mem_state of UPDATE_RANGE: normal memory with no access, read, read and write.
NONE, R, W = 0xD, 0x1, 0x9
INFER = 4
ALLOW_MMAP = 1

SYS = lib.obmm_sys_kernel()


def ok(status: int) -> int:
    """A core function's result, or its error as OSError."""
    if status < 0:
        raise OSError(-status, os.strerror(-status))
    return status


class Region:
    """An export of this host with one open file; `close` removes it."""

    def __init__(self, chunks: int = 1) -> None:
        self.size = chunks * CHUNK
        self.control = ok(lib.obmm_rw_open(SYS))
        command = ffi.new("struct obmm_cmd_export *")
        command.size[0] = self.size
        command.length = 1
        command.flags = ALLOW_MMAP
        ok(lib.obmm_rw_export(SYS, self.control, command))
        self.mem_id = command.mem_id
        self.tokenid = command.tokenid
        self.fd = self.open()

    def open(self) -> int:
        return ok(lib.obmm_rw_shmdev_open(SYS, self.mem_id, os.O_RDWR))

    def map(self, prot: int = READ | WRITE, pmd: bool = False, offset: int = 0, length: int | None = None) -> int:
        """The address of a mapping."""
        out = ffi.new("void **")
        size = self.size - offset if length is None else length
        ok(lib.obmm_rw_map(SYS, self.fd, ffi.NULL, offset, size, prot, int(pmd), out))
        return int(ffi.cast("uintptr_t", out[0]))

    def unmap(self, address: int, length: int | None = None) -> None:
        ok(lib.obmm_rw_unmap(SYS, ffi.cast("void *", address), self.size if length is None else length))

    def own(self, address: int, length: int, state: int, cache: int = INFER) -> None:
        """UPDATE_RANGE over [address, address + length)."""
        ok(lib.obmm_rw_set_ownership(SYS, self.fd, address, address + length, state, cache))

    def unexport(self) -> None:
        ok(lib.obmm_rw_unexport(SYS, self.control, self.mem_id, 0))

    def close(self) -> None:
        os.close(self.fd)
        self.unexport()
        os.close(self.control)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


def word(address: int) -> int:
    """A plain, unguarded load of 8 bytes."""
    return int(ffi.cast("uint64_t *", address)[0])


def put(address: int, value: int) -> None:
    """A plain, unguarded store of 8 bytes."""
    ffi.cast("uint64_t *", address)[0] = value


def outcome(body: Callable[[], object]) -> str:
    """How a forked child that does `body` ends: "done", "raised", or the name of the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        for number in (signal.SIGSEGV, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)
        try:
            body()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return "done" if os.WEXITSTATUS(status) == 0 else "raised"
