# SPDX-License-Identifier: Apache-2.0
"""Tables in mapped regions: one mapping, or several regions side by side (Engram specification 5.2)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import struct
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from obmm._native import ffi, lib
from obmm.errors import ObmmError, RemoteMemoryError
from obmm.header import RegionHeader
from obmm.imported import ImportedRegion
from obmm.mapping import Mapping
from obmm.ownership import Right
from obmm.region import Access, Region
from obmm.rows.errors import refused
from obmm.span import SpanFault, SpanShut
from obmm.window import Cache

_WORD = (1 << 64) - 1
_DIGEST_AT, _TABLES_AT, _MANIFEST_BYTES_AT = 48, 44, 80


class MappedMemory:
    """The payloads of mappings that lie side by side, as one range (a `RowMemory`).

    With `owned`, closing it closes the mappings.
    """

    gated = False  # a right that was given up, a lease that was lost

    def __init__(self, mappings: Sequence[Mapping], *, owned: bool) -> None:
        self._mappings = list(mappings)
        self._owned = owned
        first = self._mappings[0]
        self._starts = [0]
        for mapping, following in zip(self._mappings, [*self._mappings[1:], None], strict=True):
            end = self._starts[-1] + mapping.nbytes
            if following is not None and first.address + end != following.address:
                raise refused(f"{following!r} does not follow {mapping!r}", "attach the regions, in order", "5.2")
            self._starts.append(end)
        self.address = first.address
        self.nbytes = self._starts.pop()
        self.nc = first.cache == "nc"
        self.path = "nc" if self.nc else "cacheable"
        lease = first.region.lease
        self.region = (lease.name if lease is not None else first.region.label) or f"mem{first.region.mem_id}"
        self.backend = str(first.region.device.backend)
        self.has_header = first._low == 0 and first.region.data_offset > 0
        self.version_address = first._span.base + RegionHeader.CONTENT_VERSION_OFFSET if self.has_header else 0
        nc_header = first._span.base if self.has_header and self.nc else 0
        self.heartbeat_address = nc_header and nc_header + RegionHeader.HEARTBEAT_OFFSET
        # hosts do not snoop each other (driver specification 16); the owner's host does snoop its own CPUs
        self._incoherent = self.has_header and not self.nc and isinstance(first.region, ImportedRegion)
        self.cached_version = ffi.new("uint64_t *") if self._incoherent else ffi.NULL
        self.recheck = first.watch_header() if self._incoherent else ffi.NULL

    @classmethod
    def side_by_side(cls, regions: Sequence[Region], access: Access, cache: Cache | None) -> MappedMemory:
        """Map the payloads of `regions`, in order, at consecutive addresses: row arithmetic then ignores segments.

        The first one's header is mapped in front; the payloads of all but the last must be whole granules.
        """
        units = [region.granularity for region in regions]
        for region, unit in zip(regions[:-1], units, strict=False):
            if region.nbytes % unit or region.data_offset % unit:
                raise refused(
                    f"{region!r}: a payload of {region.nbytes} bytes at {region.data_offset} cannot lie next to another",
                    "use raw regions (header=False) for segments with 2 MiB blocks, or slot mode in one region",
                    "5.2",
                )
        pad = regions[0].data_offset
        sizes = [region.nbytes for region in regions]
        room = _Room(pad + sum(sizes), max(units))
        mappings: list[Mapping] = []
        try:
            at = room.address
            for i, region in enumerate(regions):
                low = region.data_offset if i else 0
                high = region.data_offset + region.nbytes
                mapping = region.map_bytes(access, low, high, cache, at)
                mappings.append(mapping)
                at += mapping._high - mapping._low
                room.used_up_to(at)
        except BaseException:
            for mapping in mappings:
                mapping.close()
            room.give_back()
            raise
        room.give_back()
        return cls(mappings, owned=True)

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """In order."""
        return tuple(self._mappings)

    @property
    def gates(self) -> list[Any]:
        return [mapping._span.gate for mapping in self._mappings]

    @property
    def segments(self) -> list[int]:
        return [mapping.nbytes for mapping in self._mappings]

    @property
    def alive(self) -> bool:
        return all(not m.closed and (m._lease is None or m._lease.usable) for m in self._mappings)

    @property
    def heartbeat_age(self) -> float | None:
        ages = [mapping._lease.age for mapping in self._mappings if mapping._lease is not None]
        return max(ages, default=None)

    def check(self) -> None:
        for mapping in self._mappings:
            lease = mapping._lease
            # what is as it should be needs no word: this is asked at every gather
            if not mapping._open or not mapping._floor or (lease is not None and not lease.usable):
                mapping._checked(mapping.start, mapping.nbytes, Right.READ)

    def read(self, offset: int, size: int) -> bytes:
        out = bytearray(size)
        done = memoryview(out)
        for mapping, at, length in self.pieces(offset, size):
            mapping.read_into(done[:length], at)
            done = done[length:]
        return bytes(out)

    def write(self, offset: int, data: Any) -> None:
        source = memoryview(data).cast("B")
        for mapping, at, length in self.pieces(offset, len(source)):
            mapping.write(at, source[:length])
            source = source[length:]

    def version(self) -> int:
        if not self.has_header:
            return 0
        mapping = self._mappings[0]
        mapping._checked(mapping.start, 0, Right.READ)
        return self._header_word(RegionHeader.CONTENT_VERSION_OFFSET)

    def header_digest(self) -> bytes:
        if not self.has_header:
            return bytes(32)
        words = [self._header_word(_DIGEST_AT + i) for i in range(0, 32, 8)]
        return struct.pack("=4Q", *words)

    def beat(self) -> None:
        first = self._mappings[0]
        first._checked(first.start, 0, Right.WRITE)
        span = first._span
        try:
            count = span.load(RegionHeader.HEARTBEAT_OFFSET, 8)
            span.store(RegionHeader.HEARTBEAT_OFFSET, 8, count + 1 & _WORD)
        except (SpanFault, SpanShut) as failure:
            raise first._failed("heartbeat", failure) from None

    def begin(self) -> None:
        self._warn_of_readers()
        for mapping in self._mappings:
            if mapping.right < Right.WRITE:
                mapping.acquire("w")
        if self.has_header:
            self._mappings[0].content_version().begin()

    def commit(self, tables: int, manifest_sha256: bytes, manifest_bytes: int) -> None:
        first = self._mappings[0]
        if self.has_header:
            first.content_version().begin()
            for i, word in enumerate(struct.unpack("=4Q", manifest_sha256)):
                first._span.store(_DIGEST_AT + 8 * i, 8, word)
            first._span.store(_TABLES_AT, 4, tables)
            first._span.store(_MANIFEST_BYTES_AT, 8, manifest_bytes)
        # the header says ready when all of the data is there: its mapping comes last
        for mapping in reversed(self._mappings[1:]):
            mapping._write_back(mapping._low)
        first.publish()

    def reread_header(self) -> None:
        if self._incoherent:
            self._mappings[0].drop_cached_header()

    def refresh(self) -> None:
        for mapping in self._mappings:
            mapping.refresh()

    def fault(self, what: str, address: int, kind: str, code: int) -> RemoteMemoryError:
        offset = address - self.address
        mapping = next((m for m in reversed(self._mappings) if m._span.base <= address), self._mappings[0])
        reason = "the memory behind it is gone" if kind == "SIGBUS" else "this process has no right to it"
        return RemoteMemoryError(
            errno.EFAULT,
            f"{what} at payload offset {offset} faulted with {kind} (code {code}) in {mapping!r}: {reason} "
            f"({mapping.region.peer}) [9.9, 17]; fix: close the store and fetch a fresh handle",
            operation="GATHER",
            offset=offset,
            kind=kind,
            peer=mapping.region.peer,
        )

    def view(self, offset: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        pieces = self.pieces(offset, size)
        if len(pieces) != 1:
            raise refused("a view over several regions", "gather the rows, or view one segment's mapping", "13.1")
        mapping, at, _ = pieces[0]
        return mapping.as_numpy(np.uint8, shape, at, strides, writable=False)

    def close(self) -> None:
        if self._owned:
            for mapping in reversed(self._mappings):
                mapping.close()

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

    def _header_word(self, offset: int) -> int:
        found = lib.obmm_gated_load(self._mappings[0]._span.gate, self._mappings[0]._span.base + offset, 8, ffi.NULL)
        if found.result:
            raise self.fault("header load", self._mappings[0]._span.base + offset, "SIGBUS", 0)
        return int(found.value)

    def pieces(self, offset: int, size: int) -> list[tuple[Mapping, int, int]]:
        """(mapping, its payload offset, bytes) of every mapping that [offset, offset + size) touches."""
        if offset < 0 or offset + size > self.nbytes:
            raise refused(
                f"[{offset}, {offset + size}) is outside the payload of {self.nbytes} bytes", "stay inside", "5.2"
            )
        pieces = []
        for mapping, start in zip(self._mappings, self._starts, strict=True):
            low, high = max(offset, start), min(offset + size, start + mapping.nbytes)
            if low < high:
                pieces.append((mapping, mapping.start + low - start, high - low))
        return pieces


class _Room:
    """Reserved addresses that mappings replace from the front on."""

    def __init__(self, length: int, alignment: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._munmap = libc.munmap
        page = mmap.PAGESIZE
        length = -(-length // page) * page
        whole = length + alignment
        start = libc.mmap(None, whole, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)  # MAP_NORESERVE
        if start == ctypes.c_void_p(-1).value:
            code = ctypes.get_errno()
            raise ObmmError(code, f"reserving {whole} bytes of addresses failed", operation="MMAP")
        self.address = -(-start // alignment) * alignment
        self._end = start + whole
        if self.address > start:
            self._munmap(start, self.address - start)
        self._next = self.address

    def used_up_to(self, address: int) -> None:
        """Everything below belongs to mappings now."""
        self._next = address

    def give_back(self) -> None:
        """Unmap what is left."""
        if self._next < self._end:
            self._munmap(self._next, self._end - self._next)
            self._next = self._end
