# SPDX-License-Identifier: Apache-2.0
"""An export of this process's own huge pages (EXPORT_PID, driver specification 6.2): only by explicit consent.

The driver takes the pages out of the kernel's own map of memory.  A system call that touches them there (direct I/O into
them, for example) **crashes this host**, so the memory is never handed out as a buffer: it is read and written by copies
that this process makes itself.
"""

from __future__ import annotations

import errno
import mmap
from typing import TYPE_CHECKING, Any, NoReturn

from obmm._native import ffi
from obmm.arguments import whole
from obmm.closing import Owner
from obmm.driver.abi import PMD
from obmm.driver.calls import Exported
from obmm.driver.topology import Controller
from obmm.errors import ObmmArgumentError
from obmm.region.exported import ExportedRegion
from obmm.region.kept import Kept

if TYPE_CHECKING:
    from obmm.region.device import Device

_MAP_HUGETLB, _MAP_HUGE_2MB = 0x40000, 21 << 26


class HugePages(Owner):
    """Anonymous huge pages of 2 MiB that a forked child does not get.  OSError ENOMEM when none are free."""

    def __init__(self, length: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_HUGETLB | _MAP_HUGE_2MB
        self._memory = mmap.mmap(-1, length, flags)
        self._memory.madvise(mmap.MADV_DONTFORK)
        # written once, by this process: pages are there before the driver pins them
        for page in range(0, length, PMD):
            self._memory[page] = 0
        buffer = ffi.from_buffer(self._memory)
        self.address = int(ffi.cast("uintptr_t", buffer))
        self._buffer = buffer

    def read(self, offset: int, size: int) -> bytes:
        return self._memory[offset : offset + size]

    def write(self, offset: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        self._memory[offset : offset + len(view)] = view

    def free(self) -> None:
        ffi.release(self._buffer)
        self._memory.close()


class UserMemoryRegion(ExportedRegion):
    """Huge pages of this process, lent to others.  Made by `Device.export_user_memory`.

    `read` and `write` copy; there are no mappings (the driver gives this kind of region no mapping capability) and no
    views.  The pages stay pinned until the region is closed, also when the process dies; content is not cleared.
    """

    def __init__(
        self,
        device: Device,
        kept: Kept,
        exported: Exported,
        controller: Controller,
        pages: HugePages,
        length: int,
        **facts: Any,
    ) -> None:
        super().__init__(device, kept, exported, controller, length, pmd=True, **facts)
        self._pages = pages

    def read(self, offset: int, size: int) -> bytes:
        """A copy of payload bytes [offset, offset + size)."""
        return self._pages.read(self._at(offset, size), size)

    def write(self, offset: int, data: Any) -> int:
        """Copy the buffer `data` to payload offset `offset` -> bytes written."""
        size = memoryview(data).nbytes
        self._pages.write(self._at(offset, size), data)
        return size

    def write_header(self, **fields: Any) -> None:
        self._pages.write(0, self._header(fields).pack())

    def map_bytes(self, *_: Any, **__: Any) -> NoReturn:
        raise ObmmArgumentError.because(
            "SHMDEV_OPEN",
            errno.EPERM,
            f"{self!r} is memory of this process: its node never opens, and a view of it in a system call crashes the host",
            "read() and write(), which copy",
            "6.2",
        )

    def __buffer__(self, flags: int) -> NoReturn:
        self.map_bytes()

    def _at(self, offset: int, size: int) -> int:
        self._check_open()
        offset, size = whole("ACCESS", "offset", offset), whole("ACCESS", "size", size, low=0)
        if offset < 0 or offset + size > self._nbytes:
            raise ObmmArgumentError.because(
                "ACCESS",
                errno.EINVAL,
                f"[{offset}, {offset + size}) is outside the payload of {self._nbytes} bytes",
                "offsets count from the payload, in bytes",
            )
        return offset + self._data_offset
