# SPDX-License-Identifier: Apache-2.0
"""One client's connection, as the server keeps it."""

from __future__ import annotations

import selectors
from dataclasses import dataclass, field

from obmm.exchange.limits import Limits
from obmm.exchange.link import Link
from obmm.exchange.messages import Message
from obmm.exchange.session import ServerSession


@dataclass(eq=False, slots=True)
class Connection:
    """All times are on the monotonic clock."""

    link: Link
    address: str
    session: ServerSession
    accepted: float
    leases: set[bytes] = field(default_factory=set)
    active: float = 0.0  # last whole frame
    partial_since: float | None = None
    stalled_since: float | None = None
    dying: bool = False  # was refused, and may read why
    unfinished: bool = False  # more requests of it are here already
    events: int = selectors.EVENT_READ

    @property
    def client(self) -> str:
        """What the client calls itself."""
        return self.session.client

    @property
    def name(self) -> str:
        return f"{self.client or 'unnamed'}@{self.address}"

    @property
    def identity(self) -> str:
        """What leases are bound to: only a certificate tells clients apart."""
        return self.link.transport.peer_identity

    def push(self, message: Message) -> None:
        """Queue a message that answers no request."""
        if not self.dying:
            self.link.send(message)

    def deadline(self, limits: Limits) -> float:
        """The earliest of those that apply now."""
        established = self.session.established
        when = self.active + limits.idle_s if established else self.accepted + limits.handshake_s
        if self.partial_since is not None:
            when = min(when, self.partial_since + limits.frame_s)
        if self.stalled_since is not None:
            when = min(when, self.stalled_since + limits.send_s)
        return when
