# SPDX-License-Identifier: Apache-2.0
"""Handles over TCP: authenticated, leased, revocable (docs/exchange.md).

`serve` publishes regions, `connect` fetches them.  The wire is described byte by byte in docs/exchange-protocol.md.
"""

from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.desk import ServerEvent
from obmm.exchange.errors import (
    AuthenticationError,
    DeadlineError,
    ExchangeError,
    JournalError,
    LeaseError,
    LeasesOutstandingError,
    PeerUnreachableError,
    ProtocolError,
    Refusal,
    RequestRefusedError,
)
from obmm.exchange.keys import Key
from obmm.exchange.lease import Lease, LeaseEvent, LeaseStatus
from obmm.exchange.leases import LeaseRecord, LeaseState
from obmm.exchange.limits import Limits
from obmm.exchange.messages import RegionEntry
from obmm.exchange.net import DEFAULT_PORT
from obmm.exchange.peer import Peer, connect
from obmm.exchange.server import Server, serve
from obmm.exchange.tls import TlsFiles

__all__ = [
    "DEFAULT_PORT",
    "ArrayManifest",
    "AuthenticationError",
    "DeadlineError",
    "ExchangeError",
    "JournalError",
    "Key",
    "Lease",
    "LeaseError",
    "LeaseEvent",
    "LeaseRecord",
    "LeaseState",
    "LeaseStatus",
    "LeasesOutstandingError",
    "Limits",
    "Peer",
    "PeerUnreachableError",
    "ProtocolError",
    "Refusal",
    "RegionEntry",
    "RequestRefusedError",
    "Server",
    "ServerEvent",
    "TlsFiles",
    "connect",
    "serve",
]
