# SPDX-License-Identifier: Apache-2.0
"""The client processes of a fabric and their deaths."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Session

GRACE = 0.5
"""Seconds that a request waits for the exit of a process that died before it."""


class Clients:
    """Sessions by connection, and those whose client has died but whose exit is not over."""

    def __init__(self) -> None:
        self._hangups = select.epoll()
        self._sessions: dict[int, Session] = {}
        self._dying: set[Session] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def add(self, session: Session, connection: socket.socket) -> None:
        with self._lock:
            self._sessions[connection.fileno()] = session
            self._hangups.register(connection.fileno(), 0)

    def remove(self, session: Session, connection: socket.socket) -> None:
        """The session's thread has ended: close its connection."""
        with self._lock:
            descriptor = connection.fileno()
            if self._sessions.pop(descriptor, None) is not None:
                self._hangups.unregister(descriptor)
            connection.close()
            self._dying.discard(session)

    def settle(self) -> None:
        """Let every process that is dead by now finish its exit.

        Its own thread does that; one whose last call still waits in the model is not waited for, as the
        kernel would not.
        """
        if self._hangups.poll(0, 64):
            with self._lock:
                for descriptor, _ in self._hangups.poll(0, 64):
                    self._hangups.unregister(descriptor)
                    self._dying.add(self._sessions.pop(descriptor))
        for session in tuple(self._dying):
            if not session.busy:
                session.done.wait(GRACE)
