# SPDX-License-Identifier: Apache-2.0
"""Tables in memory of this host that is not an OBMM region: shared memory, a mapped file, an array."""

from __future__ import annotations

import errno
import itertools
from typing import Any

import numpy as np

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.errors import ClosedError, MappingBusyError, RemoteMemoryError
from obmm.mapping import guard
from obmm.mapping.publishing import PublishedHeader
from obmm.region.header import RegionHeader
from obmm.rows.errors import refused

_identities = itertools.count(1 << 32)


class LocalMemory(Owner):
    """A buffer (``mmap``, ``SharedMemory.buf``, an array) as the home of tables (a `RowMemory`).

    `header`: the buffer begins with a 4 KiB region header, so that readers notice a new publication; the payload
    follows.  `path` labels metrics: "shm" or "file".  Guarded like a region: a mapped file that is cut short ends a
    gather with `RemoteMemoryError`, not the process.

    ObmmArgumentError for a `buffer` that is too small or has another header; ClosedError after `close`.
    """

    nc = False
    gated = True
    fetch = ffi.NULL
    fabric = None

    def __init__(self, buffer: Any, *, header: bool = False, path: str = "shm") -> None:
        self._buffer = ffi.from_buffer(buffer)
        self._readonly = memoryview(buffer).readonly
        self.base = int(ffi.cast("uintptr_t", self._buffer))
        self.high = len(self._buffer)
        offset = RegionHeader.SIZE if header else 0
        if self.high <= offset:
            raise refused(f"a buffer of {self.high} bytes", "room for the header and the tables", "5.3")
        self.address = self.base + offset
        self.nbytes = self.high - offset
        self.path = self.region = path
        self.backend = f"local memory ({path})"
        self.gate = ffi.new("struct obmm_gate *")
        self.has_header = header
        self.versioned = header
        self.version_address = self.base + RegionHeader.CONTENT_VERSION_OFFSET if header else 0
        self.heartbeat_address = self.base + RegionHeader.HEARTBEAT_OFFSET if header else 0
        self.cached_version = ffi.NULL
        self.recheck = ffi.NULL
        self._slot: int | None = guard.register(self.base, self.high, next(_identities))
        guard.verify()

    @staticmethod
    def format(buffer: Any, generation: int) -> None:
        """Owner side: write an empty region header with this `generation` to the start of `buffer`."""
        view = memoryview(buffer).cast("B")
        header = RegionHeader(generation=generation, data_bytes=len(view) - RegionHeader.SIZE)
        view[: RegionHeader.SIZE] = header.pack()

    @property
    def gates(self) -> list[Any]:
        return [self.gate]

    @property
    def segments(self) -> list[int]:
        return [self.nbytes]

    @property
    def alive(self) -> bool:
        return self._slot is not None

    @property
    def heartbeat_age(self) -> float | None:
        return None

    def check(self) -> None:
        if self._slot is None:
            raise ClosedError.of(self)

    def read(self, offset: int, size: int) -> bytes:
        out = bytearray(size)
        self._guarded(lib.obmm_gated_copy_from, ffi.from_buffer(out), self._at(offset, size), size, 0)
        return bytes(out)

    def write(self, offset: int, data: Any) -> None:
        if self._readonly:
            raise refused("a write to a read-only buffer", "attach a writable one", "13.2")
        source = ffi.from_buffer(data)
        at = self._at(offset, len(source))
        self._guarded(lib.obmm_gated_copy_to, at, source, len(source), 0)

    def version(self) -> int:
        return self._header.version() if self.has_header else 0

    def header_digest(self) -> bytes:
        return self._header.digest() if self.has_header else bytes(32)

    def beat(self) -> None:
        if self._readonly:
            raise refused("a heartbeat in a read-only buffer", "attach a writable one", "5.3")
        self._header.beat()

    def begin(self) -> None:
        if self.has_header:
            self._header.begin()

    def commit(self, tables: int, manifest_sha256: bytes, manifest_bytes: int) -> None:
        if self.has_header:
            self._header.begin()
            self._header.describe(tables, manifest_sha256, manifest_bytes)
            self._header.end()

    def reread_header(self) -> None:
        """Nothing to do: this host's caches are coherent."""

    def refresh(self) -> None:
        """Nothing to do: this host's caches are coherent."""

    def fault(self, what: str, address: int, kind: str, code: int) -> RemoteMemoryError:
        offset = address - self.address
        return RemoteMemoryError(
            errno.EFAULT,
            f"{what} at payload offset {offset} faulted with {kind} (code {code}) in {self.backend}; fix: the file or "
            "shared memory was cut short or protected; attach again",
            operation="GATHER",
            offset=offset,
            kind=kind,
            peer=self.backend,
        )

    def view(self, offset: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        self.check()
        start = self._at(offset, size) - self.base
        array = np.frombuffer(ffi.buffer(self._buffer, self.high), np.uint8, size, start)
        view = np.lib.stride_tricks.as_strided(array, shape, strides, writeable=False)
        view.flags.writeable = False
        return view

    def close(self) -> None:
        """Refuse further gathers; the buffer stays the caller's.  MappingBusyError while gathers run."""
        if self._slot is None:
            return
        if lib.obmm_gate_shut(self.gate, 0):
            raise MappingBusyError(errno.EBUSY, f"{self.backend}: gathers are still running", operation="GATHER")
        guard.unregister(self._slot)
        self._slot = None

    def __del__(self) -> None:
        slot = getattr(self, "_slot", None)
        if slot is not None:
            guard.unregister(slot)

    def __repr__(self) -> str:
        return f"<LocalMemory {self.path} {self.nbytes} bytes>"

    # --- inside ---------------------------------------------------------------------------------------------------

    def load(self, offset: int, width: int) -> int:
        """Between rooms: a word of the header, for `PublishedHeader`."""
        fault = ffi.new("struct obmm_fault *")
        found = lib.obmm_gated_load(self.gate, self.base + offset, width, fault)
        self._checked(found.result, fault)
        return int(found.value)

    def store(self, offset: int, width: int, word: int) -> None:
        """Between rooms: a word of the header, for `PublishedHeader`."""
        self._guarded(lib.obmm_gated_store, self.base + offset, width, word)

    def _guarded(self, function: Any, *arguments: Any) -> None:
        fault = ffi.new("struct obmm_fault *")
        self._checked(function(self.gate, *arguments, fault), fault)

    def _checked(self, result: int, fault: Any) -> None:
        if result == -errno.EBADF:
            raise ClosedError.of(self)
        if result:
            raise self.fault("access", fault.address, guard.fault_kind(fault.signo), fault.code)

    @property
    def _header(self) -> PublishedHeader:
        return PublishedHeader(self)

    def _at(self, offset: int, size: int) -> int:
        if offset < 0 or size < 0 or offset + size > self.nbytes:
            raise refused(f"[{offset}, {offset + size}) of {self.nbytes} bytes", "stay inside the payload", "5.2")
        return self.address + offset
