# SPDX-License-Identifier: Apache-2.0
"""The caller's memory for a batch of blocks: addresses and sizes, whatever form it came in."""

from __future__ import annotations

import itertools
import platform
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm._native import ffi
from obmm.arguments import listed, whole
from obmm.blocks.errors import refused
from obmm.closing import Owner
from obmm.mapping import guard
from obmm.mapping.buffers import array_here, holds_objects

_identities = itertools.count(1 << 48)  # of ranges that are not mappings
_MOST = (1 << 32) - 1
# beyond lies no process's memory, and a fault there does not say where it was: no guard could take it
_TOP = 1 << (47 if platform.machine() == "x86_64" else 52)


class Pieces(Owner):
    """`count` blocks of `each` pieces; piece p of block b is ``addresses[b * each + p]``, ``sizes[b * each + p]`` bytes.

    Memory can go away under a batch: addresses that nothing keeps alive, a mapping of a file that shrinks.  It is known to
    the fault guard meanwhile, so that this costs its blocks and not the process.

    `kept` is what keeps it alive.  Made by its class methods; ObmmArgumentError for memory that is none, or of the wrong
    number.

    >>> pieces = obmm.blocks.Pieces.of_buffers(2, [bytearray(10), bytearray(20)], writable=True)
    >>> pieces.totals.tolist(), pieces.select(np.array([1])).totals.tolist(), pieces.borrowed().totals.tolist()
    ([10, 20], [20], [10, 20])
    >>> pieces.release()
    >>> pool = np.zeros((8, 64), "u1")
    >>> obmm.blocks.Pieces.of_slots(pool.ctypes.data, 64, np.array([3, 5]), 64).addresses.tolist()[0] == pool[3].ctypes.data
    True
    >>> obmm.blocks.Pieces.of_addresses(1, np.array([pool.ctypes.data], "u8"), 64).totals.tolist()
    [64]
    """

    __slots__ = (
        *("__weakref__", "_buffers", "_guards", "_kept", "_lender", "_lent", "_released"),
        *("addresses", "count", "each", "sizes"),
    )

    def __init__(
        self, addresses: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint32], each: int, kept: object
    ) -> None:
        self.addresses, self.sizes, self.each = addresses, sizes, each
        self.count = len(addresses) // each
        self._kept = kept
        self._buffers: list[Any] = []
        self._released = False
        self._lender: Pieces | None = None
        self._lent: weakref.WeakSet[Pieces] = weakref.WeakSet()  # to calls that have not ended
        self._guards: list[int] = []

    @classmethod
    def of_buffers(cls, count: int, buffers: Sequence[Any], *, writable: bool) -> Pieces:
        """One of `buffers` for each of `count` blocks: bytes, memoryviews, arrays; contiguous, and `writable` ones to load into.

        ObmmArgumentError for others.
        """
        count = whole("BLOCKS", "count", count, low=0)
        buffers = listed("BLOCKS", "memory", buffers, "buffers, one for each key, or Pieces")
        if len(buffers) != count:
            raise refused(f"{len(buffers)} buffers for {count} keys", "one buffer for each key")
        kept = []
        for index, buffer in enumerate(buffers):
            try:
                kept.append(ffi.from_buffer("uint8_t[]", buffer, require_writable=writable))
            except (TypeError, BufferError, ValueError) as error:
                kind = "writable contiguous buffer" if writable else "contiguous buffer"
                raise refused(f"buffers[{index}] is not a {kind}: {error}", "bytearray, memoryview or array") from None
            if not isinstance(buffer, bytes | bytearray) and holds_objects(buffer):
                raise refused(f"buffers[{index}] is an array of Python objects", "bytes, or numbers")
        sizes = list(map(len, kept))
        if max(sizes, default=0) > _MOST:
            raise refused(f"a buffer of {max(sizes)} bytes", f"at most {_MOST}")
        uintptr = ffi.typeof("uintptr_t")
        addresses = np.fromiter((int(ffi.cast(uintptr, each)) for each in kept), np.uint64, count)
        pieces = cls(addresses, np.array(sizes, np.uint32), 1, kept)
        pieces._buffers = kept
        return pieces

    @classmethod
    def of_addresses(cls, count: int, addresses: Any, sizes: Any) -> Pieces:
        """Flat arrays of addresses and sizes (or one size for all); a multiple of `count`, which must stay valid.

        ObmmArgumentError, a TypeError included, for anything else.
        """
        where: npt.NDArray[np.uint64] = _array(addresses, np.uint64, "addresses")
        count = whole("BLOCKS", "count", count, low=0)
        if not count or len(where) % count or not len(where):
            raise refused(f"{len(where)} addresses for {count} keys", "the same number of pieces for each key")
        if isinstance(sizes, int | np.integer):
            if not 0 < sizes <= _MOST:
                raise refused(f"size={sizes}", f"1..{_MOST}")
            long = np.full(len(where), sizes, np.uint32)
        else:
            long = _array(sizes, np.uint32, "sizes")
        if len(long) != len(where):
            raise refused(f"{len(long)} sizes for {len(where)} addresses", "as many, or one number")
        if not int(where.min()) or int(where.max()) > _TOP or int((where + long).max()) > _TOP:
            raise refused(
                f"addresses from {int(where.min()):#x} to {int(where.max()):#x}", f"of memory: above 0, below {_TOP:#x}"
            )
        return cls(where, long, len(where) // count, (where, long))

    @classmethod
    def of_slots(cls, base: int, stride: int, slots: Any, size: int) -> Pieces:
        """Blocks of `size` bytes at ``base + stride * slot`` for each of `slots`: how engines keep a pool.

        ObmmArgumentError, a TypeError included, for anything else.
        """
        places = _array(slots, np.int64, "slots")
        if not len(places):
            raise refused("no slots", "at least one")
        base, stride = whole("BLOCKS", "base", base), whole("BLOCKS", "stride", stride)
        size = whole("BLOCKS", "size", size)
        low, high = int(places.min()), int(places.max())
        if low < 0 or not 0 < size <= stride:
            raise refused(f"slots from {low}, size {size}, stride {stride}", "slots >= 0, 0 < size <= stride")
        if not 0 < base <= _TOP or high * stride > _TOP:
            raise refused(f"slots up to {high} of {stride} bytes at {base:#x}", f"memory below {_TOP:#x}")
        return cls.of_addresses(len(places), (places * stride + base).astype(np.uint64), size)

    @property
    def totals(self) -> npt.NDArray[np.uint64]:
        """Bytes of each block."""
        totals: npt.NDArray[np.uint64] = self.sizes.reshape(self.count, self.each).sum(axis=1, dtype=np.uint64)
        return totals

    def borrowed(self) -> Pieces:
        """The same memory for one call, whose end does not end it; ObmmArgumentError after `release`."""
        if self._released:
            raise refused("memory that was released", "make it anew of the buffers")
        borrowed = Pieces(self.addresses, self.sizes, self.each, self)
        borrowed._lender = self
        self._lent.add(borrowed)
        return borrowed

    def select(self, blocks: npt.NDArray[np.intp]) -> Pieces:
        """Some of the blocks, in the order given; ObmmArgumentError for what is not their numbers."""
        chosen = _array(blocks, np.int64, "blocks")
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < self.count:
            raise refused(f"blocks {int(chosen.min())}..{int(chosen.max())} of {self.count}", f"0..{self.count - 1}")
        shape = (self.count, self.each)
        return Pieces(
            np.ascontiguousarray(self.addresses.reshape(shape)[chosen].reshape(-1)),
            np.ascontiguousarray(self.sizes.reshape(shape)[chosen].reshape(-1)),
            self.each,
            self._kept,
        )

    def release(self) -> None:
        """Let go of the buffers now, not when this object is collected: their owner may close them next.

        Buffers that a call uses go when it has ended.
        """
        self._released = bool(self._buffers) or self._released
        self._let_go()
        lender, self._lender = self._lender, None
        if lender is not None:
            lender._lent.discard(self)
            if lender._released:
                lender._let_go()

    def _let_go(self) -> None:
        if not self._lent:
            buffers, self._buffers = self._buffers, []
            for buffer in buffers:
                ffi.release(buffer)

    def guard(self) -> None:
        """Between rooms: make the memory known to the fault guard."""
        there = self.sizes > 0  # an empty buffer may have any address
        if not self._guards and there.any():
            low = int(self.addresses[there].min())
            high = int((self.addresses + self.sizes)[there].max())
            if low:
                self._guards.append(guard.register(low, high - low, next(_identities)))

    def unguard(self) -> None:
        """Between rooms: the end of `guard`."""
        while self._guards:
            guard.unregister(self._guards.pop())

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Between rooms: a block of `guard`."""
        self.guard()
        try:
            yield
        finally:
            self.unguard()


def _array(given: Any, kind: type[np.integer[Any]], name: str) -> npt.NDArray[Any]:
    """A contiguous copy of whole numbers that fit: no other thread writes it while native code reads it."""
    try:
        flat = np.ascontiguousarray(array_here(given).reshape(-1))
        wrong = "" if flat.dtype.kind in "iu" else f"of {flat.dtype}"
        if (
            not wrong
            and len(flat)
            and not np.iinfo(kind).min <= int(flat.min()) <= int(flat.max()) <= np.iinfo(kind).max
        ):
            wrong = f"values {flat.min()}..{flat.max()}"
    except (TypeError, ValueError, OverflowError) as error:
        wrong = str(error)
    if wrong:
        raise refused(f"{name} is not an array of whole numbers: {wrong}", "a NumPy array or a list of ints")
    return flat.astype(kind)
