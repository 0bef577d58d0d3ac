# SPDX-License-Identifier: Apache-2.0
"""LMCache: blocks of its second level in another node's memory (adapter type ``native_plugin``, docs/blocks.md).

    {"type": "native_plugin", "module_path": "obmm.integrations.lmcache", "class_name": "Connector",
     "adapter_params": {"source": "host:port/kv"}}

LMCache is not imported here: its interface is six methods.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from obmm.blocks import BlockTicket, Namespace
from obmm.integrations.block_door import BlockDoor
from obmm.integrations.versions import check_version

Completion = tuple[int, bool, str, list[bool] | None]


class Connector:
    """What LMCache's native adapter calls: submissions that never block, a descriptor, completions.

    `model` tells stores of different models apart beyond what LMCache's keys say; the other parameters are
    `BlockDoor`'s.
    """

    def __init__(self, *, source: str, model: str = "", **options: Any) -> None:
        check_version("lmcache")
        namespace = Namespace(door="lmcache", model=model, format=1)
        self._door = BlockDoor("lmcache", namespace, source=source, **options)
        self._store = self._door.store
        self._ids = itertools.count(1)
        self._under_way: dict[int, tuple[int, BlockTicket]] = {}  # by the ticket's id
        self._failed: deque[Completion] = deque()
        self._mutex = threading.Lock()

    def event_fd(self) -> int:
        """Readable while `drain_completions` has something."""
        return self._store.fileno()

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Load each key's block into its memory."""
        return self._submit("load", lambda: self._store.submit_get(keys, memoryviews, timeout=self._door.timeout))

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Store each key's block."""
        return self._submit("store", lambda: self._store.submit_put(keys, memoryviews, timeout=self._door.timeout))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Look each key up."""
        return self._submit("lookup", lambda: self._store.submit_exists(keys, timeout=self._door.timeout))

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Forget each key's block."""
        return self._submit("delete", lambda: self._store.submit_delete(keys, timeout=self._door.timeout))

    def drain_completions(self) -> list[Completion]:
        """(id, whether all of it succeeded or, for lookups and deletions, was answered, "", one flag for each key)."""
        done = [self._completion(ticket) for ticket in self._door.completed()]
        while self._failed:
            done.append(self._failed.popleft())
        return [each for each in done if each is not None]

    def stats(self) -> dict[str, Any]:
        """What the store has done."""
        return self._door.explain()

    def close(self) -> None:
        """Copies that run are finished first."""
        self._door.close()

    def _submit(self, what: str, submit: Callable[[], BlockTicket]) -> int:
        identity = next(self._ids)
        try:
            # the lock: a ticket may be done, and be drained by another thread, before we know its number
            with self._mutex:
                ticket = submit()
                self._under_way[ticket.id] = (identity, ticket)
        except Exception as error:
            self._door.failed(what, error)
            self._failed.append((identity, False, str(error), None))
            self._door.quietly("waking LMCache", lambda: os.eventfd_write(self._store.fileno(), 1), None)
        return identity

    def _completion(self, ticket: BlockTicket) -> Completion | None:
        with self._mutex:
            known = self._under_way.pop(ticket.id, None)
        if known is None:
            return None
        flags = [bool(flag) for flag in ticket.result()]
        asked = ticket.kind in ("lookup", "delete")
        return known[0], asked or all(flags), "", flags
