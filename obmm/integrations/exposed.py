# SPDX-License-Identifier: Apache-2.0
"""A door's counters on a port of its own: engines run doors in processes whose metrics are not collected."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

from obmm.blocks import BlockStoreError
from obmm.errors import ObmmError
from obmm.exchange.net import split_address
from obmm.undisturbed import joined

PORTS_OF_A_HOST = 64  # engines run a process for each rank, all with the same settings


class Exposed:
    """The server and its thread; ``close`` ends both."""

    def __init__(self, server: Any, thread: threading.Thread) -> None:
        self._server, self._thread = server, thread
        self.port: int = server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        joined(self._thread, 5.0)


Refusal = Callable[[int, str, str], ObmmError]
"""Of an errno, what is wrong and its fix."""


def expose(
    address: str, collector: Any, refused: Refusal = BlockStoreError.because, ports: int = PORTS_OF_A_HOST
) -> Exposed:
    """Answer GET /metrics on ``host:port`` from this collector; of so many `ports` from that one on, the first free one.

    What `refused` makes without the extra `metrics`, and for an address that cannot be had.
    """
    try:
        import prometheus_client
    except ImportError:
        raise refused(
            errno.ENOSYS, f"metrics={address!r} without prometheus-client", "pip install 'obmm[metrics]'"
        ) from None
    host, port = split_address(address)
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(collector)
    for place in range(ports := min(ports, 65536 - port)):
        try:
            server, thread = prometheus_client.start_http_server(port + place, host, registry)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and place + 1 < ports:
                continue
            problem = f"metrics={address!r}: {error.strerror or error}"
            raise refused(error.errno or errno.EIO, problem, "another address or port") from None
        break
    return Exposed(server, thread)
