# SPDX-License-Identifier: Apache-2.0
"""The objects that somebody still holds, listed while other threads make and drop them."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class Living(Generic[T]):
    """A set by weak reference.  A WeakSet cannot be iterated while another thread adds to it."""

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, thing: T) -> None:
        self._objects[id(thing)] = thing

    def snapshot(self) -> tuple[T, ...]:
        """Those alive now."""
        return tuple(thing for ref in self._objects.valuerefs() if (thing := ref()) is not None)
