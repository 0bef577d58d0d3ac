# SPDX-License-Identifier: Apache-2.0
"""Kernel mutexes under the fabric's one lock.

Everything runs with the fabric's lock held; a call that sleeps lets go of it.
What must stay excluded across such a sleep is held by one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import Condition


class Mutex:
    """Held across sleeps; waiting for it lets other calls run."""

    __slots__ = ("_changed", "_held", "_waiting")

    def __init__(self, changed: Condition) -> None:
        self._changed = changed
        self._held = False
        self._waiting = 0

    @property
    def held(self) -> bool:
        """Whether a call is inside, perhaps asleep."""
        return self._held

    def __enter__(self) -> None:
        while self._held:
            self._waiting += 1
            self._changed.wait()
            self._waiting -= 1
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        if self._waiting:
            self._changed.notify_all()
