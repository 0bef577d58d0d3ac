# SPDX-License-Identifier: Apache-2.0
"""The buffers of one layer: made once, never grown, never handed out while anything may still write them."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.closing import Owner
from obmm.prefetch.device import DeviceCopy
from obmm.prefetch.failures import refused
from obmm.prefetch.landing import Landing, LandingDevice
from obmm.prefetch.rows import Rows
from obmm.prefetch.source import Ticket

Allocate = Callable[[int], Any]

HUGE_PAGE = 2 << 20


def anonymous_memory(nbytes: int) -> Any:
    """Zeroed pages of our own, 2 MiB-aligned and huge where they are large (the kernel may refuse: no harm)."""
    if nbytes < HUGE_PAGE:
        return mmap.mmap(-1, max(nbytes, 1))
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % HUGE_PAGE
    return memoryview(memory)[start : start + nbytes]


class Slot:
    """Staging for one layer of one step: the ids, and the bytes that they gather."""

    __slots__ = ("_front", "abandoned", "blamed", "delivered", "event", "held", "ids", "landing", "pending", "rows")

    def __init__(self, max_tokens: int, columns: int, row_bytes: int, allocate: Allocate) -> None:
        nbytes = max_tokens * columns * row_bytes
        memory = memoryview(allocate(nbytes)).cast("B")
        if memory.readonly or memory.nbytes < nbytes:
            raise refused(
                f"staging of {memory.nbytes} bytes, readonly={memory.readonly}", f"{nbytes} writable bytes", "13.4"
            )
        self.rows: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, nbytes).reshape(max_tokens, columns, row_bytes)
        self.ids: NDArray[np.int64] = np.zeros((max_tokens, columns), np.int64)
        self.held = False
        self.abandoned = False
        self.blamed = False
        """Whether the store that the gather was lost in is the one that is asked now."""
        self.pending: Ticket | None = None
        self.event: Any = None
        self.landing: Landing | None = None
        """How the gathering thread sends the rows on to the device; None: who consumes them does."""
        self.delivered: Rows | None = None
        """What it was consumed as the last time: the next step of that size is the same object."""
        self._front: tuple[int, NDArray[np.uint8]] = (max_tokens, self.rows)

    def front(self, tokens: int) -> NDArray[np.uint8]:
        """The rows of the first tokens; the same object while their number stays."""
        if self._front[0] != tokens:
            self._front = tokens, self.rows[:tokens]
        return self._front[1]

    @property
    def free(self) -> bool:
        return not self.held and self.pending is None and self.event is None


class LayerBuffers(Owner):
    """The staging slots of one layer, and the one address from which it is consumed.

    With a device, that address is the device tensor.  Without one it is the slot `home`: the oldest step is gathered in
    place when it begins alone, a step that overlaps an older one is staged elsewhere and copied home when its turn comes.
    One slot is spare, for what must be gathered while another one is lost to a late gather.
    """

    def __init__(
        self,
        max_tokens: int,
        columns: int,
        row_bytes: int,
        depth: int,
        allocate: Allocate,
        device: DeviceCopy | None,
        copied: Callable[[float], None],
    ) -> None:
        """`copied` is told how long each copy to the device took."""
        shape = (max_tokens, columns, row_bytes)
        self._device = device
        self._copied = copied
        self._on_device: Any = None if device is None else device.allocate(shape)
        self._device_front: tuple[int, Any] = (-1, None)
        self._home = Slot(*shape, allocate) if device is None else None
        overlapping = 0 if device is None and depth == 1 else depth
        staging = [Slot(*shape, allocate) for _ in range(overlapping + 1)]  # the last one is the spare
        self._slots = staging if self._home is None else [self._home, *staging]
        if isinstance(device, LandingDevice):
            for slot in staging:
                slot.landing = device.landing(self._on_device, slot.rows)
        self._late: list[Slot] = []  # those with a gather that was left or a copy that is under way
        self._zeros: NDArray[np.uint8] = np.zeros(shape, np.uint8)
        self._zeros.setflags(write=False)
        self._zeroing: Any = None  # the last copy of zeros: its event lives until the next

    @property
    def home(self) -> Any:
        """What `consume` hands out: ``[max_tokens, columns, row_bytes]``."""
        return self._on_device if self._home is None else self._home.rows

    @property
    def front_slot(self) -> Slot | None:
        """The slot that is consumed where it was gathered; None with a device, whose copies it needs."""
        return self._home

    @property
    def in_use(self) -> int:
        return sum(slot.held for slot in self._slots)

    @property
    def abandoned(self) -> int:
        return sum(slot.abandoned for slot in self._late) if self._late else 0

    @property
    def blamed(self) -> int:
        """Those of `abandoned` that speak against the store."""
        return sum(slot.abandoned and slot.blamed for slot in self._late) if self._late else 0

    def forgive(self) -> None:
        """Another store is asked from now on."""
        for slot in self._late:
            slot.blamed = False

    def acquire(self, *, oldest: bool) -> Slot | None:
        """A free slot to gather into in the background; home is for the oldest step alone."""
        return self._hold(self._slots[:-1], oldest)

    def acquire_spare(self, *, oldest: bool) -> Slot | None:
        """Any free slot, the spare too, to gather into while the caller waits."""
        return self._hold(self._slots, oldest)

    def _hold(self, slots: list[Slot], oldest: bool) -> Slot | None:
        for slot in slots:
            if slot.free and (oldest or slot is not self._home):
                slot.held = True
                return slot
        return None

    def release(self, slot: Slot) -> None:
        slot.held = False
        self._note_copy(slot)

    def _note_copy(self, slot: Slot) -> None:
        """A copy that the gathering thread queued keeps its slot as one that was queued here does."""
        if slot.landing is not None and slot.event is None and slot.landing.queued:
            slot.event = slot.landing
            if slot not in self._late:
                self._late.append(slot)

    def arm(self, slot: Slot, padded: int) -> None:
        """Before the gather: its rows go to the device when it ends; with `padded` 0 they wait for their step's turn."""
        if slot.landing is not None:
            slot.landing.arm(padded * (slot.rows.nbytes // slot.rows.shape[0]))

    def joined(self, slot: Slot, stream: int) -> bool:
        """Whether `stream` waits for a copy that the gathering thread queued."""
        return slot.landing is not None and slot.landing.join(stream)

    def leave(self, slot: Slot, ticket: Ticket, *, abandoned: bool) -> None:
        """Give the slot up until its gather has returned."""
        ticket.abandon()
        slot.held = False
        slot.pending = ticket
        slot.abandoned = slot.blamed = abandoned
        self._late.append(slot)

    def reclaim(self) -> None:
        """Take back what gathers and copies have left."""
        if not self._late:
            return
        for slot in self._late:
            if slot.pending is not None and slot.pending.done():
                slot.pending, slot.abandoned = None, False
                if slot.landing is not None and slot.event is None and slot.landing.queued:
                    slot.event = slot.landing
            if slot.event is not None and self._device is not None and self._device.done(slot.event):
                took = self._device.seconds(slot.event)
                if took is not None:
                    self._copied(took)
                slot.event = None
        self._late = [slot for slot in self._late if slot.pending is not None or slot.event is not None]

    def wait_for_gathers(self, deadline: float) -> int:
        """Wait until the monotonic `deadline`; how many gathers still run."""
        for slot in self._slots:
            if slot.pending is not None:
                slot.pending.wait(max(0.0, deadline - time.monotonic()))
        self.reclaim()
        return sum(slot.pending is not None for slot in self._slots)

    def deliver(self, slot: Slot, padded: int, stream: Any) -> tuple[Any, Slot]:
        """The rows where they are consumed, and the slot that holds them from now on."""
        home = self._home
        if home is None:
            assert self._device is not None
            self.stage(slot, padded)
            self._device.wait(slot.event, stream)
            return self.device_front(padded), slot
        if slot is not home and home.free:
            np.copyto(home.rows[:padded], slot.rows[:padded])
            slot.held, home.held = False, True
            slot = home
        return slot.front(padded), slot

    def device_front(self, padded: int) -> Any:
        """The device rows of the first tokens; the same object while their number stays."""
        if self._device_front[0] != padded:
            self._device_front = padded, self._on_device[:padded]
        return self._device_front[1]

    def stage(self, slot: Slot, padded: int) -> None:
        """Start the copy to the device, once."""
        if self._device is None or slot.event is not None:
            return
        if slot.landing is None:
            slot.event = self._device.copy(self._on_device[:padded], slot.rows[:padded])
        else:
            if not slot.landing.queued:
                slot.landing.copy(padded * (slot.rows.nbytes // slot.rows.shape[0]))
            slot.event = slot.landing
        self._late.append(slot)

    def deliver_zeros(self, padded: int, stream: Any) -> tuple[Any, Slot | None]:
        """Zero bytes, at the usual address unless an abandoned gather may still write there."""
        if self._device is not None:
            self._zeroing = self._device.copy(self._on_device[:padded], self._zeros[:padded])
            self._device.wait(self._zeroing, stream)
            return self._on_device[:padded], None
        slot = self.acquire_spare(oldest=True)
        if slot is None:
            return self._zeros[:padded], None
        slot.rows[:padded] = 0
        return self.deliver(slot, padded, stream)
