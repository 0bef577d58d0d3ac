# SPDX-License-Identifier: Apache-2.0
"""Memory whose loads wait until they are told to go on: a fabric that is slow, at will (userfaultfd)."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import select
import struct

_SYSCALL = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
_API, _REGISTER, _ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
_MISSING = 1


class StuckPages:
    """Zero bytes that do not come before `release`."""

    def __init__(self, nbytes: int) -> None:
        """OSError where the kernel has no userfaultfd for this user."""
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.syscall(_SYSCALL[platform.machine()], os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        fcntl.ioctl(self.fd, _API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
        self.map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        fcntl.ioctl(self.fd, _REGISTER, bytearray(struct.pack("QQQQ", self._address, nbytes, _MISSING, 0)))

    def wait_for_a_load(self, seconds: float = 20.0) -> None:
        """Until a thread is inside a load that does not come back."""
        assert select.select([self.fd], [], [], seconds)[0], "the memory was not touched"

    def release(self) -> None:
        """Let all loads, waiting and future ones, come back with zeros.  Idempotent."""
        if self.fd >= 0:
            fcntl.ioctl(self.fd, _ZEROPAGE, bytearray(struct.pack("QQQq", self._address, len(self.map), 0, 0)))
            os.close(self.fd)
            self.fd = -1
