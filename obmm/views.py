# SPDX-License-Identifier: Apache-2.0
"""The live views of a mapping, and the references that keep it alive under them (docs/safety.md).

view -> buffer -> pointer -> mapping -> region -> device: each holds the next, nothing points back but weakly.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any

from obmm._native import ffi


@dataclass(frozen=True, slots=True)
class _View:
    ref: weakref.ref[Any]
    low: int
    high: int
    writable: bool
    what: str

    def __str__(self) -> str:
        return self.what + ("" if self.writable else " (read-only)")


class ViewLedger:
    """Who looks at a mapping's memory without a guard.  True while anybody does."""

    def __init__(self) -> None:
        self._views: dict[int, _View] = {}
        self._keys = itertools.count()

    def make(self, owner: object, address: int, low: int, high: int, writable: bool, what: str) -> memoryview:
        """A view of the memory at `address`, known as [low, high) and `what`, that keeps `owner` alive."""
        pointer = ffi.gc(ffi.cast("char *", address), _Keep(owner), 0)
        buffer = ffi.buffer(pointer, high - low)
        key, views = next(self._keys), self._views
        views[key] = _View(weakref.ref(buffer, lambda _: views.pop(key, None)), low, high, writable, what)
        view = memoryview(buffer)
        return view if writable else view.toreadonly()

    def over(self, low: int, high: int, *, writable_only: bool = False) -> tuple[str, ...]:
        """The live views that touch [low, high), each in words."""
        return tuple(
            str(view)
            for view in list(self._views.values())
            if view.low < high and low < view.high and (view.writable or not writable_only)
        )

    def __bool__(self) -> bool:
        return bool(self._views)


class _Keep:
    """A destructor that only holds a reference."""

    __slots__ = ("owner",)

    def __init__(self, owner: object) -> None:
        self.owner = owner

    def __call__(self, _: object) -> None:
        pass
