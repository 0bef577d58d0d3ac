# SPDX-License-Identifier: Apache-2.0
"""Who may hold the broker's connections: users without a rule share a part of them, and each connection has a time limit.

A connection serves one request.  When the slots of its kind are full, the oldest one of the busiest user that has not
sent its request yet goes, and the new one is let in.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

CONNECTIONS = 256  # of users that a rule speaks of; as many again are never needed: a connection serves one request
STRANGERS = 64  # of all other users together
CONNECTIONS_PER_USER = 16
REMEMBERED = 4096


@dataclass(eq=False, slots=True)
class Guest:
    """One connection."""

    connection: socket.socket
    uid: int
    known: bool
    asked: bool = False  # its request is here: it is being answered, and stays
    sent_away: bool = False


@dataclass(slots=True)
class Slots:
    """Used from every thread of the broker."""

    listed: Callable[[int], bool]  # a rule names this user itself; cheap and never blocking
    guests: dict[Guest, None] = field(default_factory=dict)
    _known: dict[int, bool] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def enter(self, connection: socket.socket, uid: int) -> tuple[Guest | None, Guest | None]:
        """(the guest, None when there is no slot; the connection that was closed for it, or None)."""
        with self._changed:
            known = uid == 0 or self._known.get(uid, False) or self.listed(uid)
            alike = [each for each in self.guests if each.known == known and not each.sent_away]
            own = [each for each in alike if each.uid == uid]
            gone = None
            if len(own) >= CONNECTIONS_PER_USER:
                gone = _first_idle(own)
            elif len(alike) >= (CONNECTIONS if known else STRANGERS):
                gone = _first_idle(_busiest(alike))
            else:
                return self._add(connection, uid, known), None
            if gone is None:
                return None, None
            gone.sent_away = True
            with contextlib.suppress(OSError):
                gone.connection.shutdown(socket.SHUT_RDWR)  # its thread wakes up and ends
            return self._add(connection, uid, known), gone

    def asks(self, guest: Guest, known: bool) -> None:
        """Its request is here, and whether a rule speaks of its user is known by now."""
        with self._changed:
            guest.asked = True
            self._known.pop(guest.uid, None)
            self._known[guest.uid] = known
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]

    def leave(self, guest: Guest) -> None:
        with self._changed:
            self.guests.pop(guest, None)
            self._changed.notify_all()

    def wait_empty(self, timeout: float) -> bool:
        """Wait until all connections are closed; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.guests, timeout)

    def of(self, uid: int) -> int:
        """How many connections a user holds."""
        with self._changed:
            return sum(each.uid == uid and not each.sent_away for each in self.guests)

    def _add(self, connection: socket.socket, uid: int, known: bool) -> Guest:
        guest = Guest(connection, uid, known)
        self.guests[guest] = None
        return guest


def _first_idle(guests: list[Guest]) -> Guest | None:
    return next((each for each in guests if not each.asked), None)


def _busiest(guests: list[Guest]) -> list[Guest]:
    """Those of the user with most idle connections; among equals of the one that has waited longest."""
    idle: dict[int, list[Guest]] = {}
    for each in guests:
        if not each.asked:
            idle.setdefault(each.uid, []).append(each)
    return max(idle.values(), key=len, default=[])
