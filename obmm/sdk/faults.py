# SPDX-License-Identifier: Apache-2.0
"""Fault callbacks as events (SDK specification 10, 15 rule 7)."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import Any

from obmm.closing import Owner
from obmm.sdk.abi import FaultKind, ffi
from obmm.sdk.calls import Calls, fault_kind


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault of the object `name`, of that `kind`; `at` is time.monotonic() of its report."""

    name: str
    kind: FaultKind | int
    at: float


class FaultEvents(Owner):
    """Faults that were reported to this process, oldest first.  Any thread may read; each event is read once.

    Made by `Session.faults`.
    """

    def __init__(self, calls: Calls) -> None:
        calls.register_faults(_on_fault)

    def get(self, timeout: float | None = None) -> FaultEvent:
        """The next one; TimeoutError after `timeout` seconds."""
        try:
            return _events.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no fault within {timeout} s") from None

    def drain(self) -> tuple[FaultEvent, ...]:
        """Those that came so far, without waiting."""
        found: list[FaultEvent] = []
        while True:
            try:
                found.append(_events.get_nowait())
            except queue.Empty:
                return tuple(found)


_events: queue.SimpleQueue[FaultEvent] = queue.SimpleQueue()


# lives for ever: the library has no deregistration.  Runs on a thread of the library's.
@ffi.callback("shmem_faults_func", error=0)  # type: ignore[untyped-decorator]
def _on_fault(name: Any, kind: int) -> int:
    text: bytes = ffi.string(name)
    _events.put(FaultEvent(text.decode(errors="backslashreplace"), fault_kind(kind), time.monotonic()))
    return 0
