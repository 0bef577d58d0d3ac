# SPDX-License-Identifier: Apache-2.0
"""The machine that a rule test runs on: processes, injections, and cleaning up afterwards."""

from __future__ import annotations

from typing import Any

from .driver import Driver
from .replay.port import Port, Process


class Machine:
    """A freshly loaded driver on one of the recorded topologies."""

    def __init__(self, port: Port, config: str = "A") -> None:
        self.port = port
        port.begin(config)
        self._processes: list[Process] = []

    def process(self, name: str = "main") -> Driver:
        """A new process."""
        process = self.port.spawn(name)
        self._processes.append(process)
        return Driver(self.port, process)

    def fork(self, parent: Driver) -> Driver:
        """A child of `parent` with its descriptors and handles."""
        process = parent.process.fork()
        self._processes.append(process)
        return Driver(self.port, process)

    def kill(self, driver: Driver) -> tuple[tuple[Any, ...], ...]:
        """SIGKILL; gives what its end flushed."""
        self.port.account()
        driver.process.kill()
        self._processes.remove(driver.process)
        return driver.flushes()

    def stub(self, name: str, *values: int) -> None:
        """Arm a fault by its name in the transcript."""
        self.world("stub", set=[name, *values])

    def fault(self, name: str, value: int) -> None:
        """Arm a fault of the emulator by its own name."""
        self.world("fault", name=name, value=value)

    def world(self, op: str, **given: Any) -> dict[str, Any]:
        return self.port.world(op, given)

    def close(self) -> None:
        self.port.end(self._processes)
