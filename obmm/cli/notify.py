# SPDX-License-Identifier: Apache-2.0
"""What systemd is told of a service: ready, alive, ending (sd_notify(3)).  Without systemd nothing happens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress


def notify(state: str) -> bool:
    """Tell the service manager, ``READY=1`` for instance; False when there is none, or it does not take it now."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        sock.sendto(state.encode(), address)
        return True
    return False


def watchdog_s() -> float | None:
    """How often the manager wants to hear ``WATCHDOG=1``: half of its patience; None when it does not watch us."""
    with suppress(ValueError):
        if int(os.environ.get("WATCHDOG_PID", os.getpid())) == os.getpid():
            return max(0.05, int(os.environ["WATCHDOG_USEC"]) / 2e6) if "WATCHDOG_USEC" in os.environ else None
    return None


class Watchdog:
    """Tells the service manager that a loop turns, as often as it wants to hear it and as long as that is so."""

    def __init__(self, alive: Callable[[], bool]) -> None:
        self._alive = alive
        self._every = watchdog_s()
        self._told = float("-inf")

    def look(self) -> None:
        """Tell it, when it is time."""
        if self._every is not None and time.monotonic() >= self._told + self._every and self._alive():
            notify("WATCHDOG=1")
            self._told = time.monotonic()

    def patience(self, longest: float) -> float:
        """How long to wait before the next `look`, at most ``longest`` seconds."""
        return longest if self._every is None else min(longest, self._every)
