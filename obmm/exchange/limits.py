# SPDX-License-Identifier: Apache-2.0
"""What one server puts up with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts and seconds.  Nothing that a peer does can make the server hold more, or wait longer.

    Connections and handshakes are counted by source: an IPv4 address, or the /64 network of an IPv6 one.

    * ``handshake_s``: from accept to an established session, TLS included.
    * ``frame_s``: from the first byte of a frame to its last (slow loris).
    * ``send_s``: without the peer taking a byte of what is waiting for it.
    * ``idle_s``: without a frame at all; clients ping three times in that time.
    * ``session_s``: a session's age; it is then ended, and the client, who connects again, proves anew who it is.
    * ``grants_waiting``: grants whose journal lines are not on the disk yet; beyond, FETCH is refused.
    * ``output_bytes``: with more waiting for a peer, nothing more is read from it.

    `connections`, `connections_per_address`, `handshakes`, `handshakes_per_address`, `leases`, `leases_per_connection` and
    `regions` are how many there may be at a time.

    >>> few = obmm.exchange.Limits(leases=10, idle_s=60)
    >>> with obmm.serve({}, port=0, plain=True, limits=few) as server:
    ...     server.port > 0
    True
    """

    connections: int = 10_000
    connections_per_address: int = 1024
    handshakes: int = 512
    handshakes_per_address: int = 64
    leases: int = 100_000
    leases_per_connection: int = 1024
    regions: int = 4096
    handshake_s: float = 5.0
    frame_s: float = 10.0
    send_s: float = 10.0
    idle_s: float = 300.0
    session_s: float = 86_400.0
    grants_waiting: int = 4096
    output_bytes: int = 256 * 1024
