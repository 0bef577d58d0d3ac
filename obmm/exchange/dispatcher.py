# SPDX-License-Identifier: Apache-2.0
"""Callbacks of users, in a thread of their own: they may take their time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from obmm.background import BackgroundLogger
from obmm.exchange.lease import Lease, LeaseEvent

log = BackgroundLogger("obmm.exchange.client")


class Dispatcher:
    """Runs the callbacks of `Lease.on_change`; its thread is started with the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._callbacks: dict[int, list[Callable[[LeaseEvent], None]]] = {}
        self._queue: queue.SimpleQueue[LeaseEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease, callback: Callable[[LeaseEvent], None]) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"obmm-events-{self._name}", daemon=True)
            thread.start()
            self._thread = thread
        self._callbacks.setdefault(id(lease), []).append(callback)

    def forget(self, lease: Lease) -> None:
        """It was released: nothing will be told of it any more."""
        self._callbacks.pop(id(lease), None)

    def post(self, event: LeaseEvent) -> None:
        if id(event.lease) in self._callbacks:
            self._queue.put(event)

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            for callback in tuple(self._callbacks.get(id(event.lease), ())):
                try:
                    callback(event)
                except Exception:
                    log.exception("a callback for %r raised", event.lease.name)
