# SPDX-License-Identifier: Apache-2.0
"""The slots of a store in this process, and batches between them and the caller's memory."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm._native import ffi, lib
from obmm.blocks.buffers import Pieces
from obmm.blocks.errors import refused
from obmm.blocks.layout import SlotLayout
from obmm.mapping import Mapping, guard
from obmm.mapping.place import place_of
from obmm.rows.engine import GatherEngine

_RETRY = -errno.EUNATCH


class SlotMemory:
    """A mapping that begins with slot 0.  Keeps the mapping; its maker closes it, after `busy` is false."""

    def __init__(self, mapping: Mapping, layout: SlotLayout, incarnation: int, fingerprint: int = 0) -> None:
        place = place_of(mapping)
        if place.nbytes < layout.nbytes:
            raise refused(
                f"a mapping of {place.nbytes} bytes for {layout.nbytes} bytes of slots", "map the whole region"
            )
        if place.nc != (layout.cache == "nc"):
            raise refused(f"{mapping!r} for slots in {layout.cache} mode", f"map it {layout.cache}")
        self.mapping, self.layout = mapping, layout
        self.incarnation = incarnation
        self._place = place  # keeps gate and system-call table
        self.area = area = ffi.new("struct obmm_block_area *")
        area.base = ffi.cast("uint8_t *", place.address)
        area.stride, area.slots, area.capacity = layout.stride, layout.slots, layout.capacity
        area.incarnation, area.fingerprint = incarnation, fingerprint
        area.gate = place.gate
        area.use = ffi.NULL
        if not place.nc:
            use = lib.obmm_slot_use_create(layout.slots)
            if not use:
                raise MemoryError
            self._use = ffi.gc(use, lib.obmm_slot_use_free)
            area.use, area.sys, area.fd = self._use, place.sys, place.fd

    def clear(self, slots: Sequence[int]) -> bool:
        """Make the headers of these slots unreadable; False when the memory refused one."""
        array = np.fromiter(slots, np.uint32, len(slots))
        return not lib.obmm_slots_clear(self.area, ffi.from_buffer("uint32_t[]", array), len(array))


class Batch:
    """Blocks under way between slots and memory; keeps everything alive that native threads touch.

    `places` are `count` records of 32 bytes (`obmm.blocks.wire.PLACE`), `pieces` the caller's memory for each.
    """

    __slots__ = ("_kept", "native", "pieces", "status", "ticket")

    def __init__(
        self,
        memory: SlotMemory,
        places: bytes,
        pieces: Pieces,
        *,
        to_slots: bool,
        bell: int = -1,
        deadline: float | None = None,
    ) -> None:
        self.status: npt.NDArray[np.int8] = np.full(pieces.count, lib.OBMM_BLOCK_PENDING, np.int8)
        self.pieces = pieces
        self.ticket: int | None = None
        self.native: Any = ffi.new("struct obmm_block_batch *")
        native = self.native
        addresses = ffi.from_buffer("uint64_t[]", pieces.addresses)
        sizes = ffi.from_buffer("uint32_t[]", pieces.sizes)
        status = ffi.from_buffer("int8_t[]", self.status, require_writable=True)
        packed = ffi.from_buffer("struct obmm_block_place[]", places)
        self._kept = (memory, places, addresses, sizes, status, packed)
        native.area, native.places = memory.area, packed
        native.addresses, native.sizes, native.status = addresses, sizes, status
        native.count, native.pieces, native.to_write, native.bell = pieces.count, pieces.each, to_slots, bell
        if deadline is not None:
            native.deadline_ns = max(1, int(deadline * 1e9))
        result = lib.obmm_batch_prepare(native)
        if result == -errno.EFAULT:
            raise refused(
                "two pieces of memory that blocks are loaded into overlap: one block's bytes would be another's",
                "give each block memory of its own",
                errno.EFAULT,
            )
        if result:
            raise refused(f"a batch of {pieces.count} blocks in {pieces.each} pieces", "1..16,777,216 pieces")

    def run(self, engine: GatherEngine) -> int:
        """Move all of it, by this thread and the engine's -> 0, or the engine's refusal: then nothing was touched."""
        with self.pieces.guarded():
            result = int(lib.obmm_batch_run(engine.pointer, self.native))
            if result == _RETRY:
                guard.verify()
                result = int(lib.obmm_batch_run(engine.pointer, self.native))
        return result

    def submit(self, engine: GatherEngine) -> int:
        """Move it in the background; `ended` tells when -> 0, or the engine's refusal."""
        ticket = ffi.new("uint64_t *")
        self.pieces.guard()
        result = int(lib.obmm_batch_submit(engine.pointer, self.native, ticket))
        if result == _RETRY:
            guard.verify()
            result = int(lib.obmm_batch_submit(engine.pointer, self.native, ticket))
        if result:
            self.pieces.unguard()
        else:
            self.ticket = int(ticket[0])
        return result

    def collect(self, engine: GatherEngine, timeout: float) -> bool:
        """Whether a submitted batch has ended; waits at most `timeout` seconds.  Its statuses are complete then."""
        if self.ticket is None:
            return True
        result = lib.obmm_ticket_collect(engine.pointer, self.ticket, int(timeout * 1e9))
        if result == -errno.ETIMEDOUT:
            return False
        self.ticket = None
        self.pieces.unguard()
        return True

    def abandon(self, engine: GatherEngine) -> None:
        """Blocks that have not started yet do not start any more."""
        if self.ticket is not None:
            lib.obmm_ticket_abandon(engine.pointer, self.ticket)

    @property
    def bytes_moved(self) -> int:
        return int(self.native.bytes)
