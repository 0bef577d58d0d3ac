# SPDX-License-Identifier: Apache-2.0
"""The fake device with what tests need beside it: captured graphs, refused calls, what is left of all that was made."""

from __future__ import annotations

from typing import Any

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.rows.accelerator import Accelerator, handle_of


class FakeAccelerator(Accelerator):
    """A device of this process, apart from all others.  Streams are threads, a graph is a list of what was queued."""

    def __init__(self) -> None:
        out = ffi.new("struct obmm_accelerator **")
        if lib.obmm_accelerator_fake(out):
            raise MemoryError("no memory for a fake device")
        super().__init__(out[0])

    @property
    def left(self) -> dict[str, int]:
        """Memories, streams and events that were made and not given back."""
        counts = ffi.new("struct obmm_fake_counts *")
        lib.obmm_fake_left(self.pointer, counts)
        return {"memories": counts.memories, "streams": counts.streams, "events": counts.events}

    def refuse_after(self, others: int) -> None:
        """After so many more that succeed, refuse the next thing that is made, once."""
        lib.obmm_fake_refuse(self.pointer, others)

    def capture(self, stream: Any) -> None:
        """From now on what is queued in `stream`, and in streams that wait for it, becomes part of a graph."""
        self.check(lib.obmm_fake_capture(self.pointer, handle_of(stream)), "capture")

    def end_capture(self, stream: Any) -> FakeGraph:
        """The graph; ObmmError EINVAL when something in it could not be captured."""
        out = ffi.new("struct obmm_fake_graph **")
        self.check(lib.obmm_fake_end_capture(self.pointer, handle_of(stream), out), "end of a capture")
        return FakeGraph(self, out[0])


class FakeGraph(Owner):
    """What was captured, to be queued again and again."""

    def __init__(self, accelerator: FakeAccelerator, pointer: Any) -> None:
        self.accelerator = accelerator
        self._pointer = ffi.gc(pointer, lib.obmm_fake_forget)

    def replay(self, stream: Any = None) -> None:
        """Queue all of it."""
        code = lib.obmm_fake_replay(self.accelerator.pointer, self._pointer, handle_of(stream))
        self.accelerator.check(code, "replay")
