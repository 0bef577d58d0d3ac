# SPDX-License-Identifier: Apache-2.0
"""A case's only process played by the replay itself: no fork and no messages, which are slow on an emulated CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.conformance.replay.agent import Agent
from tests.conformance.replay.native_system import LibcCalls, NativeSystem
from tests.conformance.replay.transcript import Case

Step = dict[str, Any]

#: Operations that change or end the process, or may never come back.
UNFIT = frozenset(
    {
        "fork",
        "exec",
        "exit",
        "kill",
        "start",
        "join",
        "call",
        "setuid",
        "rlimit",
        "max_map_count",
        "mmap_many",
        "mremap",
    }
)
_ACCESSES = frozenset({"load", "store", "fill_check"})


def fits(case: Case) -> bool:
    """Whether a case can be played here without harm to the player.

    Not when it touches addresses that it unmapped: the interpreter's own memory may lie there by then.
    """
    unmapped: set[str] = set()
    for step in case.steps:
        op = step["op"]
        if op in UNFIT or "proc" in step or "hang" in step:
            return False
        if op in _ACCESSES and step["in"].get("map") in unmapped:
            return False
        if op == "munmap":
            unmapped.add(step["in"]["map"])
    return True


class _Calls(LibcCalls):
    """Knows which descriptors are open and which addresses are mapped: what a case unmapped may be the interpreter's."""

    def __init__(self) -> None:
        self.files: set[int] = set()
        self.spans: list[tuple[int, int]] = []

    def mmap(self, address: int, length: int, prot: int, flags: int, fd: int, offset: int) -> int:
        at = super().mmap(address, length, prot, flags, fd, offset)
        self.spans.append((at, at + length))
        return at

    def munmap(self, address: int, length: int) -> None:
        super().munmap(address, length)
        start, end = address, address + length
        self.spans = [
            piece
            for low, high in self.spans
            for piece in ((low, min(high, start)), (max(low, end), high))
            if piece[0] < piece[1]
        ]

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        self.files.add(fd)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.files.discard(fd)


class _System(NativeSystem):
    def __init__(self, probe: Path) -> None:
        self.calls = _Calls()
        super().__init__(probe, self.calls)

    def dup(self, fd: int) -> int:
        copy = super().dup(fd)
        self.calls.files.add(copy)
        return copy

    def reserve(self, length: int) -> int:
        at = super().reserve(length)
        self.calls.spans.append((at, at + length))
        return at


class LocalProcess:
    """A `Process` of the replay port; `kill` gives back what the case left open or mapped."""

    def __init__(self, probe: Path) -> None:
        self.pid = os.getpid()
        self._system = _System(probe)
        self._agent = Agent(self._system)

    def renew(self) -> LocalProcess:
        """The process of the next case."""
        self._agent = Agent(self._system)
        return self

    def perform(self, op: str, given: Step, timeout: float | None = None) -> Step:
        try:
            return self._agent.perform(op, given)
        except Exception as error:
            return {"failure": f"{type(error).__name__}: {error}"}

    def kill(self) -> None:
        calls = self._system.calls
        for start, end in tuple(calls.spans):
            calls.munmap(start, end - start)
        for fd in tuple(calls.files):
            calls.close(fd)

    def start(self, op: str, given: Step) -> None:
        raise NotImplementedError

    def join(self) -> Step:
        raise NotImplementedError

    def fork(self) -> LocalProcess:
        raise NotImplementedError

    def settle(self) -> None:
        raise NotImplementedError
