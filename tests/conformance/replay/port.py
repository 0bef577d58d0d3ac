# SPDX-License-Identifier: Apache-2.0
"""What the replay needs from a backend: processes, injections and the account of the hardware's work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .transcript import Case

Step = dict[str, Any]


@dataclass
class Account:
    """What the driver asked of the hardware since the last look, with the transcript's keys."""

    flush: list[Step] = field(default_factory=list)
    numa_calls: list[Step] = field(default_factory=list)
    ummu_calls: list[Step] = field(default_factory=list)


class Process(Protocol):
    """One process of a case."""

    pid: int

    def perform(self, op: str, given: Step, timeout: float | None = None) -> Step:
        """Do one step and give its result; ``{"hang": ...}`` when it does not come back in `timeout` seconds."""

    def start(self, op: str, given: Step) -> None:
        """Begin a step without waiting; `join` collects its result."""

    def join(self) -> Step: ...

    def fork(self) -> Process:
        """A child with this process's memory map, descriptors and handles."""

    def kill(self) -> None:
        """SIGKILL; returns when the kernel has released everything the process had."""

    def settle(self) -> None:
        """Wait until what an exit or exec releases is released."""


class Port(Protocol):
    """A backend under test."""

    name: str
    #: Operations of the whole machine that this port answers itself.
    world_operations: frozenset[str]

    def unable(self, case: Case) -> str | None:
        """Why this port cannot run `case` at all, or None."""

    def begin(self, config: str, clearing: bool = False) -> None:
        """A freshly loaded driver on topology `config`; `clearing`: account for flushes that clear memory, too."""

    def spawn(self, name: str) -> Process: ...

    def world(self, op: str, given: Step) -> Step:
        """One of `world_operations`, with the transcript's result keys."""

    def account(self) -> Account: ...

    def augment(self, process: Process, op: str, given: Step, result: Step) -> Step:
        """Replace what only a kernel shows by the model's own account; a kernel's port returns `result`."""

    def end(self, processes: Sequence[Process]) -> None:
        """Kill the processes and leave nothing behind."""
