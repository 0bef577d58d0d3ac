# SPDX-License-Identifier: Apache-2.0
"""The memory behind regions and windows: descriptors that clients map directly."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from ..topology import PAGE
from .calls import Backing, KernelError
from .intervals import IntervalSet


class Descriptor:
    """A descriptor that is closed when its last holder is gone: an answer on its way may still name it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Memory:
    """Zero-filled shared memory of `size` bytes in one descriptor; pages appear at first touch."""

    __slots__ = ("_descriptor", "poisoned", "revoked", "size")

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        self.poisoned = IntervalSet()
        self.revoked = False
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
        """Where a client finds the bytes from `offset` on, poison aside."""
        return Backing(self.fd, offset, self._descriptor)

    def pieces(self, offset: int, length: int, hole: Backing) -> Iterator[tuple[Backing, int]]:
        """What to map for [offset, offset + length): memory, and `hole` where it is poisoned."""
        for low, high in self.poisoned.within(offset, offset + length):
            if offset < low:
                yield self.backing(offset), low - offset
            yield hole, high - low
            length -= high - offset
            offset = high
        if length:
            yield self.backing(offset), length

    def poison(self, page: int) -> tuple[int, int]:
        """Lose the page at offset `page`; returns what is lost with it. Existing mappings keep it."""
        self.poisoned.add(page, page + PAGE)
        return page, page + PAGE

    def revoke(self) -> None:
        """Take the memory away: every existing mapping of it gets SIGBUS from now on."""
        self.revoked = True
        if self._descriptor is not None:
            os.ftruncate(self._descriptor.fd, 0)

    def destroy(self) -> None:
        """Revoke and let go. Nothing can reach the contents afterwards."""
        self.revoke()
        self._descriptor = None


class SegmentedMemory(Memory):
    """Memory in units with a descriptor each, made when first mapped.

    Truncating one of them takes its unit away under existing mappings: a real SIGBUS for that unit only.
    """

    __slots__ = ("_name", "_unit", "_units")

    def __init__(self, name: str, size: int, unit: int) -> None:
        self.size = size
        self.poisoned = IntervalSet()
        self.revoked = False
        self._descriptor = None
        self._name = name
        self._unit = unit
        self._units: dict[int, Memory] = {}

    def pieces(self, offset: int, length: int, hole: Backing) -> Iterator[tuple[Backing, int]]:
        end = offset + length
        while offset < end:
            index, at = divmod(offset, self._unit)
            part = min(self._unit - at, end - offset)
            lost = self.revoked or offset in self.poisoned
            yield (hole if lost else self._piece(index).backing(at)), part
            offset += part

    def poison(self, page: int) -> tuple[int, int]:
        """Lose the unit with the page at offset `page`, under existing mappings too."""
        index = page // self._unit
        self._piece(index).revoke()
        low, high = index * self._unit, min((index + 1) * self._unit, self.size)
        self.poisoned.add(low, high)
        return low, high

    def revoke(self) -> None:
        self.revoked = True
        for piece in self._units.values():
            piece.revoke()

    def destroy(self) -> None:
        for piece in self._units.values():
            piece.destroy()
        self._units.clear()

    def _piece(self, index: int) -> Memory:
        piece = self._units.get(index)
        if piece is None:
            size = min(self._unit, self.size - index * self._unit)
            piece = self._units[index] = Memory(f"{self._name}-{index}", size)
        return piece
