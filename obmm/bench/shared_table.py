# SPDX-License-Identifier: Apache-2.0
"""A large shared-memory region with known content, on 4 KiB or on 2 MiB pages, with tables of any row size over it."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.region.header import RegionHeader
from obmm.rows import GatherEngine, LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.pages import HUGE, is_huge

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_CHUNK = 1 << 22
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class AlignedPages:
    """Anonymous or shared pages at a 2 MiB border.  `array` is valid until `close`."""

    def __init__(self, nbytes: int, *, shared: bool = False, huge: bool = False) -> None:
        self._length = -(-nbytes // HUGE) * HUGE
        self._room = _libc.mmap(None, self._length + HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)
        self.address = -(-self._room // HUGE) * HUGE
        fd = -1
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if shared:
            fd = os.memfd_create("obmm-bench")
            os.ftruncate(fd, self._length)
            flags = mmap.MAP_SHARED
        got = _libc.mmap(self.address, self._length, mmap.PROT_READ | mmap.PROT_WRITE, flags | 0x10, fd, 0)
        if fd >= 0:
            os.close(fd)
        if got != self.address:
            raise OSError(ctypes.get_errno(), f"mapping {self._length} bytes failed")
        self.array: NDArray[np.uint8] = np.frombuffer(
            memoryview((ctypes.c_uint8 * self._length).from_address(self.address)), np.uint8
        )[:nbytes]
        if huge:
            _libc.madvise(self.address, self._length, _MADV_HUGEPAGE)

    def collapse(self) -> bool:
        """Make the (touched) pages 2 MiB ones, whatever the shared-memory policy; whether that was obtained."""
        _libc.madvise(self.address, self._length, _MADV_COLLAPSE)
        return is_huge(self.address, self._length)

    def close(self) -> None:
        _libc.munmap(self._room, self._length + HUGE)


class SharedTable:
    """`nbytes` of shared memory whose 8-byte words are a function of their place.

    `header`: the first page is a region header, and tables begin behind it.
    """

    def __init__(self, nbytes: int, *, huge: bool, header: bool = False) -> None:
        self._header = header
        self._first = RegionHeader.SIZE if header else 0
        self._pages = AlignedPages(nbytes, shared=True)
        self.nbytes = nbytes
        words = self._pages.array.view(np.uint64)
        self._pages.array[::4096] = 1
        self.huge = self._pages.collapse() if huge else False
        for at in range(0, len(words), _CHUNK):
            part = words[at : at + _CHUNK]
            np.multiply(np.arange(at, at + len(part), dtype=np.uint64), _FACTOR, out=part)
        if header:
            LocalMemory.format(self._pages.array, generation=1)

    @property
    def address(self) -> int:
        address: int = self._pages.address
        return address

    def store(self, row_bytes: int, engine: GatherEngine, *, plan: bool, hot_rows: int = 0) -> RowStore:
        """A store with one table "t" over all of it."""
        stride = -(-row_bytes // 8) * 8
        manifest = Manifest((TableSpec("t", (self.nbytes - self._first) // stride, row_bytes, stride),))
        memory = LocalMemory(self._pages.array, header=self._header)
        return RowStore.attach(memory, manifest, verify="header", plan=plan, engine=engine, hot_rows=hot_rows)

    def rows(self, row_bytes: int, stride: int | None = None) -> NDArray[np.uint8]:
        """The rows as a plain array, packed unless a stride is given: what NumPy and torch gather from."""
        step = stride or row_bytes
        n = self.nbytes // step
        return self._pages.array[: n * step].reshape(n, step)[:, :row_bytes]

    def wrong_rows(self, ids: NDArray[np.int64], rows: NDArray[np.uint8], stride: int) -> int:
        """How many of the gathered rows differ from the content's function in any byte."""
        wrong = 0
        row_bytes = rows.shape[1]
        for at in range(0, len(ids), 4096):
            some = ids[at : at + 4096].astype(np.uint64)
            words = -(-row_bytes // 8)
            place = some[:, None] * np.uint64(stride // 8) + np.arange(words, dtype=np.uint64)
            place += np.uint64(self._first // 8)
            wanted = (place * _FACTOR).view(np.uint8)[:, :row_bytes]
            wrong += int((wanted != rows[at : at + 4096]).any(axis=1).sum())
        return wrong

    def close(self) -> None:
        self._pages.close()


def describe_pages(huge: bool) -> str:
    """How a report names a page size."""
    return "2M" if huge else "4K"


def torch_index_select() -> Any:
    """torch's gather if torch is installed, on one thread; None otherwise."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    return torch
