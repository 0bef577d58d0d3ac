# SPDX-License-Identifier: Apache-2.0
"""The live views of mapped memory, and the references that keep it alive under them (docs/safety.md).

view -> buffer -> pointer -> mapping -> region -> device: each holds the next, nothing points back but weakly.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any

from obmm._native import ffi
from obmm.closing import Owner


@dataclass(frozen=True, slots=True)
class _View:
    ref: weakref.ref[Any]
    low: int
    high: int
    writable: bool
    what: str

    @property
    def alive(self) -> bool:
        return self.ref() is not None

    def __str__(self) -> str:
        return self.what + ("" if self.writable else " (read-only)")


class ViewLedger(Owner):
    """Views of mapped memory, which have no guard.  True while one lives.

    Who lives is looked up: the callbacks only keep the ledger short, and one that was interrupted costs an entry.
    """

    def __init__(self) -> None:
        self._views: dict[int, _View] = {}
        self._keys = itertools.count()

    def note(self, buffer: Any, low: int, high: int, writable: bool, what: str) -> None:
        """`buffer` is a view of [low, high), `what` in words."""
        key, views = next(self._keys), self._views
        views[key] = _View(weakref.ref(buffer, lambda _: views.pop(key, None)), low, high, writable, what)

    def make(self, owner: object, address: int, low: int, high: int, writable: bool, what: str) -> memoryview:
        """A view of the memory at `address`, known as [low, high) and `what`, that keeps `owner` alive."""
        buffer = unguarded(owner, address, high - low)
        self.note(buffer, low, high, writable, what)
        return shown(buffer, writable)

    def over(self, low: int, high: int, *, writable_only: bool = False) -> tuple[str, ...]:
        """The live views that touch [low, high), each in words."""
        return tuple(
            str(view)
            for view in list(self._views.values())
            if view.low < high and low < view.high and (view.writable or not writable_only) and view.alive
        )

    def __bool__(self) -> bool:
        return any(view.alive for view in list(self._views.values()))


def unguarded(owner: object, address: int, size: int) -> Any:
    """The `size` bytes at `address` as a buffer that keeps `owner` alive."""
    return ffi.buffer(ffi.gc(ffi.cast("char *", address), _Keep(owner), 0), size)


def shown(buffer: Any, writable: bool) -> memoryview:
    """What users get of a buffer."""
    view = memoryview(buffer)
    return view if writable else view.toreadonly()


class _Keep:
    """A destructor that only holds a reference."""

    __slots__ = ("owner",)

    def __init__(self, owner: object) -> None:
        self.owner = owner

    def __call__(self, _: object) -> None:
        pass
