# SPDX-License-Identifier: Apache-2.0
"""The owner's sign of life in the region header (Engram specification 5.3)."""

from __future__ import annotations

import logging
import os
import threading
import weakref

from obmm.closing import Closing
from obmm.errors import ObmmError
from obmm.rows.errors import refused
from obmm.rows.memory import RowMemory
from obmm.undisturbed import joined

log = logging.getLogger("obmm.rows")

INTERVAL = 1.0
"""Seconds between two beats; readers miss the owner after three of them (11.3-6)."""


class Heartbeat(Closing):
    """Counts in the header until closed.  Made by `RowStore.heartbeat`; a child of a fork does not beat.

    Only where loads see stores at once: non-cacheable regions, and memory of this host.  Behind caches a reader would see
    the owner die with its own copy of the line; there the lease's connection tells.
    """

    def __init__(self, memory: RowMemory, interval: float = INTERVAL) -> None:
        if not memory.heartbeat_address:
            raise refused(
                f"a heartbeat in {memory.path} memory, which has no place for it",
                "map a region NC and from its header on, or serve it with leases",
                "5.3",
            )
        if not 0 < interval <= INTERVAL:
            raise refused(f"interval={interval!r}", f"more than 0, at most {INTERVAL} seconds", "5.3")
        self._memory = memory
        self._interval = interval
        self._over = threading.Event()
        self._owner = os.getpid()
        memory.beat()  # here, so that a mapping that cannot be written says so to the caller
        self._thread = threading.Thread(
            target=_beat, args=(weakref.ref(self), memory, interval, self._over), name="obmm-heartbeat", daemon=True
        )
        self._thread.start()

    @property
    def beating(self) -> bool:
        """False once closed, or once the memory was."""
        return self._owner == os.getpid() and self._thread.is_alive() and not self._over.is_set()

    @property
    def closed(self) -> bool:
        """True once closed, or in a forked child."""
        return self._over.is_set()

    def close(self) -> None:
        """Beat no more.  Idempotent.  Close it before the store."""
        self._over.set()
        if self._owner == os.getpid() and self._thread.ident is not None:
            joined(self._thread)

    def __repr__(self) -> str:
        return f"<Heartbeat every {self._interval} s{'' if self.beating else ', over'}>"


def _beat(owner: weakref.ref[Heartbeat], memory: RowMemory, interval: float, over: threading.Event) -> None:
    """In its thread: as long as somebody has the heartbeat."""
    while not over.wait(interval) and owner() is not None:
        try:
            memory.beat()
        except ObmmError as error:
            log.warning("the heartbeat ends: %s", error)
            return
