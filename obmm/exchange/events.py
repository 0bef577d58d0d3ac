# SPDX-License-Identifier: Apache-2.0
"""Events behind a pollable file descriptor."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from typing import Generic, TypeVar

E = TypeVar("E")

KEPT = 4096


class EventQueue(Generic[E]):
    """`fileno` is readable while there are events that `drain` has not given out; it is closed with the object.

    The newest `KEPT` events are kept; the reader who never drains costs no more than that.
    """

    def __init__(self) -> None:
        self._events: deque[E] = deque(maxlen=KEPT)
        self._mutex = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closer = weakref.finalize(self, os.close, self._fd)
        self._closer.atexit = False  # threads may still put events then

    def fileno(self) -> int:
        return self._fd

    def put(self, event: E) -> None:
        with self._mutex:
            self._events.append(event)
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def drain(self) -> tuple[E, ...]:
        """All events since the last call, oldest first."""
        with self._mutex:
            events = tuple(self._events)
            self._events.clear()
            if self._fd >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._fd)
            return events

    def abandon(self) -> None:
        """In a forked child, where some other thread may have had the mutex for ever: give the descriptor back."""
        self._mutex = threading.Lock()
        self._fd = -1
        self._closer()
