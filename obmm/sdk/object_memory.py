# SPDX-License-Identifier: Apache-2.0
"""The units of an SDK object as one contiguous range of our own mappings (SDK specification 11)."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from obmm import guard
from obmm.attached import AttachedRegion
from obmm.closing import close_on_exit
from obmm.device import Device
from obmm.device import open as open_device
from obmm.errors import ClosedError, ObmmArgumentError, ObmmError
from obmm.mapping import Mapping
from obmm.region import Access, Region
from obmm.rows.mapped import MappedMemory
from obmm.rowview import RowView, refuse_bad_rows
from obmm.sdk.abi import Flag
from obmm.sdk.records import ObjectUnits
from obmm.span import gather_rows
from obmm.views import ViewLedger
from obmm.window import Cache


class ObjectMemory:
    """`nbytes` of an object at `address`, through attached regions.  Made by `SharedObject.regions`.

    Offsets count from the object's first byte.  `read`, `write` and gathers are guarded, views are not, as in
    `Mapping`.  `rows_memory` is what `obmm.rows.RowStore.attach` takes.
    """

    def __init__(
        self,
        regions: Sequence[AttachedRegion],
        access: Access,
        cache: Cache,
        closed: Callable[[ObjectMemory], None],
        device: Device | None,
    ) -> None:
        """Maps `regions`; closes `device`, if given, with itself."""
        self._memory = MappedMemory.side_by_side(regions, access, cache)
        self.regions = tuple(regions)
        self.region: Region = regions[0]
        self.cache: Cache = cache
        self.start, self.stop = 0, self._memory.nbytes
        self._closed = closed
        self._device = device
        self._views = ViewLedger()
        self._open = True

    @classmethod
    def of(
        cls,
        units: ObjectUnits,
        flags: int | None,
        access: Access,
        device: Device | None,
        cache: Cache | None,
        closed: Callable[[ObjectMemory], None],
    ) -> Self:
        """Attach and map all units; the last one only as far as the object reaches."""
        own = open_device() if device is None else None
        on = own or device
        assert on is not None
        regions: list[AttachedRegion] = []
        try:
            pmd = bool(flags is not None and flags & Flag.MMAP_HUGETLB_PMD)
            for i, mem_id in enumerate(units.mem_ids):
                length = min(units.unit, units.size - i * units.unit)
                regions.append(on.attach(mem_id, length, pmd=pmd))
            return cls._in_some_cache(regions, access, _modes(flags, cache), closed, own)
        except BaseException:
            for region in regions:
                region.close()
            if own is not None:
                own.close()
            raise

    @classmethod
    def _in_some_cache(
        cls,
        regions: Sequence[AttachedRegion],
        access: Access,
        modes: Sequence[Cache],
        closed: Callable[[ObjectMemory], None],
        device: Device | None,
    ) -> Self:
        """Plain first, and with O_SYNC when the driver answers EPERM: nobody tells which it must be (11 step 4)."""
        for mode in modes[:-1]:
            try:
                return cls(regions, access, mode, closed, device)
            except ObmmError as error:
                if error.errno != errno.EPERM:
                    raise
        return cls(regions, access, modes[-1], closed, device)

    # --- description -------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """The object's size."""
        return self._memory.nbytes

    @property
    def address(self) -> int:
        """Where its first byte lies in this process.  Access through it is unguarded."""
        self._check_open()
        return self._memory.address

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """One per unit, in order."""
        return self._memory.mappings

    @property
    def rows_memory(self) -> MappedMemory:
        """For `obmm.rows.RowStore.attach`; it lives as long as this object."""
        self._check_open()
        return self._memory

    @property
    def closed(self) -> bool:
        return not self._open

    # --- guarded access ----------------------------------------------------------------------------------------------

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """A guarded copy of `size` bytes (default: to the end)."""
        self._check_open()
        return self._memory.read(offset, self.nbytes - offset if size is None else size)

    def write(self, offset: int, data: Any) -> int:
        """Copy the buffer `data` to `offset`, guarded -> bytes written."""
        self._check_open()
        self._memory.write(offset, data)
        return memoryview(data).nbytes

    def load(self, dtype: str, offset: int) -> int | float:
        """One aligned, untorn load (`Mapping.load`)."""
        mapping, at = self._word(dtype, offset)
        return mapping.load(dtype, at)

    def store(self, dtype: str, offset: int, value: int | float) -> None:
        """One aligned, untorn store (`Mapping.store`)."""
        mapping, at = self._word(dtype, offset)
        mapping.store(dtype, at, value)

    def rows(
        self, row_bytes: int, row_stride: int | None = None, n_rows: int | None = None, offset: int = 0
    ) -> RowView:
        """Rows of `row_bytes`, across the seams of units (`Mapping.rows`)."""
        self._check_open()
        stride = row_bytes if row_stride is None else row_stride
        if n_rows is None:
            n_rows = (self.nbytes - offset - row_bytes) // stride + 1 if stride > 0 else 0
        refuse_bad_rows(self, row_bytes, stride, n_rows, offset)
        return RowView(self, row_bytes, stride, n_rows, offset)

    def gather(self, table: Any, offset: int, extent: int, ids: npt.NDArray[Any], target: Any) -> None:
        """For `RowView`."""
        self._check_open()
        self._memory.check()
        result, outcome = gather_rows(self._memory.gates, self._memory.address + offset, table, ids, target)
        if result > 0:
            raise ObmmArgumentError.because(
                "GATHER",
                errno.ERANGE,
                f"id {outcome.bad_id} at index {outcome.bad_index}",
                f"row numbers of 0..{table.rows - 1}",
                "docs/rows.md",
            )
        if result == -errno.EFAULT:
            fault = outcome.fault
            raise self._memory.fault("gather", fault.address, guard.fault_kind(fault.signo), fault.code)
        if result:
            raise ClosedError.of(self)

    # --- ownership ---------------------------------------------------------------------------------------------------

    def acquire(self, right: str, start: int = 0, stop: int | None = None) -> None:
        """Take the right "r" or "w" to bytes [start, stop), unit by unit (`Mapping.acquire`)."""
        for mapping, low, high in self._pieces(start, stop):
            mapping.acquire(right, low, high)

    def release(self, start: int = 0, stop: int | None = None, *, keep: str = "none") -> None:
        """Give rights up (`Mapping.release`)."""
        for mapping, low, high in self._pieces(start, stop):
            mapping.release(low, high, keep=keep)

    @contextmanager
    def reading(self, start: int = 0, stop: int | None = None) -> Iterator[Self]:
        """A phase in which [start, stop) may be loaded."""
        with ExitStack() as phases:
            for mapping, low, high in self._pieces(start, stop):
                phases.enter_context(mapping.reading(low, high))
            yield self

    @contextmanager
    def writing(self, start: int = 0, stop: int | None = None) -> Iterator[Self]:
        """A phase in which [start, stop) may be stored to."""
        with ExitStack() as phases:
            for mapping, low, high in self._pieces(start, stop):
                phases.enter_context(mapping.writing(low, high))
            yield self

    def publish(self) -> None:
        """Write back what was written and keep the right to load (`Mapping.publish`)."""
        for mapping, _, _ in self._pieces(0, None):
            mapping.publish()

    def refresh(self) -> None:
        """Drop what is cached and read anew (`Mapping.refresh`)."""
        self._check_open()
        self._memory.refresh()

    # --- views -------------------------------------------------------------------------------------------------------

    def view(self, start: int = 0, stop: int | None = None) -> memoryview:
        """Bytes [start, stop) without a copy, across seams; writable where every unit's right is W.  Unguarded."""
        end = self.nbytes if stop is None else stop
        # one tracked view per unit keeps its mapping from being closed for as long as the whole one lives
        pieces = [mapping.view(low, high) for mapping, low, high in self._pieces(start, end)]
        writable = not any(piece.readonly for piece in pieces)
        what = f"memoryview [{start}, {end})"
        return self._views.make(pieces, self._memory.address + start, start, end, writable, what)

    def as_numpy(
        self, dtype: npt.DTypeLike = np.uint8, shape: int | tuple[int, ...] | None = None, offset: int = 0
    ) -> npt.NDArray[Any]:
        """A zero-copy array from `offset` on (`Mapping.as_numpy`), across seams.  Unguarded."""
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ObmmArgumentError.because(
                "VIEW", errno.EINVAL, f"dtype {kind} holds Python objects", "a plain data type"
            )
        if shape is None:
            shape = ((self.nbytes - offset) // kind.itemsize,)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = math.prod(shape) * kind.itemsize
        return np.ndarray(shape, kind, self.view(offset, offset + size))

    # --- ending ------------------------------------------------------------------------------------------------------

    def refuse_if_busy(self) -> None:
        """MappingBusyError while views live."""
        for mapping in self.mappings:
            mapping.refuse_if_busy("close")

    def close(self) -> None:
        """Unmap and detach.  Idempotent.  MappingBusyError, and nothing changed, while views live."""
        if not self._open:
            return
        self.refuse_if_busy()
        self._memory.close()
        for region in self.regions:
            region.close()
        if self._device is not None:
            self._device.close()
        self._open = False
        self._closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_on_exit(self, error)

    def __repr__(self) -> str:
        state = "" if self._open else " closed"
        return f"<ObjectMemory {self.nbytes} bytes in {len(self.regions)} units {self.cache}{state} on {self.region.device.backend}>"

    # --- inside ------------------------------------------------------------------------------------------------------

    def _word(self, dtype: str, offset: int) -> tuple[Mapping, int]:
        self._check_open()
        width = np.dtype(dtype).itemsize
        mapping, at, _ = self._memory.pieces(offset, width)[0]
        return mapping, at

    def _pieces(self, start: int, stop: int | None) -> list[tuple[Mapping, int, int]]:
        """(mapping, its bytes [low, high)) of each unit that [start, stop) touches."""
        self._check_open()
        end = self.nbytes if stop is None else stop
        return [(mapping, at, at + size) for mapping, at, size in self._memory.pieces(start, end - start)]

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError.of(self)


def _modes(flags: int | None, cache: Cache | None) -> tuple[Cache, ...]:
    """The cache modes to try, in order."""
    if cache is not None:
        return (cache,)
    if flags is None or flags & Flag.ONLY_IMPORT_NONCACHE:
        return ("cc", "nc")
    return ("nc",) if flags & Flag.NONCACHE else ("cc",)
