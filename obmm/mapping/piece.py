# SPDX-License-Identifier: Apache-2.0
"""One mmap of one region: what a mapping is made of, and a strip of several.

Everything here is in region offsets.  Arguments of users and payload offsets are the business of `obmm.mapping.memory`.
"""

from __future__ import annotations

import errno
import mmap
import threading
from typing import Any, Final

from obmm.closing import Owner
from obmm.driver.abi import Cache, CacheOp
from obmm.driver.modelled import fabric_of
from obmm.errors import ClosedError, MappingBusyError, ObmmArgumentError, ObmmError, OwnershipError
from obmm.mapping import checker
from obmm.mapping.delay import DelayedSpan
from obmm.mapping.faults import fault_elsewhere, remote_fault
from obmm.mapping.ownership import Right, RightsMap
from obmm.mapping.span import Span, SpanFault, SpanShut
from obmm.mapping.views import ViewLedger
from obmm.region.header import RegionHeader
from obmm.region.imported import ImportedRegion
from obmm.region.region import Access, Region

RIGHTS: Final = {"none": Right.NONE, "r": Right.READ, "rw": Right.WRITE}
_PROT: Final = {Right.NONE: 0, Right.READ: mmap.PROT_READ, Right.WRITE: mmap.PROT_READ | mmap.PROT_WRITE}
_NONE, _READ, _WRITE = Right.NONE, Right.READ, Right.WRITE
_FORCE_DEADLINE_MS: Final = 30_000
_FORKED = "belongs to the parent of this forked process: open it anew here"


class Piece(Owner):
    """Bytes [`low`, `high`) of a region at `base`, with rights, views and the lock of both.

    `start` and `stop` are the payload offsets that it covers, `payload` is the address of payload offset 0, `floor` the
    least right anywhere: it answers most checks at once.
    """

    def __init__(self, region: Region, access: Access, low: int, high: int, cache: Cache | None) -> None:
        """Bytes [low, high), on borders of the granularity: checked, and not mapped yet."""
        right = _right_of(access)
        if region.lease is not None:
            region.lease.check()
        self.lease = region.lease
        self.region = region
        self.cache: Cache = _cache_of(region, cache)
        self.granularity = region.granularity
        self.writable = access != "r"
        self.nc = self.cache == "nc"
        if self.nc and right is _NONE:
            raise ObmmArgumentError.because(
                "MMAP",
                errno.EINVAL,
                "access='none' on a non-cacheable mapping: its rights never change",
                "'r' or 'rw'",
                "O2",
            )
        self.low, self.high = low, high
        self.lock = threading.RLock()
        self.views = ViewLedger()
        self.data = self.start = self.stop = 0  # the region offset of its payload is not known yet
        # a CC import starts with no right: what an earlier user left in the caches must not be read (rule 16-6)
        self.floor = first = _NONE if region.starts_without_right and not self.nc else right
        self.rights = RightsMap(low, high, first)
        self.check: checker.MappingCheck | None = None
        self.open = self.forked = False
        self._wanted = right

    def map(self, at: int | None) -> None:
        """Map it, once, at an address that is reserved for it (None: anywhere).  Nothing is left of a failure."""
        region, low, high = self.region, self.low, self.high
        span = None
        try:
            fabric = self.fabric = (
                fabric_of(region.device.backend.socket) if isinstance(region, ImportedRegion) else None
            )
            span = self.span = (Span if fabric is None else DelayedSpan)(
                region.device.driver,
                region.mem_id,
                low,
                high,
                _PROT[self.floor],
                pmd=region.pmd,
                writable=self.writable,
                nc=self.nc,
                at=at,
            )
            self.gate, self.quick_gate, self.base = span.gate, span.quick_gate, span.base
            if isinstance(span, DelayedSpan) and fabric is not None:
                span.fabric = fabric
            self.open = True
            if low == 0:
                region.verify(self.read_header_page)
            if self.floor is not self._wanted:
                self.update(low, high, self._wanted, CacheOp.INFER)
            data = self.data = region.data_offset
            self.start = max(low - data, 0)
            self.stop = max(min(high - data, region.nbytes), self.start)
            self.payload = self.base + data - low
            self.check = checker.watch(self, self.rights.runs(low, high))
        except BaseException:
            self.open = False
            if span is not None:
                span.shut()
                span.unmap()
            raise

    @property
    def nbytes(self) -> int:
        """Payload bytes."""
        return self.stop - self.start

    @property
    def end(self) -> int:
        """The address behind its last byte."""
        return self.base + self.high - self.low

    def offset_of(self, address: int) -> int:
        """The region offset of an address."""
        return address - self.base + self.low

    # --- refusals ----------------------------------------------------------------------------------------------------

    def closed_error(self, who: object) -> ClosedError:
        """Why `who` cannot be used any more."""
        return ClosedError.of(who, _FORKED) if self.forked else ClosedError.of(who)

    def refuse_unusable(self, who: object) -> None:
        """ClosedError, LeaseError: nothing may be done with it."""
        if not self.open:
            raise self.closed_error(who)
        if self.lease is not None and not self.lease.usable:
            self.lease.check()

    def refuse_views(self, action: str, low: int, high: int, *, writable_only: bool = False) -> None:
        """MappingBusyError that names the live views of [low, high), if there are any."""
        busy = self.views.over(low, high, writable_only=writable_only)
        if busy:
            kind = "writable views" if writable_only else "views"
            raise MappingBusyError(
                errno.EBUSY,
                f"cannot {action} {self}: {len(busy)} {kind} live: {'; '.join(busy[:5])}"
                f"{'; ...' if len(busy) > 5 else ''}; fix: drop them (del, or let them go out of scope) first",
                operation="MUNMAP",
            )

    def failed(
        self, what: str, failure: SpanFault | SpanShut, who: object = None, payload: int | None = None
    ) -> ObmmError:
        """The error of an access through `who`, whose payload offset 0 lies at the address `payload`."""
        who = self if who is None else who
        if isinstance(failure, SpanShut):
            return self.closed_error(who)
        if failure.elsewhere:
            return fault_elsewhere(f"{what} of {who}", failure.kind, failure.code)
        data = self.data if payload is None else self.offset_of(payload)
        return remote_fault(what, who, failure.offset - data, failure.kind, failure.code, self.region.peer)

    # --- rights ------------------------------------------------------------------------------------------------------

    def change(self, low: int, high: int, right: Right) -> None:
        """Give [low, high) the right `right`, writing back and invalidating as rule 9.8 infers."""
        if right is _WRITE and not self.writable:
            raise ObmmArgumentError.because(
                "UPDATE_RANGE",
                errno.EPERM,
                f"{self} was mapped with access 'r'",
                "map the region with access 'rw'",
                "O6",
            )
        if right < self.rights.strongest(low, high):
            self.refuse_views("release", low, high, writable_only=right is _READ)
        self.update(low, high, right, CacheOp.INFER)

    def update(self, low: int, high: int, right: Right, op: CacheOp) -> None:
        """UPDATE_RANGE over [low, high), and the books."""
        try:
            self.span.update_range(low, high, right.access, op)
            self.rights.set(low, high, right)
        except ObmmError:
            raise
        except BaseException:  # interrupted: it may be the old right or the new one: assume none
            self.rights.set(low, high, _NONE)
            raise
        finally:
            self.floor = self.rights.weakest(self.low, self.high)
        if self.check is not None:
            self.check.rights(self.rights.runs(self.low, self.high))

    def write_back(self, low: int) -> None:
        """W -> R from `low` on; only for cacheable ones."""
        for start, stop, right in list(self.rights.runs(low, self.high)):
            if right is _WRITE:
                self.update(start, stop, _READ, CacheOp.INFER)

    def drop_cached(self) -> None:
        """R -> N -> R: the next load comes from memory."""
        before = self.rights.weakest(self.low, self.high)
        self.update(self.low, self.high, _NONE, CacheOp.INFER)
        self.update(self.low, self.high, before, CacheOp.INFER)

    # --- the region header, which a piece from the region's start has in its first granule -----------------------------

    @property
    def header_end(self) -> int:
        """Behind the granule that holds it."""
        return self.low + self.granularity

    def read_header_page(self) -> bytes:
        """The first page of the region through the fabric, none of it from an old cache line (Engram specification 5.3)."""
        borrow = not self.nc and self.rights.weakest(self.low, self.header_end) is _NONE
        if borrow:
            self.update(self.low, self.header_end, _NONE, CacheOp.INVAL)
            self.update(self.low, self.header_end, _READ, CacheOp.INFER)
        try:
            return self.span.bytes_at(self.low, RegionHeader.SIZE)
        except (SpanFault, SpanShut) as failure:
            raise self.failed("header check", failure) from None
        finally:
            if borrow:
                self.update(self.low, self.header_end, _NONE, CacheOp.INFER)

    def drop_cached_header(self) -> None:
        """Invalidate its granule, rights unchanged: the next load of it comes from memory.

        For readers only: on a range with the right W unwritten lines would be lost.
        """
        with self.lock:
            self.refuse_unusable(self)
            if self.rights.strongest(self.low, self.header_end) is _WRITE:
                raise OwnershipError(errno.EPERM, f"{self} may have unwritten lines in its header: publish first")
            self.update(self.low, self.header_end, self.rights.weakest(self.low, self.header_end), CacheOp.INVAL)

    def watch_header(self) -> Any:
        """``struct obmm_recheck *``, for gathers: `drop_cached_header` and a load of the content version, without Python."""
        with self.lock:
            self.refuse_unusable(self)
            readonly = (
                self.rights.weakest(self.low, self.header_end)
                is self.rights.strongest(self.low, self.header_end)
                is _READ
            )
            return self.span.watch_header(self.header_end, RegionHeader.CONTENT_VERSION_OFFSET, readonly)

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self, force: bool) -> None:
        """`Mapping.close`."""
        with self.lock:
            if not self.open:
                return
            if not force:
                self.refuse_views("close", self.low, self.high)
            try:
                if not self.span.shut(_FORCE_DEADLINE_MS if force else 0):
                    inside = max(1, self.span.inside)  # the last one may have come out meanwhile
                    raise MappingBusyError(
                        errno.EBUSY, f"{self}: {inside} guarded calls are still running", operation="MUNMAP"
                    )
                self._give_up_writes(force)
                if self.views:
                    self.span.seal()
                else:
                    self.span.unmap()
            except BaseException:
                # an interrupt can come after the memory is gone: the span knows
                self.open = self.span.mapped
                if self.open:
                    self.span.reopen()
                raise
            self.open = False
            if self.check is not None:
                checker.sweep()

    def _give_up_writes(self, force: bool) -> None:
        """W -> N by a call whose error somebody sees: unmapping writes back too, but only the kernel log hears if it fails
        (Q27)."""
        if self.nc or self.rights.strongest(self.low, self.high) is not _WRITE:
            return
        try:
            self.update(self.low, self.high, _NONE, CacheOp.INFER)
        except ObmmError as error:
            # ESHUTDOWN: the emulator's server is gone, and the region with it; unmapping is this process's own business
            if not force and error.errno != errno.ESHUTDOWN:
                raise

    def die(self) -> None:
        """In a forked child: the memory is not there; forget it without a call."""
        if self.open:
            self.open, self.forked = False, True
            self.span.die()

    def __repr__(self) -> str:
        state = f"right={self.floor.letter}" if self.open else "closed"
        return f"<Mapping [{self.start}, {self.stop}) {self.cache} {state} of {self.region!r}>"


def _right_of(access: str) -> Right:
    right = RIGHTS.get(access) if isinstance(access, str) else None
    if right is None:
        raise ObmmArgumentError.because("MMAP", errno.EINVAL, f"access={access!r}", "'none', 'r' or 'rw'", "9.7")
    return right


def _cache_of(region: Region, cache: Cache | None) -> Cache:
    if cache is None:
        return region.caches[0]
    if not isinstance(cache, str) or cache not in region.caches:
        raise ObmmArgumentError.because(
            "SHMDEV_OPEN",
            errno.EPERM,
            f"cache={cache!r}: {region!r} can be mapped {' or '.join(region.caches)} only",
            f"cache={region.caches[0]!r}; an import has the kind of its window",
            "OPEN2/OPEN3",
        )
    return cache
