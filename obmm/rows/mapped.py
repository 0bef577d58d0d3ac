# SPDX-License-Identifier: Apache-2.0
"""Tables in mapped regions: one mapping, or several regions side by side (Engram specification 5.2)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from obmm._native import ffi
from obmm.closing import Owner
from obmm.driver.abi import Cache
from obmm.errors import RemoteMemoryError
from obmm.mapping import Mapping, Memory, Right, Strip
from obmm.mapping.pieces import fabric_played, fault_at, gates_of, header_of, readable
from obmm.region.imported import ImportedRegion
from obmm.region.region import Access, Region


class MappedMemory(Owner):
    """The payloads of mappings that lie side by side, or those of another `obmm.mapping.Memory` (a `RowMemory`).

    With `owned`, closing it closes the mappings.

    `mappings`: those, or one `Strip`.  Errors as for `RowMemory`.

    >>> with a.export_region("2MiB") as region:
    ...     memory = obmm.rows.MappedMemory.side_by_side([region], "rw", cache="cc")
    ...     len(memory.mappings), memory.nbytes == region.nbytes, memory.path
    ...     memory.close()
    (1, True, 'cacheable')
    """

    gated = False  # a right that was given up, a lease that was lost
    fetch = ffi.NULL

    def __init__(self, mappings: Sequence[Mapping] | Memory, *, owned: bool) -> None:
        memory = self._memory = mappings if isinstance(mappings, Memory) else Strip(mappings, owned=owned)
        self._owned = owned
        self._mappings = memory.mappings if isinstance(memory, Strip) else (memory,)
        self.address, self.nbytes = memory.address, memory.nbytes
        self.nc = memory.cache == "nc"
        self.path = "nc" if self.nc else "cacheable"
        region = memory.region
        self.region = (region.lease.name if region.lease is not None else region.label) or f"mem{region.mem_id}"
        self.backend = str(region.device.backend)
        self.fabric = fabric_played(memory)
        self.check = readable(memory)
        self.gates = gates_of(memory)
        header = self._header = header_of(memory)
        self.version_address = header.version_address if header is not None else 0
        self.versioned = header is not None
        self.heartbeat_address = header.heartbeat_address if header is not None and self.nc else 0
        self.cached_version: Any = ffi.NULL
        self.recheck: Any = ffi.NULL
        # hosts do not snoop each other (driver specification 16); the owner's host does snoop its own CPUs
        if header is not None and not self.nc and isinstance(region, ImportedRegion):
            self.cached_version, self.recheck = ffi.new("uint64_t *"), header.watch()

    @classmethod
    def side_by_side(cls, regions: Sequence[Region], access: Access, cache: Cache | None) -> Self:
        """`Strip.side_by_side` of `regions`, with its `access` and `cache`: row arithmetic then ignores segments."""
        strip = Strip.side_by_side(regions, access, cache)
        try:
            return cls(strip, owned=True)
        except BaseException:
            strip.close()
            raise

    @property
    def mappings(self) -> tuple[Memory, ...]:
        """In order."""
        return self._mappings

    @property
    def segments(self) -> list[int]:
        return [mapping.nbytes for mapping in self._mappings]

    @property
    def alive(self) -> bool:
        leases = (mapping.region.lease for mapping in self._mappings)
        return not self._memory.closed and all(lease is None or lease.usable for lease in leases)

    @property
    def heartbeat_age(self) -> float | None:
        leases = (mapping.region.lease for mapping in self._mappings)
        return max((lease.age for lease in leases if lease is not None), default=None)

    def read(self, offset: int, size: int) -> bytes:
        return self._memory.read(self._memory.start + offset, size)

    def write(self, offset: int, data: Any) -> None:
        self._memory.write(self._memory.start + offset, data)

    def version(self) -> int:
        return self._header.version() if self._header is not None else 0

    def header_digest(self) -> bytes:
        return self._header.digest() if self._header is not None else bytes(32)

    def beat(self) -> None:
        if self._header is not None:
            self._header.beat()

    def begin(self) -> None:
        self._warn_of_readers()
        if self._memory.right < Right.WRITE:
            self._memory.acquire("w")
        if self._header is not None:
            self._header.begin()

    def commit(self, tables: int, manifest_sha256: bytes, manifest_bytes: int) -> None:
        if self._header is not None:
            self._header.begin()
            self._header.describe(tables, manifest_sha256, manifest_bytes)
        self._memory.publish()

    def reread_header(self) -> None:
        if self._header is not None and self.recheck:
            self._header.drop_cached()

    def refresh(self) -> None:
        self._memory.refresh()

    def fault(self, what: str, address: int, kind: str, code: int) -> RemoteMemoryError:
        return fault_at(self._memory, what, address, kind, code)

    def view(self, offset: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return self._memory.as_numpy(np.uint8, shape, self._memory.start + offset, strides, writable=False)

    def close(self) -> None:
        if self._owned:
            self._memory.close()

    def _warn_of_readers(self) -> None:
        """An importer with a right must not be written under (driver specification 16, rule 1)."""
        for mapping in self._mappings:
            if not self.nc and mapping.right < Right.WRITE and mapping.region.holds:
                warnings.warn(
                    f"writing to {mapping.region!r} while {'; '.join(mapping.region.holds)}: cacheable readers must let go "
                    "first [driver specification 16, rule 4]; what they gather meanwhile fails as stale",
                    RuntimeWarning,
                    stacklevel=4,
                )
