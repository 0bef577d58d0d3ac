# SPDX-License-Identifier: Apache-2.0
"""The server's book of leases: who may still be reading which export.

The book answers one question that hardware makes expensive to get wrong: *may this region be unexported now?*  Only
a release removes a lease.  Expiry does not: the fabric may live while TCP is cut (docs/exchange.md).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field


class LeaseState(enum.Enum):
    ACTIVE = "active"
    UNKNOWN = "unknown"  # expired, or from before a restart, and not released
    REVOKED = "revoked"  # the holder was told to let go and has not done so yet


@dataclass(slots=True, eq=False)
class LeaseRecord:
    """One lease.  ``granted`` is Unix time, ``expires`` is on the server's monotonic clock."""

    id: bytes
    region: str
    generation: int
    client: str
    address: str
    identity: str
    importer_eid: bytes
    granted: float
    expires: float = 0.0
    state: LeaseState = LeaseState.ACTIVE

    @property
    def short(self) -> str:
        """Enough of the id to talk about the lease, not enough to release it."""
        return self.id[:4].hex()

    @property
    def holder(self) -> str:
        """Who has it, for people: ``client@address``."""
        return f"{self.client or 'unnamed'}@{self.address}"

    def __repr__(self) -> str:
        return f"<lease {self.short} of {self.region} held by {self.holder}, {self.state.value}>"


@dataclass(slots=True)
class LeaseBook:
    """All leases that nobody released, by id and by export generation."""

    _by_id: dict[bytes, LeaseRecord] = field(default_factory=dict)
    _by_generation: dict[int, dict[bytes, LeaseRecord]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[LeaseRecord]:
        return iter(self._by_id.values())

    def get(self, lease: bytes) -> LeaseRecord | None:
        return self._by_id.get(lease)

    def add(self, record: LeaseRecord) -> None:
        self._by_id[record.id] = record
        self._by_generation.setdefault(record.generation, {})[record.id] = record

    def remove(self, record: LeaseRecord) -> None:
        del self._by_id[record.id]
        same = self._by_generation[record.generation]
        del same[record.id]
        if not same:
            del self._by_generation[record.generation]

    def of(self, generation: int) -> tuple[LeaseRecord, ...]:
        """The leases on one export, oldest first."""
        return tuple(self._by_generation.get(generation, {}).values())
