# SPDX-License-Identifier: Apache-2.0
"""One client's connection, as the server keeps it."""

from __future__ import annotations

import selectors
import time
from dataclasses import dataclass, field

from obmm.exchange.credentials import Credentials
from obmm.exchange.errors import ProtocolError, Refusal
from obmm.exchange.limits import Limits
from obmm.exchange.link import Link
from obmm.exchange.messages import Message, Mode
from obmm.exchange.session import ServerSession


@dataclass(eq=False, slots=True)
class Connection:
    """All times are on the monotonic clock."""

    link: Link
    address: str
    session: ServerSession
    credentials: Credentials  # those in force when it came
    accepted: float
    leases: set[bytes] = field(default_factory=set)
    active: float = 0.0  # last whole frame
    partial_since: float | None = None
    stalled_since: float | None = None
    dying: bool = False  # was refused, and may read why
    unfinished: bool = False  # more requests of it are here already
    broken: bool = False  # something in here failed: it is closed at the next occasion
    established: float | None = None
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
        """What leases are bound to: the certificate's name, or the name of the key; keys without one are all one."""
        if self.link.transport.peer_identity:
            return self.link.transport.peer_identity
        return self.session.key.who if self.session.key is not None else ""

    @property
    def transport_without_name(self) -> bool:
        """It showed a certificate without a name that rules can use."""
        return self.credentials.mode is Mode.TLS and not self.link.transport.peer_identity

    def overdue(self, limits: Limits) -> ProtocolError | str:
        """What its deadline was for: an error to tell the peer, or why it is closed without a word."""
        if self.dying:
            return ""
        if not self.session.established:
            return ProtocolError(Refusal.TIMEOUT, "the handshake took too long")
        if self.stalled_since is not None:
            return "it takes no answers"
        if self.partial_since is not None:
            return ProtocolError(Refusal.TIMEOUT, "a frame took too long to arrive")
        if self.established is not None and time.monotonic() >= self.established + limits.session_s:
            return ProtocolError(Refusal.TIMEOUT, "the session is old: connect again to go on")
        return f"silent for {limits.idle_s:.0f} s"

    def push(self, message: Message) -> None:
        """Queue a message that answers no request.  A connection that cannot take it is closed; it never raises."""
        if self.dying:
            return
        try:
            self.link.send(message)
        except BaseException:
            self.broken = True

    def deadline(self, limits: Limits) -> float:
        """The earliest of those that apply now."""
        established = self.session.established
        when = self.active + limits.idle_s if established else self.accepted + limits.handshake_s
        if self.established is not None:
            when = min(when, self.established + limits.session_s)
        if self.partial_since is not None:
            when = min(when, self.partial_since + limits.frame_s)
        if self.stalled_since is not None:
            when = min(when, self.stalled_since + limits.send_s)
        return when
