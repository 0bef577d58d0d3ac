# SPDX-License-Identifier: Apache-2.0
"""Events behind a pollable file descriptor."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import Generic, TypeVar

from obmm.closing import Owner
from obmm.driver.descriptor import Descriptor

E = TypeVar("E")

KEPT = 4096


class EventQueue(Owner, Generic[E]):
    """`fileno` is readable while there are events that `drain` has not given out; it is closed with the object.

    The newest `KEPT` events are kept; the reader who never drains costs no more than that.
    """

    def __init__(self) -> None:
        self._events: deque[E] = deque(maxlen=KEPT)
        self._mutex = threading.Lock()
        self._event = Descriptor.eventfd()

    def fileno(self) -> int:
        return self._event.fileno()

    def put(self, event: E) -> None:
        """Never raises: a descriptor that cannot be written to now is written to with the next event."""
        with self._mutex:
            self._events.append(event)
            with contextlib.suppress(OSError, MemoryError):
                self._event.ring()

    def drain(self) -> tuple[E, ...]:
        """All events since the last call, oldest first."""
        with self._mutex:
            events = tuple(self._events)
            self._events.clear()
            if self.fileno() >= 0:
                with contextlib.suppress(OSError):
                    os.eventfd_read(self.fileno())
            return events

    def abandon(self) -> None:
        """In a forked child, where some other thread may have had the mutex for ever: give the descriptor back."""
        self._mutex = threading.Lock()
        self._event.close()
