# SPDX-License-Identifier: Apache-2.0
"""The memory behind regions and windows: one descriptor each, mapped by clients directly."""

from __future__ import annotations

import errno
import os

from .calls import Backing, KernelError


class Memory:
    """Zero-filled shared memory of `size` bytes; pages appear at first touch."""

    __slots__ = ("fd", "size")

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        try:
            self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
        except OSError as error:
            raise KernelError(errno.ENOMEM, "X12", f"no descriptor for {name}: {error.strerror}") from None
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            os.close(self.fd)
            raise KernelError(errno.ENOMEM, "X12", f"no memory for {name}: {error.strerror}") from None

    def backing(self, offset: int) -> Backing:
        """Where a client finds the bytes from `offset` on."""
        return Backing(self.fd, offset)

    def revoke(self) -> None:
        """Take the memory away: every existing mapping of it gets SIGBUS from now on."""
        if self.fd >= 0:
            os.ftruncate(self.fd, 0)

    def destroy(self) -> None:
        """Revoke and close. Nothing can reach the contents afterwards."""
        if self.fd >= 0:
            self.revoke()
            os.close(self.fd)
            self.fd = -1
