# SPDX-License-Identifier: Apache-2.0
"""Slots that the directory granted ahead: a batch to store then begins with its copy, not with a question."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

IDLE_BEATS = 3


class Stash:
    """Grants that are not in use yet, as `wire.GRANT` packs them.  Safe from any number of threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._grants: deque[bytes] = deque()
        self._owed: list[bytes] = []
        self._mutex = threading.Lock()
        self._idle = 0
        self._demand = 0

    def take(self, count: int) -> list[bytes]:
        """Up to `count` of them."""
        with self._mutex:
            self._idle = 0
            self._demand = max(self._demand, count)
            return [self._grants.popleft() for _ in range(min(count, len(self._grants)))]

    def add(self, grants: Sequence[bytes]) -> None:
        with self._mutex:
            self._grants.extend(grants)

    def owe(self, grants: Sequence[bytes]) -> None:
        """Grants that were used and came to nothing: given back with the next beat."""
        with self._mutex:
            self._owed.extend(grants)

    def wanted(self) -> int:
        """How many to ask for, so that the next batch finds what the largest one lately needed."""
        with self._mutex:
            return max(0, min(self._demand, self._most) - len(self._grants))

    def beat(self) -> list[bytes]:
        """Grants owed, or unused for a while: to be given back.  Called as time passes."""
        with self._mutex:
            self._idle += 1
            owed, self._owed = self._owed, []
            if self._idle < IDLE_BEATS:
                return owed
            idle = owed + list(self._grants)
            self._grants.clear()
            self._demand = 0
            return idle

    def clear(self) -> None:
        """They are not ours any more."""
        with self._mutex:
            self._grants.clear()
            self._owed.clear()
