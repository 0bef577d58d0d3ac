# SPDX-License-Identifier: Apache-2.0
"""Mapped addresses and everything that must go with them: descriptor, guard, gate, and their release in order.

A span knows addresses and faults.  Rights, payload offsets and views are the mapping's.
"""

from __future__ import annotations

import errno
import itertools
import signal
from typing import Any

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.driver.abi import CacheOp, MemAccess
from obmm.driver.calls import Driver
from obmm.errors import ObmmError
from obmm.mapping import guard

_identities = itertools.count(1)
_FAULT = ffi.typeof("struct obmm_fault *")
_NULL = ffi.NULL
_load, _copy_from, _copy_to = lib.obmm_gated_load, lib.obmm_gated_copy_from, lib.obmm_gated_copy_to
_FOR_EVER = -1
_SHUT = 1 << 31


class SpanFault(Exception):
    """A guarded access faulted at byte `offset` of the region; `kind` is ``"SIGBUS"`` or ``"SIGSEGV"``.

    `elsewhere`: it was the caller's buffer that faulted, a view of another mapping, at that one's byte `offset`.
    """

    def __init__(self, offset: int, kind: str, code: int, elsewhere: bool) -> None:
        super().__init__(offset, kind, code)
        self.offset, self.kind, self.code, self.elsewhere = offset, kind, code, elsewhere


class SpanShut(Exception):
    """The span is closed: its addresses must not be used any more."""


class Span(Owner):
    """Bytes [low, high) of a region at `base`.  Any number of threads; freed when unreachable or closed.

    A guarded access that fails is made once more to learn where it faults: the usual one allocates nothing.
    """

    def __init__(
        self,
        driver: Driver,
        mem_id: int,
        low: int,
        high: int,
        prot: int,
        *,
        pmd: bool,
        writable: bool,
        nc: bool,
        at: int | None = None,
    ) -> None:
        self.low, self.high, self.nc = low, high, nc
        self._driver = driver
        self.gate = ffi.new("struct obmm_gate *")
        self._recheck: Any = None
        self._header_end, self._header_readonly = low, False
        self._held = driver.new_held()
        try:
            self._fd = driver.open_region(mem_id, writable=writable, non_cacheable=nc, held=self._held)
            self.base = driver.map(self._held, low, high - low, prot, pmd=pmd, at=at)
            self._identity = next(_identities)
            guard.register_held(self._held, self._identity)
            guard.verify()
        except BaseException:
            self.unmap()
            raise

    @property
    def quick_gate(self) -> Any:
        """The gate for accesses that leave this object out."""
        return self.gate

    # --- guarded access, at region offsets ---------------------------------------------------------------------------

    def load(self, offset: int, width: int) -> int:
        """The `width` bytes at `offset` as a word in host order; the offset must be a multiple of the width."""
        address = self.base + offset - self.low
        loaded = _load(self.gate, address, width, _NULL)
        if loaded.result:
            fault = ffi.new(_FAULT)
            loaded = lib.obmm_gated_load(self.gate, address, width, fault)
            self._check(loaded.result, fault)
        value: int = loaded.value
        return value

    def store(self, offset: int, width: int, word: int) -> None:
        """Store `width` bytes of `word` at `offset`, untorn."""
        address = self.base + offset - self.low
        if lib.obmm_gated_store(self.gate, address, width, word, _NULL):
            fault = ffi.new(_FAULT)
            self._check(lib.obmm_gated_store(self.gate, address, width, word, fault), fault)

    def copy_from(self, offset: int, target: Any, size: int) -> None:
        """Fill the cffi buffer `target` from `offset` on."""
        address = self.base + offset - self.low
        if _copy_from(self.gate, target, address, size, self.nc, _NULL):
            fault = ffi.new(_FAULT)
            self._check(_copy_from(self.gate, target, address, size, self.nc, fault), fault)

    def copy_to(self, offset: int, source: Any, size: int) -> None:
        """Copy the cffi buffer `source` to `offset`."""
        address = self.base + offset - self.low
        if _copy_to(self.gate, address, source, size, self.nc, _NULL):
            fault = ffi.new(_FAULT)
            self._check(_copy_to(self.gate, address, source, size, self.nc, fault), fault)

    def bytes_at(self, offset: int, size: int) -> bytes:
        """A guarded copy."""
        out = bytearray(size)
        self.copy_from(offset, ffi.from_buffer(out), size)
        return bytes(out)

    # --- rights ------------------------------------------------------------------------------------------------------

    def update_range(self, low: int, high: int, access: MemAccess, op: CacheOp) -> None:
        """UPDATE_RANGE over region bytes [low, high)."""
        start = self.base + low - self.low
        if low >= self._header_end:
            self._driver.update_range(self._fd, start, start + high - low, access, op)
            return
        before, self._header_readonly = self._header_readonly, False  # unknown if interrupted
        try:
            lib.obmm_recheck_hold(self._recheck)
            self._driver.update_range(self._fd, start, start + high - low, access, op)
            self._header_readonly = access is MemAccess.READONLY
        except ObmmError:
            self._header_readonly = before
            raise
        finally:
            lib.obmm_recheck_resume(self._recheck, self._header_readonly)

    def watch_header(self, end: int, version: int, readonly: bool) -> Any:
        """``struct obmm_recheck *``: how native threads ask memory for the word at region offset `version`.

        It lies in the first granule, which ends at `end` and whose right is R if `readonly`.
        """
        if self._recheck is None:
            place = ffi.new("struct obmm_header_place *")
            place.fd, place.start, place.end = self._fd, self.base, self.base + end - self.low
            place.version = ffi.cast("uint64_t *", self.base + version - self.low)
            place.gate = self.gate
            recheck = lib.obmm_recheck_create(self._driver.sys, place)
            if not recheck:
                raise MemoryError
            self._recheck = ffi.gc(recheck, lib.obmm_recheck_free)
            self._header_end, self._header_readonly = end, readonly
            lib.obmm_recheck_resume(self._recheck, readonly)
        return self._recheck

    # --- closing -----------------------------------------------------------------------------------------------------

    @property
    def inside(self) -> int:
        """Guarded calls that are running now."""
        return int(lib.obmm_gate_inside(self.gate))

    def shut(self, timeout_ms: int = _FOR_EVER) -> bool:
        """Refuse new calls and wait for the running ones.  False, and open again, when they take longer."""
        return not lib.obmm_gate_shut(self.gate, timeout_ms)

    def reopen(self) -> None:
        """After a close that was given up."""
        lib.obmm_gate_reopen(self.gate)

    def unmap(self) -> None:
        """Give everything back; the span must be shut."""
        self._driver.release(self._held)

    @property
    def mapped(self) -> bool:
        """False once unmapped or sealed."""
        return bool(self._held.base)

    def seal(self) -> None:
        """As `unmap`, but the addresses stay taken and inaccessible until this object is gone."""
        self._driver.seal(self._held)

    def die(self) -> None:
        """In a forked child: the memory is not there.  No locks are taken, their owners may be gone."""
        self.gate.state = _SHUT
        self._held.base = _NULL
        self._driver.release(self._held)

    def _check(self, result: int, fault: Any) -> None:
        if not result:
            return
        if result == -errno.EBADF:
            raise SpanShut
        if result != -errno.EFAULT:
            raise OSError(-result, "guarded access refused")
        kind = signal.Signals(fault.signo).name
        raise SpanFault(fault.offset + self.low, kind, fault.code, fault.id != self._identity)
