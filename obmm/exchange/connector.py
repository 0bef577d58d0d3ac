# SPDX-License-Identifier: Apache-2.0
"""From a host's name to a connected socket, without ever waiting: names in a thread, addresses tried staggered.

An address that swallows packets costs `STAGGER_S`, not the whole attempt (the way of RFC 8305): the next one is tried
beside it, and the first that connects is taken.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  (getaddrinfo would import it in its thread; a child forked meanwhile waits for that)
import errno
import ipaddress
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from obmm.exchange.mailbox import Mailbox
from obmm.exchange.net import is_loopback
from obmm.exchange.waiter import Waiter

STAGGER_S = 0.25
MOST_ADDRESSES = 64

AddressInfo = tuple[int, tuple[Any, ...]]  # family, address


@dataclass(eq=False, slots=True)
class Attempt:
    """TCP to one address, under way."""

    sock: socket.socket
    connector: Connector

    def fileno(self) -> int:
        return self.sock.fileno()


class Connector:
    """Reaches one host, again and again.  Everything but the look-up of names runs in its user's loop.

    ``connected`` gets the socket, ``failed`` the reason when there is nothing left to try.  `due` is when `on_time` wants
    to be called, on the monotonic clock, or None.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        loopback_only: bool,
        selector: Waiter,
        mailbox: Mailbox,
        connected: Callable[[socket.socket], None],
        failed: Callable[[str], None],
    ) -> None:
        self.due: float | None = None
        self._host, self._port = host, port
        self._loopback_only = loopback_only
        self._selector = selector
        self._mailbox = mailbox
        self._connected = connected
        self._failed = failed
        self._waiting: deque[AddressInfo] = deque()
        self._attempts: list[Attempt] = []
        self._known: tuple[AddressInfo, ...] = ()  # what the name meant the last time
        self._looking_up = False
        self._wanted = False
        self._why = "no address"

    @property
    def busy(self) -> bool:
        return self._wanted

    def start(self) -> None:
        """Begin to connect; a look-up that still runs from an earlier try is waited for, not doubled."""
        self.cancel()
        self._wanted, self._why = True, "no address"
        literal = _literal(self._host, self._port)
        if literal is not None:
            self._found((literal,), "")
            return
        # A name server that is slow does not keep us from where we were before.
        self.due = time.monotonic() + STAGGER_S if self._known else None
        if not self._looking_up:
            thread = threading.Thread(target=self._look_up, name=f"obmm-resolve-{self._host}", daemon=True)
            thread.start()
            self._looking_up = True

    def cancel(self) -> None:
        """Give up what is under way."""
        self._wanted = False
        self.due = None
        self._waiting.clear()
        attempts, self._attempts = self._attempts, []
        for attempt in attempts:
            self._end(attempt)

    def on_ready(self, attempt: Attempt) -> None:
        """The socket of an attempt has something to tell."""
        if attempt not in self._attempts:
            return
        result = attempt.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._attempts.remove(attempt)
        if result:
            self._end(attempt)
            self._why = os.strerror(result)
            self._next()
            return
        self._selector.unregister(attempt)
        self.cancel()
        self._connected(attempt.sock)

    def on_time(self) -> None:
        """`due` has come: try one more address beside the others."""
        self.due = None
        if not self._wanted:
            return
        if not self._waiting and not self._attempts and self._looking_up:
            self._found(self._known, "")
        else:
            self._next(beside=True)

    def _look_up(self) -> None:
        """In a thread of its own: a name server may take long."""
        found: tuple[AddressInfo, ...] = ()
        problem = ""
        try:
            answer = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            found = tuple((int(family), address) for family, _, _, _, address in answer[:MOST_ADDRESSES])
        except (OSError, UnicodeError) as error:
            problem = "no name of a host" if isinstance(error, UnicodeError) else error.strerror or str(error)
        except BaseException as error:
            problem = repr(error)
        with contextlib.suppress(OSError):
            self._mailbox.post(partial(self._looked_up, found, problem))

    def _looked_up(self, found: tuple[AddressInfo, ...], problem: str) -> None:
        self._looking_up = False
        if found:
            self._known = found
        if self._wanted and not self._attempts and not self._waiting:
            self._found(found, problem)

    def _found(self, found: tuple[AddressInfo, ...], problem: str) -> None:
        if self._loopback_only and not all(is_loopback(str(address[0])) for _, address in found):
            self._give_up("plain mode works on loopback only; use key=PATH or tls=...")
            return
        self._why = problem or self._why
        self._waiting = deque(_interleaved(found))
        self._next()

    def _next(self, *, beside: bool = False) -> None:
        """Try the next address; without one, and nothing under way, it is over."""
        while self._waiting:
            family, address = self._waiting.popleft()
            try:
                self._attempt(family, address)
            except OSError as error:
                self._why = error.strerror or str(error)
                continue
            self.due = time.monotonic() + STAGGER_S if self._waiting else None
            return
        self.due = None
        if not self._attempts and not beside:
            self._give_up(self._why)

    def _attempt(self, family: int, address: tuple[Any, ...]) -> None:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            result = sock.connect_ex(address)
            if result not in (0, errno.EINPROGRESS):
                raise OSError(result, os.strerror(result))
            attempt = Attempt(sock, self)
            self._selector.register(attempt, selectors.EVENT_WRITE, attempt)
        except BaseException:
            sock.close()
            raise
        self._attempts.append(attempt)

    def _give_up(self, why: str) -> None:
        self.cancel()
        self._failed(why)

    def _end(self, attempt: Attempt) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(attempt)
        with contextlib.suppress(OSError):
            attempt.sock.close()


def _literal(host: str, port: int) -> AddressInfo | None:
    """An address that is written as one needs no name server."""
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv4Address):
        return socket.AF_INET, (host, port)
    return None if parsed.scope_id else (socket.AF_INET6, (host, port, 0, 0))


def _interleaved(found: tuple[AddressInfo, ...]) -> list[AddressInfo]:
    """The families take turns, beginning with the resolver's first."""
    if not found:
        return []
    first = [each for each in found if each[0] == found[0][0]]
    other = [each for each in found if each[0] != found[0][0]]
    return [each for each in chain.from_iterable(zip_longest(first, other)) if each is not None]
