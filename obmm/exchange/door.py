# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: where they are bound, and how they accept whatever accept(2) says."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from obmm.background import BackgroundLogger
from obmm.errors import ObmmArgumentError
from obmm.exchange.net import is_loopback
from obmm.exchange.waiter import Waiter

log = BackgroundLogger("obmm.exchange.server")

PAUSE_S = 0.5  # no accept on a listener for so long after it failed
ACCEPTS_PER_TURN = 64
LOST_PER_TURN = 32
# accept(2) hands on what happened to the connection that it takes off the queue: the next one may be good
_ITS_OWN = {
    errno.EPERM, errno.EACCES, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENONET, errno.ETIMEDOUT, errno.ECONNRESET,
}  # fmt: skip


class Door:
    """One listening socket in a loop: every connection goes to ``came``.

    A failure of accept(2) that is one connection's (a firewall's EPERM, a network that is gone) costs that connection.
    Any other (out of descriptors), or many in a row, costs this listener a pause.
    """

    def __init__(self, listener: socket.socket, selector: Waiter, came: Callable[[socket.socket, str], None]) -> None:
        self.listener = listener
        self.failures = 0
        self._selector = selector
        self._came = came
        self.open()

    def open(self) -> None:
        with contextlib.suppress(KeyError):  # it is open
            self._selector.register(self.listener, selectors.EVENT_READ, self)

    def on_ready(self, mask: int) -> float | None:
        """Accept what waits; the time of the next try if this listener must rest."""
        lost = 0
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return None
            except BaseException as error:
                self.failures += 1
                lost += 1
                if getattr(error, "errno", None) in _ITS_OWN and lost < LOST_PER_TURN:
                    continue
                log.stranger(
                    "no new connections for %.1f s: %s; out of descriptors: raise the limit (ulimit -n)", PAUSE_S, error
                )
                with contextlib.suppress(KeyError, ValueError, OSError):
                    self._selector.unregister(self.listener)
                return time.monotonic() + PAUSE_S
            try:
                self._came(sock, _printable(str(address[0]).removeprefix("::ffff:")))
            except BaseException as error:
                self.failures += 1
                log.stranger("connection of %s lost: %r", address, error)
                with contextlib.suppress(OSError):
                    sock.close()
        return None

    def close(self) -> None:
        self.listener.close()


def bind(hosts: Sequence[str], port: int, *, loopback_only: bool) -> list[socket.socket]:
    """Listening sockets on every address of ``hosts``, all on one port; without hosts on all interfaces (or loopback).

    Port 0 picks one that is free on the first address.
    """
    if not 0 <= port <= 65535:
        raise ObmmArgumentError.because("SERVE", errno.EINVAL, f"port {port}", "choose 1..65535, or 0 for a free one")
    if not hosts and not loopback_only:
        dual = socket.has_dualstack_ipv6() and _has_ipv6()
        return [_listener(socket.AF_INET6 if dual else socket.AF_INET, ("", port), dual)]
    listeners: list[socket.socket] = []
    try:
        for host in hosts or ("127.0.0.1",):
            for family, address in _addresses(host, port):
                if loopback_only and not is_loopback(address):
                    raise ObmmArgumentError.because(
                        "SERVE",
                        errno.EINVAL,
                        f"plain mode on {address}: anybody on that network could take the handles",
                        "use key=PATH or tls=..., or bind to 127.0.0.1",
                        "docs/exchange.md",
                    )
                bound = listeners[0].getsockname()[1] if listeners else port
                listeners.append(_listener(family, (address, bound), False))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    try:
        flags = socket.AI_PASSIVE | socket.AI_NUMERICSERV
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        problem = "no name of a host" if isinstance(error, UnicodeError) else error.strerror or str(error)
        raise ObmmArgumentError.because(
            "SERVE", errno.EINVAL, f"host {host!r}: {problem}", "pass an address of this machine"
        ) from None
    return list(dict.fromkeys((int(family), _scoped(address)) for family, _, _, _, address in found))


def _scoped(address: tuple[object, ...]) -> str:
    """A link-local IPv6 address keeps its interface."""
    text, scope = str(address[0]), address[3] if len(address) > 3 else 0
    return f"{text}%{scope}" if scope and "%" not in text else text


def _listener(family: int, address: tuple[str, int], dual: bool) -> socket.socket:
    try:
        listener = socket.create_server(address, family=family, backlog=1024, dualstack_ipv6=dual)
    except OSError as error:
        place = f"{address[0] or 'all interfaces'}, port {address[1]}"
        fixes = {
            errno.EADDRINUSE: "another program listens there: choose another port, or 0 for a free one",
            errno.EADDRNOTAVAIL: "bind to an address of this machine",
            errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE: choose another",
        }
        fix = fixes.get(error.errno or 0, "choose another address or port")
        raise ObmmArgumentError.because(
            "SERVE", error.errno or errno.EIO, f"cannot listen on {place}: {os.strerror(error.errno or errno.EIO)}", fix
        ) from None
    listener.setblocking(False)
    return listener


def _has_ipv6() -> bool:
    """Compiled in is not enough: containers often have no IPv6 at all."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def _printable(text: str) -> str:
    return "".join(c if "!" <= c <= "~" else "?" for c in text)[:64]
