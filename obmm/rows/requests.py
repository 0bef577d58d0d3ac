# SPDX-License-Identifier: Apache-2.0
"""Gathers in the form that native code takes, and their outcomes as errors."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.errors import ClosedError, ObmmError
from obmm.mapping import guard
from obmm.mapping.buffers import holds_objects
from obmm.mapping.native_rows import aim
from obmm.rows.bound import BoundTable
from obmm.rows.errors import bad_id, elsewhere, over_its_input, refused, republished
from obmm.rows.stats import GatherStats
from obmm.rows.table import TableSpec

Completion = tuple[Any, Any]
"""A native function ``void (void *, const struct obmm_outcome *)`` and its first argument, called once by the thread that ended
the gather (native/gather/gather.h)."""
IdSpace = Literal["flat", "local"]
Invalid = Literal["error", "zero"]
Faulty = Literal["error", "zero"]

_REQUESTS = ffi.typeof("struct obmm_request[]")
_OUTCOMES = ffi.typeof("struct obmm_outcome[]")
_BYTES = ffi.typeof("uint8_t[]")
_SPACES = ("flat", "local")
_FAULTY = ("error", "zero")
_INVALID = {"error": lib.OBMM_INVALID_ERROR, "zero": lib.OBMM_INVALID_ZERO}
_OUTCOME_WORDS: int = ffi.sizeof("struct obmm_outcome") // 8
_READY_WORD: int = ffi.offsetof("struct obmm_outcome", "ready") // 8
_INT64 = np.dtype(np.int64)
_ID_BYTES = {np.dtype(np.int32): 4, _INT64: 8}


class Requests(Owner):
    """Gathers ``(table, ids, out)`` with everything that must live while they run."""

    __slots__ = ("_bound", "_failed", "_kept", "_stats", "_words", "array", "count", "each", "outcomes")

    def __init__(
        self,
        gathers: Sequence[tuple[BoundTable, Any, Any]],
        stats: GatherStats | None,
        id_space: IdSpace,
        invalid: Invalid,
        faulty: Faulty = "error",
        recheck: bool = False,
        then: Sequence[Completion | None] = (),
    ) -> None:
        if id_space not in _SPACES or not isinstance(invalid, str) or invalid not in _INVALID or faulty not in _FAULTY:
            raise refused(
                f"id_space={id_space!r}, invalid={invalid!r}, faulty={faulty!r}",
                "'flat' or 'local', and 'error' or 'zero' for the other two",
            )
        self.count = len(gathers)
        self.array: Any = ffi.new(_REQUESTS, self.count)
        self.outcomes: Any = ffi.new(_OUTCOMES, self.count)
        self._bound = [bound for bound, _, _ in gathers]
        self._kept: list[Any] = []
        self._failed: list[NDArray[np.bool_]] = []
        self._stats = stats
        local, how = id_space == "local", _INVALID[invalid]
        for i, (bound, ids, out) in enumerate(gathers):
            self.array[i] = bound.template[0]
            self._add(self.array[i], bound, ids, out, local, how)
            if faulty == "zero":
                self._map_failures(self.array[i])
            if recheck:
                self.array[i].recheck = bound.memory.recheck
        for request, after in zip(self.array, then, strict=False):
            if after is not None:
                request.then = {"call": after[0], "context": ffi.cast("void *", after[1])}
        self._kept.append(then)
        self.each = [self.outcomes[i] for i in range(self.count)]
        self._words: memoryview | None = None

    @property
    def words(self) -> memoryview:
        """The outcomes as words, for tickets: a gather on the caller's thread needs no view of them."""
        if self._words is None:
            self._words = memoryview(ffi.buffer(self.outcomes)).cast("B").cast("Q")
        return self._words

    @staticmethod
    def ready_at(index: int) -> int:
        """Where in `words` an outcome's ``ready`` lies."""
        return index * _OUTCOME_WORDS + _READY_WORD

    def spec(self, index: int) -> TableSpec:
        """The table of one of them."""
        return self._bound[index].spec

    def _add(self, request: Any, bound: BoundTable, ids: Any, out: Any, local: bool, invalid: int) -> None:
        if type(ids) is not np.ndarray:
            ids = _as_array("ids", ids, np.asarray)
        dtype = ids.dtype
        # NumPy hands out one object per native type: looking first is cheaper than hashing
        width = 8 if dtype is _INT64 else _ID_BYTES.get(dtype)
        flags = ids.flags
        if width is None or not flags.c_contiguous or not flags.aligned:
            raise refused(
                f"ids of dtype {ids.dtype}, shape {ids.shape}, strides {ids.strides}"
                f"{'' if flags.aligned else ', not aligned'}",
                "contiguous int32 or int64 ids, at addresses that are multiples of their size",
            )
        count = ids.size
        held = ffi.from_buffer(ids)
        target, kept = _target(request, out, count, bound.spec)
        aim(request, held, width, count, target)
        if invalid:
            request.invalid = invalid
        if local or bound.columns is not None:
            bound.fill_columns(request, ids.shape[-1] if ids.ndim else 1, local)
        self._kept += (held, kept)

    def _map_failures(self, request: Any) -> None:
        """Let the gather go on past rows that it cannot read, and say which."""
        failed = np.zeros(request.count, np.bool_)
        rows, failures = ffi.from_buffer("uint8_t[]", failed), ffi.new("struct obmm_failures *")
        failures.rows = rows
        request.failures = failures
        self._kept += (rows, failures)
        self._failed.append(failed)

    def _failed_rows(self, index: int) -> NDArray[np.bool_] | None:
        """One entry per id, if the gather that faulted read all the others."""
        request = self.array[index]
        if not request.failures or not request.failures.failed:
            return None
        return self._failed[index][: request.count].copy()

    def read_memory(self) -> None:
        """Ask the memory for every row, whatever is kept of it here."""
        for request in self.array:
            request.hot = ffi.NULL

    def finish(self, index: int = 0) -> int:
        """The rows read, or raise what went wrong."""
        outcome = self.each[index]
        if outcome.status:
            raise self.failure(index)
        if self._stats is not None:
            self._stats.add_outcome(outcome, self.array[index].count, self._bound[index].spec.row_bytes)
        return outcome.rows_read  # type: ignore[no-any-return]

    def failure(self, index: int) -> ObmmError:
        """The error of a gather that ended badly."""
        outcome, spec, memory = self.outcomes[index], self._bound[index].spec, self._bound[index].memory
        status = outcome.status
        if status == -errno.EFAULT:
            memory.check()  # a right that was given up says more than its fault
        if status == -errno.EPERM:
            memory.check()
            memory.reread_header()  # says which right keeps native threads from it
        if status == -errno.ERANGE:
            limit = spec.n_rows
            request = self.array[index]
            if request.head_offsets:
                column = outcome.bad_index % request.columns
                limit = request.head_offsets[column + 1] - request.head_offsets[column]
            return bad_id(spec.table_id, limit, outcome.bad_index, outcome.bad_id)
        if status == -errno.EINVAL:
            return over_its_input()
        if status == -errno.EFAULT:
            fault = outcome.fault
            what = f"gather from table {spec.table_id!r}"
            kind = guard.fault_kind(fault.signo)
            lowest = memory.version_address or (0 if memory.fetch else memory.address)
            if not lowest <= fault.address < memory.address + memory.nbytes:
                return elsewhere(what, kind, fault.code)
            error = memory.fault(what, fault.address, kind, fault.code)
            error.failed_rows = self._failed_rows(index)
            return error
        if status == -errno.ESTALE:
            return republished(spec.table_id, outcome.version)
        if status == -errno.ESHUTDOWN:
            return ClosedError.of("the gather engine")
        if status == -errno.EBADF:
            return ClosedError.of(f"the memory of table {spec.table_id!r}")
        if status == -errno.ECANCELED:
            return ClosedError.of(f"the gather from table {spec.table_id!r}", "was abandoned")
        return ObmmError(-status, f"GATHER: table {spec.table_id!r}: {os.strerror(-status)}", operation="GATHER")


def _as_array(name: str, given: Any, convert: Callable[[Any], np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """`given` without a copy; a tensor may lie on a device, need gradients, or have a type that NumPy lacks."""
    try:
        return convert(given)
    except (BufferError, RuntimeError, TypeError) as error:
        raise refused(
            f"{name}: {type(given).__name__} of {getattr(given, 'dtype', 'no type')}: {error}",
            "a CPU tensor without gradients; view a type that NumPy lacks as bytes, tensor.view(torch.uint8)",
        ) from error


def _target(request: Any, out: Any, count: int, spec: TableSpec) -> tuple[Any, Any]:
    """Where in `out` the rows of `request` go, and what must be kept alive for it."""
    need = count * spec.row_bytes
    if isinstance(out, tuple):
        address, length = _place(out)
        if length != need:
            raise _wrong_size(length, count, spec)
        return ffi.cast("uint8_t *", address), None
    if not isinstance(out, np.ndarray) and hasattr(out, "__dlpack__"):
        out = _as_array("out", out, np.from_dlpack)
    if isinstance(out, np.ndarray) and not out.flags.c_contiguous:
        return _strided(request, out, count, spec)
    try:
        held = ffi.from_buffer(_BYTES, out, require_writable=True)
        if holds_objects(out):
            raise TypeError("an array of Python objects")
    except (TypeError, BufferError, ValueError) as error:
        raise refused(f"out: {error}", "a writable, contiguous buffer, or (address, length)") from error
    if len(held) != need:
        raise _wrong_size(len(held), count, spec)
    return held, held


def _place(out: tuple[Any, ...]) -> tuple[int, int]:
    """``(address, length)`` that can be memory of a process; whether it is the caller must know."""
    if len(out) == 2 and all(isinstance(number, int) for number in out):
        address, length = out
        if length >= 0 and mmap.PAGESIZE <= address <= (1 << 63) - length:
            return address, length
    raise refused(f"out={out!r}", "(address, length) of writable memory, two integers")


def _strided(request: Any, out: np.ndarray[Any, Any], count: int, spec: TableSpec) -> tuple[Any, Any]:
    """Rows of bytes at a constant distance: ``buffer[:, :row_bytes]``."""
    row = out.shape[-1] * out.itemsize if out.ndim else 0
    if (
        out.ndim != 2
        or out.shape[0] != count
        or row != spec.row_bytes
        or out.strides[1] != out.itemsize
        or out.strides[0] < row
        or not out.flags.writeable
        or out.dtype.hasobject
    ):
        raise refused(
            f"out of shape {out.shape}, strides {out.strides}",
            f"contiguous bytes, or [{count}, {spec.row_bytes}] bytes with any row stride",
        )
    request.out_stride = out.strides[0]
    return ffi.cast("uint8_t *", out.ctypes.data), out


def _wrong_size(length: int, count: int, spec: TableSpec) -> ObmmError:
    return refused(
        f"out has {length} bytes for {count} ids of {spec.row_bytes} bytes", f"exactly {count * spec.row_bytes} bytes"
    )
