# SPDX-License-Identifier: Apache-2.0
"""A region's memory in this process (driver specification 9, docs/safety.md)."""

from __future__ import annotations

from typing import Any

from obmm._native import ffi, lib
from obmm.driver.abi import Cache
from obmm.mapping.buffers import holds_objects
from obmm.mapping.memory import Memory
from obmm.mapping.ownership import Right
from obmm.mapping.piece import Piece
from obmm.mapping.scalars import SCALARS, bad_scalar, scalar_of
from obmm.mapping.span import SpanFault, SpanShut
from obmm.region.region import Access, Region

_NULL, _BYTES, _from_buffer = ffi.NULL, ffi.typeof("char[]"), ffi.from_buffer
_load, _store = lib.obmm_gated_load, lib.obmm_gated_store
_copy_from, _copy_to = lib.obmm_gated_copy_from, lib.obmm_gated_copy_to
_WRITE = Right.WRITE  # an attribute of an Enum class costs more than the load itself


class Mapping(Memory):
    """Bytes of a region at addresses of this process.  Made by `Region.map`.

    Offsets count from the region's payload (`region.data_offset`), in bytes; the mapping covers payload offsets
    [`start`, `stop`).

    `load`, `store`, `read_into` and `write` of what is as it should be take the straight way to native code here; whatever
    is not is checked step by step by `Memory`, so that the error says what it was.

    >>> with a.export_region("2MiB", header=False) as region:
    ...     memory = region.map("rw")
    ...     with memory.writing():
    ...         memory.write(0, bytes(range(8))), memory.store("<u2", 0, 513)
    ...     memory.load("u1", 1), memory.read_into(bytearray(4), 2)
    ...     memory.nbytes >> 20, memory.readonly, memory.address > 0
    ...     memory.close()
    ...     memory.closed
    (8, None)
    (2, 4)
    (2, False, True)
    True
    """

    def __init__(
        self, region: Region, access: Access, low: int, high: int, cache: Cache | None, at: int | None = None
    ) -> None:
        """Map bytes [low, high) of the region, already on borders of its granularity; `at` is an address reserved for it."""
        piece = self._piece = Piece(region, access, low, high, cache)
        try:
            piece.map(at)
            super().__init__((piece,), piece.start, piece.stop)
            self._gate, self._lease = piece.quick_gate, piece.lease
        except BaseException:
            piece.close(force=True)
            raise

    @property
    def closed(self) -> bool:
        """True once unmapped, or in a forked child."""
        return not self._piece.open

    def load(self, dtype: str, offset: int) -> int | float:
        """One naturally aligned, untorn load: ``m.load("<u8", 0)``.

        `dtype` is a NumPy scalar name of 1, 2, 4 or 8 bytes.  RemoteMemoryError if the memory is gone.

        ObmmArgumentError for an unaligned or outlying `offset`, OwnershipError without the right.
        """
        try:
            scalar = SCALARS[dtype]
        except (KeyError, TypeError):
            raise bad_scalar(dtype) from None
        width, lease = scalar.width, self._lease
        if (
            type(offset) is int
            and self._piece.floor
            and self.start <= offset <= self.stop - width
            and (lease is None or lease.usable)
        ):
            loaded = _load(self._gate, self._payload + offset, width, _NULL)
            if not loaded.result:
                word: int = loaded.value
                return word if scalar.decode is None else scalar.decode(word)
        return super().load(dtype, offset)

    def store(self, dtype: str, offset: int, value: int | float) -> None:
        """One naturally aligned, untorn store of `value` at byte `offset`; `dtype` and errors as for `load`."""
        scalar, lease = scalar_of(dtype), self._lease
        if (
            type(offset) is int
            and self._piece.floor is _WRITE
            and self.start <= offset <= self.stop - scalar.width
            and (lease is None or lease.usable)
        ):
            try:
                word = scalar.encode(value)
            except (TypeError, ValueError):
                pass  # said below
            else:
                if not _store(self._gate, self._payload + offset, scalar.width, word, _NULL):
                    return
        super().store(dtype, offset, value)

    def read_into(self, out: Any, offset: int = 0) -> int:
        """Fill the writable buffer `out` from `offset` on, guarded -> bytes read.

        On RemoteMemoryError `out` holds an unspecified prefix.
        """
        try:
            target = _from_buffer(_BYTES, out, True)
        except (TypeError, BufferError, ValueError):
            return super().read_into(out, offset)  # which says what it is instead
        size, lease = len(target), self._lease
        if (
            type(offset) is int
            and self._piece.floor
            and self.start <= offset <= self.stop - size
            and (lease is None or lease.usable)
            and (type(out) is bytearray or not holds_objects(out))
            and not _copy_from(self._gate, target, self._payload + offset, size, self._nc, _NULL)
        ):
            return size
        return super().read_into(out, offset)

    def write(self, offset: int, data: Any) -> int:
        """Copy the buffer `data` to `offset`, guarded -> bytes written."""
        try:
            source = _from_buffer(_BYTES, data)
        except (TypeError, BufferError, ValueError):
            return super().write(offset, data)  # which says what it is instead
        size, lease = len(source), self._lease
        if (
            type(offset) is int
            and self._piece.floor is _WRITE
            and self.start <= offset <= self.stop - size
            and (lease is None or lease.usable)
            and (type(data) is bytes or not holds_objects(data))
            and not _copy_to(self._gate, self._payload + offset, source, size, self._nc, _NULL)
        ):
            return size
        return super().write(offset, data)

    def close(self, force: bool = False) -> None:
        """Unmap.  Idempotent.

        MappingBusyError, and nothing changed, while views live or other threads are inside guarded calls;
        ``force=True`` waits for those calls, then replaces the memory by inaccessible pages, so that late access
        through a view is a SIGSEGV and never somebody else's memory.

        What was written is written back first; an ObmmError of that step (the peer is gone) leaves the mapping open
        unless forced.
        """
        self._piece.close(force)

    def __repr__(self) -> str:
        return repr(self._piece)


def write_header_page(mapping: Mapping, page: bytes) -> None:
    """Replace the header of a region that `mapping` maps from its start, with the right W.  For the region itself."""
    piece = mapping._piece
    try:
        piece.span.copy_to(0, ffi.from_buffer(page), len(page))
    except (SpanFault, SpanShut) as failure:
        raise piece.failed("header write", failure) from None


def read_header_page(mapping: Mapping) -> bytes:
    """The header's page of a region that `mapping` maps from its start, read through the fabric."""
    return mapping._piece.read_header_page()
