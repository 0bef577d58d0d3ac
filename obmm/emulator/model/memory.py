# SPDX-License-Identifier: Apache-2.0
"""The memory behind regions and windows: one descriptor each, mapped by clients directly."""

from __future__ import annotations

import errno
import os

from .calls import Backing, KernelError


class Descriptor:
    """A descriptor that is closed when its last holder is gone: an answer on its way may still name it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Memory:
    """Zero-filled shared memory of `size` bytes; pages appear at first touch."""

    __slots__ = ("_descriptor", "size")

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
        except OSError as error:
            raise KernelError(errno.ENOMEM, "X12", f"no descriptor for {name}: {error.strerror}") from None
        self._descriptor: Descriptor | None = Descriptor(fd)
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise KernelError(errno.ENOMEM, "X12", f"no memory for {name}: {error.strerror}") from None

    @property
    def fd(self) -> int:
        """The memory's descriptor, -1 after `destroy`."""
        return self._descriptor.fd if self._descriptor else -1

    def backing(self, offset: int) -> Backing:
        """Where a client finds the bytes from `offset` on."""
        return Backing(self.fd, offset, self._descriptor)

    def revoke(self) -> None:
        """Take the memory away: every existing mapping of it gets SIGBUS from now on."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor.fd, 0)

    def destroy(self) -> None:
        """Revoke and let go. Nothing can reach the contents afterwards."""
        self.revoke()
        self._descriptor = None
