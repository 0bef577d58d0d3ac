# SPDX-License-Identifier: Apache-2.0
"""A region's memory in this process: guarded access, rights, views (driver specification 9, docs/safety.md)."""

from __future__ import annotations

import errno
import math
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from obmm import checker
from obmm._native import ffi, lib
from obmm.abi import CacheOp
from obmm.arguments import U64, whole, wrong_type
from obmm.buffers import holds_objects
from obmm.closing import close_on_exit
from obmm.errors import (
    ClosedError,
    MappingBusyError,
    ObmmArgumentError,
    ObmmError,
    OwnershipError,
    RemoteMemoryError,
)
from obmm.header import RegionHeader
from obmm.ownership import Right, RightsMap
from obmm.publishing import ContentVersion
from obmm.region import Access, Region
from obmm.rowview import RowView, refuse_bad_rows
from obmm.scalars import SCALARS
from obmm.span import Span, SpanFault, SpanShut
from obmm.views import ViewLedger
from obmm.window import Cache

_INITIAL: Final = {"none": Right.NONE, "r": Right.READ, "rw": Right.WRITE}
_ACQUIRED: Final = {"r": Right.READ, "w": Right.WRITE}
_PROT: Final = {Right.NONE: 0, Right.READ: mmap.PROT_READ, Right.WRITE: mmap.PROT_READ | mmap.PROT_WRITE}
_NULL, _BYTES, _from_buffer = ffi.NULL, ffi.typeof("char[]"), ffi.from_buffer
_load, _copy_from = lib.obmm_gated_load, lib.obmm_gated_copy_from
# members bound once: an attribute of an Enum class costs more than the load itself
_NONE, _READ, _WRITE = Right.NONE, Right.READ, Right.WRITE
_FORCE_DEADLINE_MS: Final = 30_000


class Mapping:
    """Bytes of a region at addresses of this process.  Made by `Region.map`.

    Offsets count from the region's payload (`region.data_offset`), in bytes; the mapping covers payload offsets
    [`start`, `stop`).  `load`, `store`, `read`, `read_into`, `write` and `snapshot` are *guarded*: memory that is gone
    raises `RemoteMemoryError`.  Views (`view`, `as_numpy`, DLPack) are *not*: touching one whose peer died kills the
    process, and handing one to a system call may crash the **kernel** on hardware (driver specification 17); hand
    `snapshot()` to system calls.

    On cacheable (CC) mappings a page is readable after `acquire("r")` and writable after `acquire("w")`; nobody but the
    application keeps two nodes from writing at once (driver specification 16).  On non-cacheable (NC) mappings there is
    nothing to acquire, and phases are barriers.
    """

    def __init__(
        self, region: Region, access: Access, low: int, high: int, cache: Cache | None, at: int | None = None
    ) -> None:
        """Map bytes [low, high) of the region, already on borders of its granularity; `at` is an address reserved for it."""
        right = _right_of(access)
        if region.lease is not None:
            region.lease.check()
        self._lease = region.lease
        self.region = region
        self.cache: Cache = _cache_of(region, cache)
        self.granularity = region.granularity
        self.writable = access != "r"
        self._nc = self.cache == "nc"
        if self._nc and right is _NONE:
            raise ObmmArgumentError.because(
                "MMAP",
                errno.EINVAL,
                "access='none' on a non-cacheable mapping: its rights never change",
                "'r' or 'rw'",
                "O2",
            )
        self._low, self._high = low, high
        self._lock = threading.RLock()
        self._views = ViewLedger()
        self._offset = self.start = self.stop = 0
        # a CC import starts with no right: what an earlier user left in the caches must not be read (rule 16-6)
        first = _NONE if region.starts_without_right and not self._nc else right
        self._rights = RightsMap(low, high, first)
        self._floor = first  # the least right anywhere: answers most checks at once
        self._check: checker.MappingCheck | None = None
        self._open = False
        span = None
        try:
            span = self._span = Span(
                region.device.driver,
                region.mem_id,
                low,
                high,
                _PROT[first],
                pmd=region.pmd,
                writable=self.writable,
                nc=self._nc,
                at=at,
            )
            self._open = True
            if low == 0:
                region.verify(self)
            if first is not right:
                self._update(low, high, right, CacheOp.INFER)
            self._offset = region.data_offset
            self.start = max(low - self._offset, 0)
            self.stop = max(min(high - self._offset, region.nbytes), self.start)
            self._payload = self._span.base + self._offset - low
            self._gate = self._span.gate
            self._check = checker.watch(self, self._rights.runs(low, high))
        except BaseException:
            self._open = False
            if span is not None:
                span.shut()
                span.unmap()
            raise

    # --- description -------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Payload bytes that the mapping covers."""
        return self.stop - self.start

    @property
    def address(self) -> int:
        """Where payload offset `start` lies in this process.  Access through it is unguarded."""
        self._check_open()
        return self._span.base + self._offset + self.start - self._low

    @property
    def closed(self) -> bool:
        """True once unmapped, or in a forked child."""
        return not self._open

    @property
    def readonly(self) -> bool:
        """True when the mapping can never be written through."""
        return not self.writable

    @property
    def right(self) -> Right:
        """The least right over the whole mapping."""
        return self._floor

    @property
    def views(self) -> tuple[str, ...]:
        """The live views, each in words."""
        return self._views.over(self._low, self._high)

    # --- guarded access ----------------------------------------------------------------------------------------------

    def load(self, dtype: str, offset: int) -> int | float:
        """One naturally aligned, untorn load: ``m.load("<u8", 0)``.

        `dtype` is a NumPy scalar name of 1, 2, 4 or 8 bytes.  RemoteMemoryError if the memory is gone.
        """
        try:
            scalar = SCALARS[dtype]
        except (KeyError, TypeError):
            raise _bad_scalar(dtype) from None
        width = scalar.width
        lease = self._lease
        if (
            type(offset) is int
            and self._floor
            and self._open
            and self.start <= offset <= self.stop - width
            and (lease is None or lease.usable)
        ):
            loaded = _load(self._gate, self._payload + offset, width, _NULL)
            if not loaded.result:
                word: int = loaded.value
                return word if scalar.decode is None else scalar.decode(word)
        # anything unusual: checked step by step, so that the error says what it was
        low = self._checked(offset, width, _READ)
        if offset % width:
            raise _misaligned("load", offset, width)
        try:
            word = self._span.load(low, width)
        except (SpanFault, SpanShut) as failure:
            raise self._failed("load", failure) from None
        return word if scalar.decode is None else scalar.decode(word)

    def store(self, dtype: str, offset: int, value: int | float) -> None:
        """One naturally aligned, untorn store, as `load`."""
        try:
            scalar = SCALARS[dtype]
        except (KeyError, TypeError):
            raise _bad_scalar(dtype) from None
        width = scalar.width
        low = self._checked(offset, width, _WRITE)
        if offset % width:
            raise _misaligned("store", offset, width)
        try:
            word = scalar.encode(value)
        except (TypeError, ValueError) as error:
            raise wrong_type("ACCESS", "value", value, f"what {dtype!r} holds: {error}") from None
        try:
            self._span.store(low, width, word)
        except (SpanFault, SpanShut) as failure:
            raise self._failed("store", failure) from None

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """A guarded copy of `size` bytes at `offset` (default: to the end)."""
        offset = whole("ACCESS", "offset", offset)
        size = self.stop - offset if size is None else whole("ACCESS", "size", size)
        self._checked(offset, size, _READ)  # before anything is allocated
        out = bytearray(size)
        self.read_into(out, offset)
        return bytes(out)

    snapshot = read
    """The copy to hand to system calls: sockets, files, other processes."""

    def read_into(self, out: Any, offset: int = 0) -> int:
        """Fill the writable buffer `out` from `offset` on, guarded -> bytes read.

        On RemoteMemoryError `out` holds an unspecified prefix.
        """
        try:
            target = _from_buffer(_BYTES, out, True)
        except (TypeError, BufferError, ValueError) as error:
            raise _no_buffer("out", out, "a writable", error) from None
        if type(out) is not bytearray and holds_objects(out):
            raise ObmmArgumentError.because(
                "ACCESS", errno.EINVAL, "out is an array of Python objects", "bytes, or numbers"
            )
        size = len(target)
        lease = self._lease
        if (
            type(offset) is int
            and self._floor
            and self._open
            and self.start <= offset <= self.stop - size
            and (lease is None or lease.usable)
            and not _copy_from(self._gate, target, self._payload + offset, size, self._nc, _NULL)
        ):
            return size
        low = self._checked(offset, size, _READ)
        try:
            self._span.copy_from(low, target, size)
        except (SpanFault, SpanShut) as failure:
            raise self._failed("read", failure) from None
        return size

    def write(self, offset: int, data: Any) -> int:
        """Copy the buffer `data` to `offset`, guarded -> bytes written."""
        try:
            source = _from_buffer(_BYTES, data)
        except (TypeError, BufferError, ValueError) as error:
            raise _no_buffer("data", data, "a", error) from None
        size = len(source)
        low = self._checked(offset, size, _WRITE)
        try:
            self._span.copy_to(low, source, size)
        except (SpanFault, SpanShut) as failure:
            raise self._failed("write", failure) from None
        return size

    def rows(
        self, row_bytes: int, row_stride: int | None = None, n_rows: int | None = None, offset: int | None = None
    ) -> RowView:
        """Rows of `row_bytes`, `row_stride` bytes apart (default: packed), from `offset` on: ``m.rows(dim * 4).gather(ids)``."""
        row_bytes = whole("GATHER", "row_bytes", row_bytes)
        stride = row_bytes if row_stride is None else whole("GATHER", "row_stride", row_stride, high=U64)
        offset = self.start if offset is None else whole("GATHER", "offset", offset)
        if n_rows is not None:
            n_rows = whole("GATHER", "n_rows", n_rows)
        else:
            n_rows = (self.stop - offset - row_bytes) // stride + 1 if stride > 0 else 0
        refuse_bad_rows(self, row_bytes, stride, n_rows, offset)
        return RowView(self, row_bytes, stride, n_rows, offset)

    def gather(self, table: Any, offset: int, extent: int, ids: npt.NDArray[Any], target: Any) -> None:
        """For `RowView`: rows `ids` of the native `table` at payload bytes [offset, offset + extent) into `target`."""
        low = self._checked(offset, extent, _READ)
        try:
            bad = self._span.gather(table, low, ids, target)
        except (SpanFault, SpanShut) as failure:
            raise self._failed("gather", failure) from None
        if bad:
            raise ObmmArgumentError.because(
                "GATHER",
                errno.ERANGE,
                f"id {bad[1]} at index {bad[0]}",
                f"row numbers of 0..{table.rows - 1}",
                "docs/rows.md",
            )

    # --- ownership ---------------------------------------------------------------------------------------------------

    def acquire(self, right: str, start: int | None = None, stop: int | None = None) -> None:
        """Take the right "r" or "w" over payload bytes [start, stop) (default: everything mapped).

        Never invalidates: what makes old cache lines go away is the release that came before (rule 9.8).  The range must
        lie on borders of the granularity; `round_out` gives one that does.
        """
        wanted = _ACQUIRED.get(right) if isinstance(right, str) else None
        if wanted is None:
            raise ObmmArgumentError.because("UPDATE_RANGE", errno.EINVAL, f"right={right!r}", "'r' or 'w'", "O7")
        self._change(start, stop, wanted)

    def release(self, start: int | None = None, stop: int | None = None, *, keep: str = "none") -> None:
        """Give rights up: to "none", or to "r" with ``keep="r"``.  Writes back and invalidates as rule 9.8 infers."""
        if not isinstance(keep, str) or keep not in ("none", "r"):
            raise ObmmArgumentError.because("UPDATE_RANGE", errno.EINVAL, f"keep={keep!r}", "'none' or 'r'", "O7")
        self._change(start, stop, _INITIAL[keep])

    def round_out(self, start: int, stop: int) -> tuple[int, int]:
        """The smallest payload range on borders of the granularity that contains [start, stop).

        Its start can be negative: the header shares the first granule.
        """
        start, stop = whole("UPDATE_RANGE", "start", start), whole("UPDATE_RANGE", "stop", stop)
        unit = self.granularity
        low = (start + self._offset) // unit * unit - self._offset
        high = -(-(stop + self._offset) // unit) * unit - self._offset
        return max(low, self._low - self._offset), min(high, self._high - self._offset)

    @contextmanager
    def reading(self, start: int | None = None, stop: int | None = None) -> Iterator[Self]:
        """A phase in which [start, stop) may be loaded: N -> R, and back to what it was."""
        with self._phase(_READ, start, stop):
            yield self

    @contextmanager
    def writing(self, start: int | None = None, stop: int | None = None) -> Iterator[Self]:
        """A phase in which [start, stop) may be stored to: -> W, and back to what it was, written back.

        Readers elsewhere must hold nothing; `publish` tells them that the content is complete.
        """
        with self._phase(_WRITE, start, stop):
            yield self

    def publish(self) -> None:
        """Make what was written ready for readers: header version odd, data written back, version even and state ready,
        and the right falls from W to R (Engram specification 5.3).  Call it before telling anybody.

        MappingBusyError while writable views live.  On a raw region only the data is written back; on NC all of it is
        barriers.
        """
        with self._lock:
            self._check_open()
            self._refuse_views("publish", self._low, self._high, writable_only=True)
            if self.region.generation is None:
                self._write_back(self._low)
            elif self._low == 0:
                self._publish()
            else:
                with self.region.map_bytes("rw", 0, self.granularity, self.cache) as head:
                    version = head.content_version()
                    version.begin()
                    self._write_back(self._low)
                    version.end()

    def refresh(self) -> None:
        """Drop what is cached and read anew: R -> N -> R.  MappingBusyError while views live."""
        with self._lock:
            self._check_open()
            if self._nc:
                lib.obmm_fence_full()
                return
            self._refuse_views("refresh", self._low, self._high)
            before = self.right
            if before is _WRITE:
                raise OwnershipError(errno.EPERM, f"{self} has unpublished writes: publish or release them first")
            self._update(self._low, self._high, _NONE, CacheOp.INFER)
            self._update(self._low, self._high, before, CacheOp.INFER)

    # --- views -------------------------------------------------------------------------------------------------------

    def view(self, start: int | None = None, stop: int | None = None) -> memoryview:
        """Payload bytes [start, stop) without a copy; writable where the right is W.  Unguarded (see the class)."""
        low = self.start if start is None else whole("VIEW", "start", start)
        high = self.stop if stop is None else whole("VIEW", "stop", stop)
        return self._buffer(low, high, None, f"memoryview [{low}, {high})")

    def as_numpy(
        self,
        dtype: npt.DTypeLike = np.uint8,
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
        *,
        writable: bool | None = None,
    ) -> npt.NDArray[Any]:
        """A zero-copy array over payload bytes from `offset` on.  Unguarded (see the class).

        `shape` defaults to all whole items that follow; `strides` in bytes, for example ``(row_stride, 1)``.  Writable
        where the right is W, unless `writable` is False.  OwnershipError where the right would make a load fault.
        """
        kind = _plain_dtype(dtype)
        offset = whole("VIEW", "offset", offset)
        shape = ((self.stop - offset) // kind.itemsize,) if shape is None else _numbers("shape", shape)
        strides = None if strides is None else _numbers("strides", strides)
        size = _extent(shape, strides, kind.itemsize)
        buffer = self._buffer(offset, offset + size, writable, f"array {kind} {shape} at {offset}")
        return np.ndarray(shape, kind, buffer, 0, strides)

    def as_torch(
        self,
        dtype: Any = None,
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
        *,
        allow_readonly: bool = False,
    ) -> Any:
        """A torch tensor without a copy (torch is imported here).  Unguarded (see the class).

        torch knows no read-only tensor: where the right is R, a store through it would kill the process, so that needs
        ``allow_readonly=True``.  `dtype` is a torch dtype, default uint8.
        """
        try:
            import torch
        except ImportError as error:
            raise ImportError(
                "as_torch() needs torch, which is not installed: pip install torch, or use as_numpy()"
            ) from error
        kind = torch.uint8 if dtype is None else dtype
        width = torch.empty((), dtype=kind).element_size()
        if shape is None:
            shape = ((self.stop - whole("VIEW", "offset", offset)) // width,)
        shape = _numbers("shape", shape)
        array = self.as_numpy(np.uint8, math.prod(shape) * width, offset)
        if not array.flags.writeable and not allow_readonly:
            raise OwnershipError(
                errno.EPERM,
                f"{self}: a tensor over read-only memory looks writable and a store through it kills the process; "
                "pass allow_readonly=True, or acquire('w')",
            )
        return torch.from_dlpack(array).view(kind).reshape(shape)

    def __buffer__(self, flags: int) -> memoryview:
        return self.view()

    def __dlpack__(self, **options: Any) -> Any:
        """DLPack through NumPy: a read-only mapping is exported only to consumers of DLPack 1.0 and later."""
        return self.as_numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self, force: bool = False) -> None:
        """Unmap.  Idempotent.

        MappingBusyError, and nothing changed, while views live or other threads are inside guarded calls;
        ``force=True`` waits for those calls, then replaces the memory by inaccessible pages, so that late access
        through a view is a SIGSEGV and never somebody else's memory.

        What was written is written back first; an ObmmError of that step (the peer is gone) leaves the mapping open
        unless forced.
        """
        with self._lock:
            if not self._open:
                return
            if not force:
                self.refuse_if_busy("close")
            try:
                if not self._span.shut(_FORCE_DEADLINE_MS if force else 0):
                    raise MappingBusyError(
                        errno.EBUSY, f"{self}: {self._span.inside} guarded calls are still running", operation="MUNMAP"
                    )
                self._give_up_writes(force)
                if self._views:
                    self._span.seal()
                else:
                    self._span.unmap()
            except BaseException:
                # an interrupt can come after the memory is gone: the span knows
                self._open = self._span.mapped
                if self._open:
                    self._span.reopen()
                raise
            self._open = False
            if self._check is not None:
                self._check.closed()

    def _give_up_writes(self, force: bool) -> None:
        """W -> N by a call whose error somebody sees: unmapping writes back too, but only the kernel log hears if it fails
        (Q27)."""
        if self._nc or self._rights.strongest(self._low, self._high) is not _WRITE:
            return
        try:
            self._update(self._low, self._high, _NONE, CacheOp.INFER)
        except ObmmError:
            if not force:
                raise

    def refuse_if_busy(self, action: str) -> None:
        """MappingBusyError that names the live views, if there are any."""
        self._refuse_views(action, self._low, self._high)

    def die(self) -> None:
        """In a forked child: the memory is not there; forget it without a call to anybody."""
        if self._open:
            self._open = False
            self._span.die()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_on_exit(self, error)

    def __bool__(self) -> bool:
        return self._open

    def __repr__(self) -> str:
        state = f"right={self.right.letter}" if self._open else "closed"
        return f"<Mapping [{self.start}, {self.stop}) {self.cache} {state} of {self.region!r}>"

    # --- for Region --------------------------------------------------------------------------------------------------

    def read_header_page(self) -> bytes:
        """The first page of the region through the fabric, none of it from an old cache line (Engram specification 5.3)."""
        end = self._low + self.granularity
        borrow = not self._nc and self._rights.weakest(self._low, end) is _NONE
        if borrow:
            self._update(self._low, end, _NONE, CacheOp.INVAL)
            self._update(self._low, end, _READ, CacheOp.INFER)
        try:
            return self._span.bytes_at(self._low, RegionHeader.SIZE)
        except (SpanFault, SpanShut) as failure:
            raise self._failed("header check", failure) from None
        finally:
            if borrow:
                self._update(self._low, end, _NONE, CacheOp.INFER)

    def drop_cached_header(self) -> None:
        """Invalidate the granule that holds the header, rights unchanged: the next load of it comes from memory.

        For readers only: on a range with the right W unwritten lines would be lost.
        """
        with self._lock:
            self._check_open()
            low, end = self._low, self._low + self.granularity
            if self._rights.strongest(low, end) is _WRITE:
                raise OwnershipError(errno.EPERM, f"{self} may have unwritten lines in its header: publish first")
            self._update(low, end, self._rights.weakest(low, end), CacheOp.INVAL)

    def watch_header(self) -> Any:
        """``struct obmm_recheck *``, for gathers: `drop_cached_header` and a load of the content version, without Python.

        The mapping must start at the region's start.
        """
        with self._lock:
            self._check_open()
            end = self._low + self.granularity
            readonly = self._rights.weakest(self._low, end) is self._rights.strongest(self._low, end) is _READ
            return self._span.watch_header(end, RegionHeader.CONTENT_VERSION_OFFSET, readonly)

    def write_header_page(self, page: bytes) -> None:
        """Replace the region's header; the mapping must start at the region's start and have the right W."""
        try:
            self._span.copy_to(0, ffi.from_buffer(page), len(page))
        except (SpanFault, SpanShut) as failure:
            raise self._failed("header write", failure) from None

    def content_version(self) -> ContentVersion:
        """The header's sequence lock; the mapping must start at the region's start and have the right W there."""

        def flush() -> None:
            if not self._nc:
                self._update(self._low, self._low + self.granularity, _WRITE, CacheOp.WB_ONLY)

        return ContentVersion(self._span, flush)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _checked(self, offset: int, size: int, needed: Right) -> int:
        """The region offset of payload byte `offset`, if [offset, offset + size) is mapped with at least the right `needed`."""
        if not self._open:
            raise ClosedError.of(self)
        if self._lease is not None and not self._lease.usable:
            self._lease.check()
        if type(offset) is not int:
            offset = whole("ACCESS", "offset", offset)
        if offset < self.start or size < 0 or offset + size > self.stop:
            raise ObmmArgumentError.because(
                "ACCESS",
                errno.EINVAL,
                f"[{offset}, {offset + size}) is outside the mapped payload [{self.start}, {self.stop})",
                "offsets count from the payload, in bytes",
            )
        low = offset + self._offset
        if self._floor < needed and self._rights.weakest(low, low + size) < needed:
            raise self._no_right(needed, offset, size)
        return low

    def _no_right(self, needed: Right, offset: int, size: int) -> OwnershipError:
        what = "loaded" if needed is _READ else "stored to"
        if needed is _WRITE and not self.writable:
            fix = "map the region with access 'rw'"
        else:
            fix = f"acquire({'r' if needed is _READ else 'w'!r}) first, or use a reading()/writing() phase"
        return OwnershipError(
            errno.EACCES,
            f"[{offset}, {offset + size}) of {self} cannot be {what}: it would be a SIGSEGV [9.9]; fix: {fix}",
        )

    def _failed(self, what: str, failure: SpanFault | SpanShut) -> ObmmError:
        if isinstance(failure, SpanShut):
            return ClosedError.of(self)
        if failure.elsewhere:
            return RemoteMemoryError(
                errno.EFAULT,
                f"{what} between {self} and a view of other remote memory: that one faulted with {failure.kind} (code "
                f"{failure.code}) [9.9, 17]; fix: copy from a snapshot() of it, which says where",
                operation="ACCESS",
                kind=failure.kind,
            )
        offset = failure.offset - self._offset
        reason = "the memory behind it is gone" if failure.kind == "SIGBUS" else "this process has no right to it"
        return RemoteMemoryError(
            errno.EFAULT,
            f"{what} at offset {offset} of {self} faulted with {failure.kind} (code {failure.code}): {reason} "
            f"({self.region.peer}) [9.9, 17]; fix: close the mapping and fetch a fresh handle",
            operation="ACCESS",
            offset=offset,
            kind=failure.kind,
            peer=self.region.peer,
        )

    def _granules(self, start: int | None, stop: int | None) -> tuple[int, int]:
        """Region offsets of a payload range that ownership can change: mapped, and on borders of the granularity."""
        low = self._low if start is None else whole("UPDATE_RANGE", "start", start) + self._offset
        high = self._high if stop is None else whole("UPDATE_RANGE", "stop", stop) + self._offset
        if low >= high or low < self._low or high > self._high:
            raise ObmmArgumentError.because(
                "UPDATE_RANGE",
                errno.EFAULT,
                f"[{start}, {stop}) is empty or not inside the mapping [{self._low - self._offset}, {self._high - self._offset})",
                "a range inside this mapping",
                "O4/O9",
            )
        if low % self.granularity or high % self.granularity:
            rounded = self.round_out(low - self._offset, high - self._offset)
            raise ObmmArgumentError.because(
                "UPDATE_RANGE",
                errno.EINVAL,
                f"[{start}, {stop}) is not on borders of {self.granularity} bytes",
                f"round explicitly: round_out gives {rounded}",
                "O5",
            )
        return low, high

    def _change(self, start: int | None, stop: int | None, right: Right) -> None:
        with self._lock:
            self._check_open()
            if self._nc:
                raise ObmmArgumentError.because(
                    "UPDATE_RANGE",
                    errno.EINVAL,
                    "a non-cacheable mapping has no ownership",
                    "plain access with barriers; reading(), writing(), publish() and refresh() give them",
                    "O2",
                )
            low, high = self._granules(start, stop)
            self._update_checked(low, high, right)

    def _update_checked(self, low: int, high: int, right: Right) -> None:
        if right is _WRITE and not self.writable:
            raise ObmmArgumentError.because(
                "UPDATE_RANGE",
                errno.EPERM,
                f"{self} was mapped with access 'r'",
                "map the region with access 'rw'",
                "O6",
            )
        if right < self._rights.strongest(low, high):
            self._refuse_views("release", low, high, writable_only=right is _READ)
        self._update(low, high, right, CacheOp.INFER)

    def _update(self, low: int, high: int, right: Right, op: CacheOp) -> None:
        """UPDATE_RANGE over region bytes [low, high), and the books."""
        try:
            self._span.update_range(low, high, right.access, op)
            self._rights.set(low, high, right)
        except ObmmError:
            raise
        except BaseException:  # interrupted: the old right or the new one, nobody knows; none is safe to assume
            self._rights.set(low, high, _NONE)
            raise
        finally:
            self._floor = self._rights.weakest(self._low, self._high)
        if self._check is not None:
            self._check.rights(self._rights.runs(self._low, self._high))

    @contextmanager
    def _phase(self, right: Right, start: int | None, stop: int | None) -> Iterator[None]:
        with self._lock:
            self._check_open()
            if self._nc:
                if right is _WRITE and not self.writable:
                    raise self._no_right(right, self.start, self.nbytes)
                lib.obmm_fence_load()
                before = None
            else:
                low, high = self._granules(start, stop)
                before = [run for run in self._rights.runs(low, high) if run[2] < right]
                for run_low, run_high, _ in before:
                    self._update_checked(run_low, run_high, right)
        try:
            yield
        finally:
            if before is None:
                lib.obmm_fence_store()
            elif self._open:
                with self._lock:
                    for run_low, run_high, old in before:
                        self._update_checked(run_low, run_high, old)

    def _publish(self) -> None:
        """With the header in this mapping: its granule stays W until the version is even again."""
        head = self._low + self.granularity
        if not self._nc:
            self._update_checked(self._low, head, _WRITE)
        version = self.content_version()
        version.begin()
        self._write_back(head)
        version.end()
        if not self._nc:
            self._update(self._low, head, _READ, CacheOp.INFER)

    def _write_back(self, low: int) -> None:
        """W -> R from `low` on, or the barrier that does as much on NC."""
        if self._nc:
            lib.obmm_fence_store()
            return
        for start, stop, right in list(self._rights.runs(low, self._high)):
            if right is _WRITE:
                self._update(start, stop, _READ, CacheOp.INFER)

    # views

    def _buffer(self, start: int, stop: int, writable: bool | None, what: str) -> memoryview:
        with self._lock:
            low = self._checked(start, stop - start, _READ)
            high, at = low + stop - start, self._span.base + low - self._low
            can_write = self._rights.weakest(low, high) is _WRITE and self.writable
            if writable and not can_write:
                raise self._no_right(_WRITE, start, stop - start)
            if self._check is not None:
                self._check.view_made()
            return self._views.make(self, at, low, high, can_write if writable is None else writable, what)

    def _refuse_views(self, action: str, low: int, high: int, *, writable_only: bool = False) -> None:
        busy = self._views.over(low, high, writable_only=writable_only)
        if busy:
            kind = "writable views" if writable_only else "views"
            raise MappingBusyError(
                errno.EBUSY,
                f"cannot {action} {self}: {len(busy)} {kind} live: {'; '.join(busy[:5])}"
                f"{'; ...' if len(busy) > 5 else ''}; fix: drop them (del, or let them go out of scope) first",
                operation="MUNMAP",
            )

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError.of(self)


def _right_of(access: str) -> Right:
    right = _INITIAL.get(access) if isinstance(access, str) else None
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
            "9.1-2/9.1-3",
        )
    return cache


def _bad_scalar(dtype: object) -> ObmmArgumentError:
    return ObmmArgumentError.because(
        "ACCESS",
        errno.EINVAL,
        f"dtype={dtype!r} is no scalar of 1, 2, 4 or 8 bytes",
        "for example '<u8', '<f4' or 'u1'",
    )


def _misaligned(what: str, offset: int, width: int) -> ObmmArgumentError:
    return ObmmArgumentError.because(
        "ACCESS",
        errno.EINVAL,
        f"{what} of {width} bytes at offset {offset} is not naturally aligned",
        f"a multiple of {width}",
        "16",
    )


def _no_buffer(name: str, given: object, kind: str, error: Exception) -> ObmmArgumentError:
    return wrong_type("ACCESS", name, given, f"{kind} contiguous buffer (bytearray, NumPy array): {error}")


def _plain_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """A type of at least one byte without Python objects."""
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise wrong_type("VIEW", "dtype", dtype, "what NumPy takes as a dtype") from None
    if kind.hasobject or kind.itemsize == 0:
        raise ObmmArgumentError.because(
            "VIEW",
            errno.EINVAL,
            f"dtype {kind} holds Python objects or no bytes at all",
            "a plain data type",
            "docs/safety.md",
        )
    return kind


def _numbers(name: str, given: Any) -> tuple[int, ...]:
    """Sizes or strides: whole numbers of at least 0, one or several."""
    if isinstance(given, str | bytes | dict):
        raise wrong_type("VIEW", name, given, "a whole number, or a tuple of them")
    try:
        items = tuple(given)
    except TypeError:
        items = (given,)
    return tuple(whole("VIEW", name, item, low=0) for item in items)


def _extent(shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int) -> int:
    """Bytes from the first item's first to the last item's last byte."""
    if 0 in shape:
        return 0
    if strides is None:
        return math.prod(shape) * itemsize
    if len(strides) != len(shape):
        raise ObmmArgumentError.because(
            "VIEW",
            errno.EINVAL,
            f"strides {strides} do not fit shape {shape}",
            "one stride in bytes per dimension",
        )
    return sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + itemsize
