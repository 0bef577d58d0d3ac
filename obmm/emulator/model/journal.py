# SPDX-License-Identifier: Apache-2.0
"""What the driver asked of the layers below it: cache engine, UMMU, remote NUMA.

A test compares it with what the real driver asked in the same place; nothing in the model reads it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

LIMIT = 8192


class Journal:
    """The latest requests, oldest first. Each is a dict with a `kind`:

    * ``flush``: op (INVAL, WB_ONLY, WB_INVAL), pa, length, mem_id, offset, ret (errno when it failed),
      clearing (EXPORT cleared memory); or op DRAIN with scna
    * ``numa``: call, nid, and what the call was given; ret is the node or a negative errno
    * ``ummu``: call, and what it was given
    """

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=LIMIT)

    def add(self, kind: str, **what: Any) -> None:
        self._entries.append({"kind": kind, **what})

    def take(self) -> list[dict[str, Any]]:
        """All entries since the last call."""
        entries = list(self._entries)
        self._entries.clear()
        return entries
