# SPDX-License-Identifier: Apache-2.0
"""Bus controllers and the physical windows that belong to them (driver specification 13, 14)."""

from __future__ import annotations

from typing import Literal

from ..topology import Controller, HostSpec, Window
from .memory import Memory


class Windows:
    """The windows of one host, by address and by controller."""

    def __init__(self, spec: HostSpec) -> None:
        self._host = spec.name
        self._controllers = {controller.cna: controller for controller in spec.controllers}
        self._memory: dict[Window, Memory] = {}

    def controller(self, cna: int) -> Controller | None:
        """The local controller with primary CNA `cna`."""
        return self._controllers.get(cna)

    def kind(self, controller: Controller, start: int, length: int) -> Literal["CC", "NC"] | None:
        """CC or NC when the range lies in one window of `controller`, else None (rule I14)."""
        for window in controller.windows:
            if window.base <= start and start + length <= window.end:
                return window.kind
        return None

    def at(self, pa: int) -> Window | None:
        """The window that contains `pa`."""
        for controller in self._controllers.values():
            for window in controller.windows:
                if window.base <= pa < window.end:
                    return window
        return None

    def memory(self, pa: int) -> tuple[Memory, int, int] | None:
        """Plain memory behind a `backed` window at `pa`: (memory, offset, bytes to its end)."""
        window = self.at(pa)
        if window is None or not window.backed:
            return None
        memory = self._memory.get(window)
        if memory is None:
            memory = self._memory[window] = Memory(f"obmm-{self._host}-window-{window.base:x}", window.size)
        return memory, pa - window.base, window.end - pa

    def close(self) -> None:
        """Destroy the memory behind the windows."""
        for memory in self._memory.values():
            memory.destroy()
