# SPDX-License-Identifier: Apache-2.0
"""Memory of another host, reachable by loads and stores."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from obmm.arguments import whole
from obmm.driver.abi import Cache
from obmm.errors import ObmmError, RemoteMemoryError, StaleHandleError
from obmm.handle import Handle, HandleFlag
from obmm.region.header import OtherVersion, RegionHeader
from obmm.region.kept import Kept
from obmm.region.leased import Leased
from obmm.region.region import Region
from obmm.windows.provider import Window

if TYPE_CHECKING:
    from obmm.region.device import Device


class ImportedRegion(Region):
    """An import: another host's memory behind a local UB window.

    Made by `Device.import_region`.  Every mapping first reads the region header through the fabric and compares its
    export generation with the handle's; a raw region has none, and its ``repr`` says unverified.

    >>> with a.export_region("4MiB") as region, region.map("rw") as memory:
    ...     with memory.writing():
    ...         memory.write(0, b"from node a")
    ...     memory.publish()
    ...     with b.import_region(region.handle()) as imported, imported.map("r") as there:
    ...         there.read(0, 11), imported.has_header, imported.header.state
    ...         imported.check()
    ...         imported.generation == imported.export_generation == region.generation
    ...         imported.nbytes == region.nbytes, imported.data_offset, imported.caches, imported.read_only
    ...         imported.peer, imported.starts_without_right
    11
    (b'from node a', True, ...)
    True
    (True, 4096, ('cc',), False)
    ('...', True)
    """

    _remove_operation = "UNIMPORT"

    def __init__(
        self,
        device: Device,
        kept: Kept,
        handle: Handle,
        window: Window,
        *,
        pmd: bool,
        label: str,
        lease: Leased | None = None,
    ) -> None:
        super().__init__(device, kept.mem_id, handle.length, pmd=pmd, label=label, kept=kept)
        self.source = handle
        self.window = window
        self.lease = lease
        self._header: RegionHeader | None = None

    @property
    def has_header(self) -> bool:
        """False for a raw region, which has no stale check."""
        return bool(self.source.flags & HandleFlag.HEADER)

    @property
    def header(self) -> RegionHeader | None:
        """The region header as last read through the fabric; None for a raw region."""
        if self.has_header and self._header is None:
            self.check()
        return self._header

    @property
    def data_offset(self) -> int:
        header = self.header
        return header.data_offset if header else 0

    @property
    def nbytes(self) -> int:
        header = self.header
        return header.data_bytes if header else self.length

    @property
    def generation(self) -> int | None:
        return self.source.generation if self.has_header else None

    @property
    def export_generation(self) -> int:
        return self.source.generation

    @property
    def caches(self) -> tuple[Cache, ...]:
        return (self.window.cache,)

    @property
    def read_only(self) -> bool:
        """The handle grants loads only."""
        return bool(self.source.flags & HandleFlag.READ_ONLY)

    @property
    def peer(self) -> str:
        return f"owner CNA {self.source.owner_cna:#x}"

    @property
    def starts_without_right(self) -> bool:
        return True

    def check(self) -> None:
        """Read the header through the fabric and compare it with the handle: StaleHandleError if it is another export."""
        if self.has_header:
            self.map_bytes("none" if self.window.cache == "cc" else "r", 0, RegionHeader.SIZE).close()

    def _bytes_of(self, start: int, stop: int | None) -> tuple[int, int]:
        start = whole("MMAP", "start", start)
        if start or stop is not None:
            self.check()  # a mapping of the start checks by itself; a piece from the middle cannot
        return super()._bytes_of(start, stop)

    def verify(self, read_page: Callable[[], bytes]) -> None:
        if not self.has_header:
            return
        try:
            page = read_page()
        except RemoteMemoryError as error:
            raise RemoteMemoryError(
                error.errno or errno.EFAULT,
                f"{error.strerror}{self._other_fabric()}",
                operation=error.operation,
                offset=error.offset,
                kind=error.kind,
                peer=error.peer,
            ) from error
        try:
            header = RegionHeader.unpack(page)
        except OtherVersion as error:  # a fresh handle would lead to the same header
            raise ObmmError(errno.EPROTONOSUPPORT, f"IMPORT: {error}", operation="IMPORT") from error
        except ValueError as error:
            raise self._stale("header", f"the memory has no region header: {error}") from error
        if header.generation != self.source.generation:
            raise self._stale(
                "generation", "the memory belongs to another export (the owner exported again, or restarted)"
            )
        if header.data_offset + header.data_bytes > self.length:
            raise self._stale("length", "the header describes more bytes than the handle's length")
        self._header = header

    def _stale(self, reason: str, problem: str) -> StaleHandleError:
        return StaleHandleError(
            errno.ESTALE,
            f"stale handle for mem_id {self.source.mem_id} of {self.peer} ({reason}): {problem}; fetch a fresh handle"
            f"{self._other_fabric()}",
            operation="IMPORT",
            reason=reason,
        )

    def _other_fabric(self) -> str:
        """What else may be wrong where fabrics are emulated: TCP reaches from one to another, memory does not."""
        backend = self.device.backend
        if not backend.is_emulator:
            return ""
        return f"; or the owner is a node of another emulated fabric than {backend.socket}: both must be of one"
