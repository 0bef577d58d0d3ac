# SPDX-License-Identifier: Apache-2.0
"""Remote memory as bytes: guarded access, rights, views, whether one region is mapped or several side by side.

The checks of arguments and the texts of errors are here, once, for `Mapping`, `Strip` and what is made of them.
"""

from __future__ import annotations

import errno
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm.arguments import U64, whole, wrong_type
from obmm.errors import OwnershipError
from obmm.mapping.buffers import to_fill, to_read
from obmm.mapping.ownership import Right
from obmm.mapping.rights import Shared
from obmm.mapping.rowview import RowView
from obmm.mapping.scalars import scalar_of
from obmm.mapping.shapes import extent, numbers, plain_dtype
from obmm.mapping.views import shown, unguarded

_READ, _WRITE = Right.READ, Right.WRITE


class Memory(Shared):
    """Payload bytes [`start`, `stop`) at addresses of this process, of `region` first.  Offsets are in bytes.

    `load`, `store`, `read`, `read_into`, `write`, `snapshot` and gathers are *guarded*: memory that is gone raises
    `RemoteMemoryError`.  Views (`view`, `as_numpy`, DLPack) are *not*: touching one whose peer died kills the process, and
    handing one to a system call may crash the **kernel** on hardware (driver specification 17); hand `snapshot()` to
    system calls.

    On cacheable (CC) memory a page is readable after `acquire("r")` and writable after `acquire("w")`; only the
    application keeps two nodes from writing at once (driver specification 16).  On non-cacheable (NC) memory there is
    nothing to acquire, and phases are barriers.

    `pieces`: what lies side by side; programs use `Mapping` and `Strip`.  ClosedError after close; ObmmArgumentError for a
    range outside of [`start`, `stop`), a wrong type or an unaligned word; OwnershipError where the right is missing.

    >>> with a.export_region("4MiB") as region, region.map("rw") as memory:
    ...     with memory.writing():
    ...         memory.write(0, b"some bytes"), memory.store("<u8", 16, 7)
    ...     memory.load("<u8", 16), memory.read(0, 4), memory.snapshot(5, 5)
    ...     buffer = bytearray(10)
    ...     memory.read_into(buffer, offset=0), bytes(buffer)
    ...     memory.rows(8, n_rows=4).gather([2]).tolist()
    ...     view = memory.view(0, 4)
    ...     bytes(view), memory.views
    ...     view.release()
    ...     memory.as_numpy("<u8", (3,), writable=False).tolist()[2]
    (10, None)
    (7, b'some', b'bytes')
    (10, b'some bytes')
    [[7, 0, 0, 0, 0, 0, 0, 0]]
    (b'some', (...,))
    7
    """

    # --- guarded access ----------------------------------------------------------------------------------------------

    def load(self, dtype: str, offset: int) -> int | float:
        """One naturally aligned, untorn load of the word at byte `offset`: ``m.load("<u8", 0)``.

        `dtype` is a NumPy scalar name of 1, 2, 4 or 8 bytes.  RemoteMemoryError if the memory is gone; ObmmArgumentError for an
        unaligned or outlying `offset`.
        """
        scalar = scalar_of(dtype)
        piece, low = self._word("load", offset, scalar.width, _READ)
        word: int = self._guarded("load", piece, piece.span.load, low, scalar.width)
        return word if scalar.decode is None else scalar.decode(word)

    def store(self, dtype: str, offset: int, value: int | float) -> None:
        """One naturally aligned, untorn store of `value` at byte `offset`; `dtype` and errors as for `load`.

        ObmmArgumentError too for a `value` that `dtype` cannot hold.
        """
        scalar = scalar_of(dtype)
        piece, low = self._word("store", offset, scalar.width, _WRITE)
        try:
            word = scalar.encode(value)
        except (TypeError, ValueError) as error:
            raise wrong_type("ACCESS", "value", value, f"what {dtype!r} holds: {error}") from None
        self._guarded("store", piece, piece.span.store, low, scalar.width, word)

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
        target = to_fill("ACCESS", "out", out)
        size = done = len(target)
        for piece, low, high in reversed(self._checked(offset, size, _READ)):
            done -= high - low
            self._guarded("read", piece, piece.span.copy_from, low, target + done, high - low)
        return size

    def write(self, offset: int, data: Any) -> int:
        """Copy the buffer `data` to `offset`, guarded -> bytes written."""
        source = to_read("ACCESS", "data", data)
        size, done = len(source), 0
        for piece, low, high in self._checked(offset, size, _WRITE):
            self._guarded("write", piece, piece.span.copy_to, low, source + done, high - low)
            done += high - low
        return size

    def rows(
        self, row_bytes: int, row_stride: int | None = None, n_rows: int | None = None, offset: int | None = None
    ) -> RowView:
        """Rows of `row_bytes`, `row_stride` bytes apart (default: packed), from byte `offset` on: ``m.rows(dim * 4).gather(ids)``.

        `n_rows`: how many (default: all that follow).  ObmmArgumentError when they do not fit.
        """
        row_bytes = whole("GATHER", "row_bytes", row_bytes)
        stride = row_bytes if row_stride is None else whole("GATHER", "row_stride", row_stride, high=U64)
        offset = self.start if offset is None else whole("GATHER", "offset", offset)
        if n_rows is not None:
            n_rows = whole("GATHER", "n_rows", n_rows)
        else:
            n_rows = (self.stop - offset - row_bytes) // stride + 1 if stride > 0 else 0
        self._check_open()
        return RowView(self, row_bytes, stride, n_rows, offset)

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

        `dtype`: any NumPy type without Python objects.
        """
        kind = plain_dtype(dtype)
        offset = whole("VIEW", "offset", offset)
        shape = ((self.stop - offset) // kind.itemsize,) if shape is None else numbers("shape", shape)
        strides = None if strides is None else numbers("strides", strides)
        size = extent(shape, strides, kind.itemsize)
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

        `shape` and byte `offset` as for `as_numpy`.  OwnershipError without the right to load, or for a read-only mapping
        without the opt-in; ImportError without torch.

        >>> with a.export_region("2MiB") as region, region.map("rw") as memory:
        ...     with memory.writing():
        ...         try:
        ...             tensor = memory.as_torch(shape=(4,))
        ...             print(tensor.shape[0])
        ...             del tensor
        ...         except ImportError:
        ...             print("4, with torch installed")
        4...
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
        shape = numbers("shape", shape)
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
        """DLPack through NumPy: read-only memory is exported only to consumers of DLPack 1.0 and later."""
        return self.as_numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _buffer(self, start: int, stop: int, writable: bool | None, what: str) -> memoryview:
        with self._locked():
            parts = self._checked(start, stop - start, _READ)
            can_write = self.writable and all(piece.rights.weakest(low, high) is _WRITE for piece, low, high in parts)
            if writable and not can_write:
                raise self._no_right(_WRITE, start, stop - start)
            writes = can_write if writable is None else writable
            buffer = unguarded(self, self._payload + start, stop - start)
            for piece, low, high in parts:
                if piece.check is not None:
                    piece.check.view_made()
                piece.views.note(buffer, low, high, writes, what)
            return shown(buffer, writes)
