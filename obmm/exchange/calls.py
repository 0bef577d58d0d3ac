# SPDX-License-Identifier: Apache-2.0
"""Calls: what a server answers beside regions and leases, for rooms above this one (docs/exchange-protocol.md, 4.20)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from obmm.exchange.call_messages import Call, Reply
from obmm.exchange.errors import Refusal, RequestRefusedError


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: what the client calls itself with its address, and the name in its certificate ("" without TLS)."""

    name: str
    identity: str


class CallHandler(Protocol):
    """Answers calls to one name.  A call may come twice, when its answer got lost: the second must do no harm."""

    def call(self, caller: Caller, body: bytes) -> bytes:
        """The answer, at once: it is the server's own thread that asks.  RequestRefusedError reaches the caller."""


class CallTable:
    """The handlers of one server, used from its thread only."""

    def __init__(self) -> None:
        self._handlers: dict[str, CallHandler] = {}

    def add(self, name: str, handler: CallHandler) -> None:
        """RequestRefusedError when the name is taken."""
        if name in self._handlers:
            raise RequestRefusedError(Refusal.LIMIT, f"calls to {name!r} are answered already")
        self._handlers[name] = handler

    def remove(self, name: str) -> None:
        self._handlers.pop(name, None)

    def answer(self, caller: Caller, message: Call) -> Reply:
        handler = self._handlers.get(message.name)
        if handler is None:
            raise RequestRefusedError(Refusal.NO_REGION, f"no service answers calls to {message.name!r} here")
        return Reply(handler.call(caller, message.body))
