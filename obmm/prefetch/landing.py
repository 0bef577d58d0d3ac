# SPDX-License-Identifier: Apache-2.0
"""Rows in device memory before the layer asks: the gathering thread itself queues the copy (docs/device.md)."""

from __future__ import annotations

import errno
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.prefetch.device import DeviceCopy
from obmm.rows.accelerator import Accelerator, DeviceArray, Event, PinnedMemory, Stream, handle_of

_arm = lib.obmm_landing_arm
_join = lib.obmm_landing_join
_queued = lib.obmm_landing_queued


class Zone(Owner):
    """One place in device memory, written through one stream; see native/device/landing.h."""

    def __init__(self, accelerator: Accelerator, copies: Stream, address: int) -> None:
        self.accelerator = accelerator
        out = ffi.new("struct obmm_zone **")
        accelerator.check(lib.obmm_zone_create(copies.pointer, address, out), "a place for rows")
        self.pointer = ffi.gc(out[0], lib.obmm_zone_free)


class Landing(Owner):
    """One staging buffer of a zone, and the copy from it."""

    __slots__ = ("_source", "accelerator", "pointer", "then", "zone")

    def __init__(self, zone: Zone, source: NDArray[np.uint8]) -> None:
        self.zone = zone
        self.accelerator = zone.accelerator
        out = ffi.new("struct obmm_landing **")
        self.accelerator.check(
            lib.obmm_landing_create(zone.pointer, ffi.cast("void *", source.ctypes.data), out), "an event"
        )
        self._source = source
        self.pointer = ffi.gc(out[0], lib.obmm_landing_free)
        self.then = (ffi.addressof(lib, "obmm_landing_arrived"), self.pointer)
        """What a gather into the buffer is followed by (`RowStore.prepare_many`)."""

    def arm(self, nbytes: int) -> None:
        """The next gather into the buffer is for the zone (`nbytes` > 0), or not yet (0)."""
        _arm(self.pointer, nbytes)

    @property
    def queued(self) -> bool:
        """Whether the copy is in the stream."""
        return bool(_queued(self.pointer))

    def copy(self, nbytes: int) -> None:
        """Queue the copy now."""
        self.accelerator.check(lib.obmm_landing_copy(self.pointer, nbytes), f"copy of {nbytes} bytes to the device")

    def join(self, stream: int) -> bool:
        """Make a stream wait for the copy; False when it is not queued."""
        code = _join(self.pointer, stream)
        if code and code != -errno.EAGAIN:
            self.accelerator.refuse(code, "wait for rows")
        return not code

    def done(self) -> bool:
        """Whether the copy has left the buffer."""
        code = lib.obmm_landing_done(self.pointer)
        if code and code != -errno.EBUSY:
            self.accelerator.refuse(code, "ask for a copy")
        return not code


@runtime_checkable
class LandingDevice(DeviceCopy, Protocol):
    """A device whose copies the gathering threads queue."""

    def landing(self, destination: Any, source: NDArray[np.uint8]) -> Landing:
        """The way from a staging buffer to a place on the device."""
        ...

    def read_by(self, stream: Any) -> None:
        """What is in `stream` now reads rows: the next copies wait for it."""
        ...


class NativeDevice(Owner):
    """`EngramPrefetcher`'s device: rows are in device memory before the layer asks, and no step waits for Python.

    device = NativeDevice(Accelerator.cuda(0))
    prefetcher = EngramPrefetcher(store, layers, max_tokens, device=device)
    rows = prefetcher.consume(layer, stream=torch.cuda.current_stream()).buffer  # a DeviceArray
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.copies = Stream(accelerator)
        """The stream that all copies go through."""
        self._read = Event(accelerator)
        self._zones: dict[int, Zone] = {}

    def allocate_pinned(self, nbytes: int) -> Any:
        """See `DeviceCopy`."""
        return PinnedMemory(self.accelerator, nbytes).array(np.uint8, (nbytes,))

    def allocate(self, shape: tuple[int, ...]) -> DeviceArray:
        """See `DeviceCopy`."""
        array = DeviceArray(self.accelerator, shape)
        self._zones[array.address] = Zone(self.accelerator, self.copies, array.address)
        return array

    def landing(self, destination: DeviceArray, source: NDArray[np.uint8]) -> Landing:
        """See `LandingDevice`."""
        return Landing(self._zones[destination.address], source)

    def copy(self, destination: DeviceArray, source: NDArray[np.uint8]) -> Landing:
        """See `DeviceCopy`.  `source` is pinned for an asynchronous copy; other memory is copied before it returns."""
        landing = self.landing(destination, source)
        landing.copy(destination.nbytes)
        return landing

    def wait(self, event: Landing, stream: Any) -> None:
        """See `DeviceCopy`."""
        event.join(handle_of(stream))

    def done(self, event: Landing) -> bool:
        """See `DeviceCopy`."""
        return event.done()

    def seconds(self, event: Landing) -> float | None:
        """None: the events of these copies carry no time, which makes them cheap."""
        return None

    def read_by(self, stream: Any) -> None:
        """See `LandingDevice`."""
        table = self.accelerator.pointer
        self.accelerator.check(
            lib.obmm_read_by(table, self._read.handle, handle_of(stream), self.copies.handle), "follow the readers"
        )

    def __repr__(self) -> str:
        return f"<NativeDevice {self.accelerator.name}:{self.accelerator.ordinal}>"
