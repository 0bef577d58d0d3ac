# SPDX-License-Identifier: Apache-2.0
"""The streams that read a step's rows on a device, and whose turn it is to be copied there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from obmm.prefetch.flight import Flight
from obmm.prefetch.landing import LandingDevice
from obmm.rows.accelerator import handle_of


class Readers:
    """Of one prefetcher."""

    def __init__(self, device: LandingDevice) -> None:
        self._device = device
        self._streams: set[int] = set()

    def joined(self, flight: Flight, stream: Any) -> bool:
        """Whether `stream` waits for rows that the gathering thread has sent on."""
        handle = handle_of(stream)
        if flight.slot is None or not flight.buffers.joined(flight.slot, handle):
            return False
        self._streams.add(handle)
        return True

    def note(self, stream: Any) -> None:
        """`stream` reads rows that were sent on by who consumed them."""
        self._streams.add(handle_of(stream))

    def end_step(self, following: Iterable[Flight]) -> None:
        """Later copies wait for what has been queued behind the rows; the step that follows takes its turn."""
        for handle in self._streams:
            self._device.read_by(handle)
        self._streams.clear()
        for flight in following:
            flight.take_turn()
