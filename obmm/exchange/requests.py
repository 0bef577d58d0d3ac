# SPDX-License-Identifier: Apache-2.0
"""A client's requests, and how each message answers which."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from obmm.exchange.call_messages import Call, Ping, Pong, Reply, Status, StatusPage
from obmm.exchange.messages import Fetch, Grant, List, Listed, Message, Release, Released, Renew, Renewed
from obmm.exchange.timers import Timers

# The answer that each request wants.
ANSWERS: dict[type, type] = {
    Ping: Pong,
    List: Listed,
    Fetch: Grant,
    Renew: Renewed,
    Release: Released,
    Status: StatusPage,
    Call: Reply,
}


@dataclass(eq=False, slots=True)
class Request:
    """A deadline of infinity: it is sent again until it is answered."""

    message: Message
    done: Future[Message]
    deadline: float
    sent: float = 0.0
    number: int = 0


@dataclass(eq=False, slots=True)
class Patience:
    """How long somebody waits for releases to be confirmed."""

    done: Future[bool]


# What has a deadline: a request, a lease (renewal, suspicion), or a step of the connection.
TimerKey: TypeAlias = "Request | Patience | tuple[str, bytes] | str"


class Requester(Protocol):
    """What the leases of a client need of its connection."""

    timers: Timers[TimerKey]

    def request(self, message: Message, timeout: float) -> Future[Message]: ...
    def submit(self, request: Request) -> None: ...
    def again(self, request: Request) -> None: ...


def fail(future: Future[Any], error: BaseException) -> None:
    """Answer with an error, unless it is answered."""
    if not future.done():
        future.set_exception(error)


def succeed(future: Future[Any], value: object) -> None:
    """Answer, unless it is answered."""
    if not future.done():
        future.set_result(value)
