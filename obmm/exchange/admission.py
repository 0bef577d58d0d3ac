# SPDX-License-Identifier: Apache-2.0
"""Who may come in: limits that shut out the flood and not the others.

Strangers hold slots only until their handshake is over.  When slots are full, the oldest unfinished handshake of the
busiest source goes, silent ones first, and the new connection is let in: a flood pushes out its own connections.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from obmm.exchange.connection import Connection
from obmm.exchange.limits import Limits

KNOWN_SHARE = 10  # one slot in ten is kept for sources that had a session before
KNOWN_SOURCES = 4096


class Full(Exception):
    """Every slot is held by an established session."""


@lru_cache(maxsize=4096)
def source_of(address: str) -> str:
    """What counts as one source: an IPv4 address, or the /64 network of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


@dataclass(slots=True)
class _Waiting:
    """The unfinished handshakes of one source, oldest first."""

    silent: dict[Connection, None] = field(default_factory=dict)
    talking: dict[Connection, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.silent) + len(self.talking)

    def oldest(self) -> Connection:
        return next(iter(self.silent or self.talking))

    def remove(self, connection: Connection) -> None:
        self.silent.pop(connection, None)
        self.talking.pop(connection, None)


class Admission:
    """Counts of one server's connections; every method can be repeated without harm."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._inside: dict[Connection, str] = {}
        self._per_source: Counter[str] = Counter()
        self._waiting: dict[str, _Waiting] = {}
        self._unfinished = 0
        self._known: dict[str, None] = {}

    @property
    def unfinished(self) -> int:
        """Handshakes under way."""
        return self._unfinished

    def in_the_way(self, address: str) -> Connection | None:
        """The connection that must go before one more of ``address`` comes in, None if there is room; or Full."""
        limits, source = self._limits, source_of(address)
        own = self._waiting.get(source)
        if self._per_source[source] >= limits.connections_per_address:
            if own:
                return own.oldest()
            raise Full(f"{self._per_source[source]} connections of its network are open already")
        reserved = 0 if source in self._known else limits.connections // KNOWN_SHARE
        if len(self._inside) >= limits.connections - reserved:
            if self._waiting:
                return self._busiest().oldest()
            raise Full(f"{len(self._inside)} connections are open already")
        if own and len(own) >= limits.handshakes_per_address:
            return own.oldest()
        if self._unfinished >= limits.handshakes:
            return self._busiest().oldest()
        return None

    def add(self, connection: Connection) -> None:
        source = source_of(connection.address)
        self._inside[connection] = source
        self._per_source[source] += 1
        self._waiting.setdefault(source, _Waiting()).silent[connection] = None
        self._unfinished += 1

    def spoke(self, connection: Connection) -> None:
        """It has sent something: others go before it."""
        waiting = self._waiting.get(self._inside.get(connection, ""))
        if waiting is not None and connection in waiting.silent:
            del waiting.silent[connection]
            waiting.talking[connection] = None

    def established(self, connection: Connection) -> None:
        """Its handshake is over; its source is known from now on."""
        source = self._inside.get(connection, "")
        if self._finish(connection, source):
            self._known.pop(source, None)
            self._known[source] = None
            if len(self._known) > KNOWN_SOURCES:
                del self._known[next(iter(self._known))]

    def remove(self, connection: Connection) -> None:
        source = self._inside.pop(connection, None)
        if source is None:
            return
        self._finish(connection, source)
        self._per_source[source] -= 1
        if not self._per_source[source]:
            del self._per_source[source]

    def _finish(self, connection: Connection, source: str) -> bool:
        waiting = self._waiting.get(source)
        if waiting is None or (connection not in waiting.silent and connection not in waiting.talking):
            return False
        waiting.remove(connection)
        self._unfinished -= 1
        if not waiting:
            del self._waiting[source]
        return True

    def _busiest(self) -> _Waiting:
        """The source with most unfinished handshakes; among equals the one that has waited longest."""
        return max(self._waiting.values(), key=lambda waiting: (len(waiting), -waiting.oldest().accepted))
