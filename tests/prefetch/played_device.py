# SPDX-License-Identifier: Apache-2.0
"""A device plug-in without a device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class PlayedDevice:
    """Copies happen when somebody waits for them, and not before: the worst that a real queue may do."""

    def __init__(self) -> None:
        self.pinned: list[int] = []
        self.queue: list[tuple[list[bool], Any, Any]] = []
        self.waited: list[Any] = []

    def allocate_pinned(self, nbytes: int) -> bytearray:
        self.pinned.append(nbytes)
        return bytearray(nbytes)

    def allocate(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        return np.zeros(shape, np.uint8)

    def copy(self, destination: Any, source: Any) -> list[bool]:
        event = [False]
        self.queue.append((event, destination, source))
        return event

    def wait(self, event: list[bool], stream: Any) -> None:
        self.waited.append(stream)

    def done(self, event: list[bool]) -> bool:
        return event[0]

    def seconds(self, event: list[bool]) -> float:
        assert event[0], "asked before the copy was done"
        return 0.002

    def run(self) -> None:
        for event, destination, source in self.queue:
            destination[:] = source
            event[0] = True
        self.queue.clear()
