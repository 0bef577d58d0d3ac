# SPDX-License-Identifier: Apache-2.0
"""The baseline to beat on one host: ``numpy.take(out=, mode="clip")`` over `multiprocessing.shared_memory`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from numpy.typing import NDArray

from obmm.bench import content
from obmm.bench.arms.arm import Arm, Kind, Memory, Progress, Tables, Unavailable, need_memory


class TakeMemory(Memory):
    """Packed rows in shared memory, gathered by NumPy on the caller's thread."""

    backend, pages = "multiprocessing.shared_memory", "4K"

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self._array = array
        self.nbytes = len(array)

    def tables(self, count: int, row_bytes: int, nbytes: int | None = None) -> Tables:
        # packed: take() of rows with gaps between them would copy the whole table first
        return Tables.divide(nbytes or self.nbytes, count, row_bytes, row_bytes)

    def gather(
        self, tables: Tables, ids: NDArray[np.int64], out: NDArray[np.uint8], threads: int
    ) -> Callable[[], object]:
        size = tables.rows * tables.stride
        parts = [
            (self._array[base : base + size].reshape(tables.rows, tables.row_bytes), ids[number], out[number])
            for number, base in enumerate(tables.bases.tolist())
        ]

        def run() -> None:
            for rows, numbers, target in parts:
                np.take(rows, numbers, axis=0, out=target, mode="clip")

        return run

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        out[:] = self._array[offset : offset + len(out)]

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._array[offset : offset + len(data)] = data


def _reserve(shared: SharedMemory, nbytes: int) -> None:
    """Take the pages now: a store to one that /dev/shm has no room for is a SIGBUS."""
    try:
        descriptor = os.open(f"/dev/shm/{shared.name}", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Unavailable(f"/dev/shm has no room for {nbytes} bytes: {error.strerror}; fix: enlarge it") from error


class SharedMemoryArm(Arm):
    """One host only: nothing here reaches another node."""

    name, title = "numpy-shm", 'NumPy take(out=, mode="clip"), shared memory'
    kind: Kind = "local"

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        need_memory(nbytes)
        shared = SharedMemory(create=True, size=nbytes)
        assert shared.buf is not None
        try:
            _reserve(shared, nbytes)
            array: NDArray[np.uint8] = np.frombuffer(shared.buf, np.uint8, nbytes)
            content.fill_array(array, progress)
            memory = TakeMemory(array)
            yield memory
            # views must be gone before the segment can be closed
            memory._array = array = np.empty(0, np.uint8)
        finally:
            shared.unlink()
            try:
                shared.close()
            except BufferError:
                # a traceback or a caller still holds a view; the memory goes with the last of them
                shared._buf = shared._mmap = None  # type: ignore[attr-defined]
