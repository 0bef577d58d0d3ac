# SPDX-License-Identifier: Apache-2.0
"""Imports that take as long as a modelled fabric would: guarded calls and gathers wait, views do not."""

from __future__ import annotations

import time
from typing import Any

from obmm._native import ffi, lib
from obmm.driver.modelled import ModelledFabric
from obmm.mapping.span import Span


def native_delay(fabric: ModelledFabric, row_bytes: int) -> Any:
    """``struct obmm_delay *`` for tables with rows of `row_bytes`."""
    found = ffi.new("struct obmm_delay *")
    row = fabric.row_ns(row_bytes)
    found.row_ps = round(row * 1000)
    # what a batch costs besides its rows
    found.call_ns = round(max(0.0, fabric.gather_ns(1024, row_bytes) - 1024 * row))
    return found


class DelayedSpan(Span):
    """A span whose guarded accesses take at least their modelled time."""

    fabric: ModelledFabric

    @property
    def quick_gate(self) -> Any:
        """Shut: the ways that leave the span out are closed, so that nothing is quicker."""
        gate = ffi.new("struct obmm_gate *")
        lib.obmm_gate_shut(gate, 0)
        return gate

    def load(self, offset: int, width: int) -> int:
        began = time.monotonic_ns()
        value = super().load(offset, width)
        self._wait(began, width)
        return value

    def store(self, offset: int, width: int, word: int) -> None:
        began = time.monotonic_ns()
        super().store(offset, width, word)
        self._wait(began, width)

    def copy_from(self, offset: int, target: Any, size: int) -> None:
        began = time.monotonic_ns()
        super().copy_from(offset, target, size)
        self._wait(began, size)

    def copy_to(self, offset: int, source: Any, size: int) -> None:
        began = time.monotonic_ns()
        super().copy_to(offset, source, size)
        self._wait(began, size)

    def _wait(self, began: int, size: int) -> None:
        if size:
            lib.obmm_delay_wait(began, int(self.fabric.gather_ns(1, size)))
