# SPDX-License-Identifier: Apache-2.0
"""The port that a user gets, for one test at a time on this machine."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from typing import Any

from obmm.exchange import DEFAULT_PORT

PATIENCE = 100.0  # seconds for the tests of other processes, each of which takes a few


@contextlib.contextmanager
def default_port(port: int = DEFAULT_PORT, patience: float = PATIENCE) -> Iterator[int]:
    """Wait until no other test has `port` and nothing listens on it.

    The lock is an abstract Unix socket: the kernel gives it back however its holder ends, and it is of the same network
    namespace as the port.

    Raises:
        AssertionError: the port was in use for all of `patience` seconds; it says by whom, as far as that is known.
    """
    end = time.monotonic() + patience
    with socket.socket(socket.AF_UNIX) as lock:
        while not _bound(lock, f"\0obmm's tests, port {port}"):
            assert time.monotonic() < end, f"another run of the tests has had port {port} for {patience:g} s"
            time.sleep(0.05)
        while not _free(port):
            assert time.monotonic() < end, (
                f"port {port} is in use by a program that is no test: end it and run this test again; "
                f"`ss -ltnp sport = :{port}` names it"
            )
            time.sleep(0.05)
        yield port


def _bound(lock: socket.socket, address: Any) -> bool:
    try:
        lock.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _free(port: int) -> bool:
    """Whether a server could listen on any address: a connection that is over, and waits for stragglers, is nothing."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _bound(probe, ("", port))
