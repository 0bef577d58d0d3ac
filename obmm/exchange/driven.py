# SPDX-License-Identifier: Apache-2.0
"""Clients that somebody else's event loop drives, and what becomes of them when it does not any more.

An interrupt ends a loop in the middle of anything, and what the client has leased would stay with the server until its
term is over.  A thread gives it back then.
"""

from __future__ import annotations

import asyncio
import atexit
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from obmm.closing import in_forked_children
from obmm.exchange.client import Client
from obmm.exchange.held import LATER

GIVE_BACK_S = 5.0  # for a server that does not answer


class Driver(Protocol):
    """Who makes a client's turns."""

    @property
    def closed(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Driven:
    driver: weakref.ref[Driver]
    reader: weakref.ref[Callable[[], object]]
    loop: asyncio.AbstractEventLoop

    @property
    def is_over(self) -> bool:
        """Whether nobody makes turns any more."""
        driver = self.driver()
        return driver is None or driver.closed or self.loop.is_closed()


_clients: dict[Client, _Driven] = {}
in_forked_children(_clients.clear)


def drive(client: Client, driver: Driver, turn: Callable[[], object], loop: asyncio.AbstractEventLoop) -> None:
    """`driver` makes the turns of `client` in `loop`, until it is closed or collected, or the loop is closed.

    `turn`: makes one; kept by the loop alone, so that its end is noticed although a traceback keeps the driver.
    """
    client.is_driven = True
    _clients[client] = _Driven(weakref.ref(driver, _gone), weakref.ref(turn, _gone), loop)
    loop.add_reader(client.fileno(), turn)


def _gone(_: object) -> None:
    sweep()


def sweep() -> None:
    """End every client that nobody drives any more; again at will."""
    for client, driven in tuple(_clients.items()):
        if driven.is_over:
            end(client)


def end(client: Client) -> None:
    """Nobody makes turns of `client` any more: at once if it owes nothing, else when the server has been told."""
    if client not in _clients:
        return
    if client.holdings.owes:
        LATER.put(partial(_give_back, client))
        return
    client.shut()
    _clients.pop(client, None)


def _give_back(client: Client) -> None:
    """In the thread of `LATER`, which nothing interrupts."""
    if client not in _clients:
        return
    client.is_driven = False
    try:
        deadline = time.monotonic() + GIVE_BACK_S
        done = client.holdings.give_back(GIVE_BACK_S)
        client.turn(0.0)  # a turn waits before it sends
        while not done.done() and (left := deadline - time.monotonic()) > 0:
            client.turn(min(client.timeout(), left))
    finally:
        if client.holdings.held:  # regions use them: who closes the last one calls `end` again
            client.holdings.abandon_all()
        else:
            client.shut()
            _clients.pop(client, None)


def _leave() -> None:
    """What a program that ends has leased is given back."""
    for client, driven in tuple(_clients.items()):
        if driven.is_over or not driven.loop.is_running():
            end(client)


atexit.register(_leave)
