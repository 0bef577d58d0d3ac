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
    """What the owner knows of a lease.

    >>> obmm.exchange.LeaseState("unknown").name
    'UNKNOWN'
    """

    ACTIVE = "active"
    UNKNOWN = "unknown"  # expired, or from before a restart, and not released
    REVOKED = "revoked"  # the holder was told to let go and has not done so yet


@dataclass(slots=True, eq=False)
class LeaseRecord:
    """One lease, as `Server.find_leases` gives it; made by the server.

    `id` is its secret 16 bytes, `region` and `generation` what it is on; `client`, `address` and `identity` say who has it,
    `importer_eid` where it is imported.  ``granted`` is Unix time, ``expires`` is on the server's monotonic clock, `state` what
    the owner knows.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFilter:
    """Which leases: those that fit everything that is given.

    ``lease`` is the id's first 4 bytes as `LeaseRecord.short` shows them, ``holder`` a client's name or ``client@address``,
    ``address`` where it connected from, ``identity`` its certificate's or key's name.
    """

    lease: str = ""
    holder: str = ""
    address: str = ""
    identity: str = ""
    region: str = ""

    def __bool__(self) -> bool:
        return any((self.lease, self.holder, self.address, self.identity, self.region))

    def fits(self, record: LeaseRecord) -> bool:
        return (
            bool(self)
            and self.lease in ("", record.short)
            and self.holder in ("", record.client, record.holder)
            and self.address in ("", record.address)
            and self.identity in ("", record.identity)
            and self.region in ("", record.region)
        )


@dataclass(slots=True)
class LeaseBook:
    """All unreleased leases, by id and by export generation."""

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
        """Forget it; one that is not in the book is forgotten already."""
        if self._by_id.get(record.id) is record:
            del self._by_id[record.id]
        same = self._by_generation.get(record.generation)
        if same is not None and same.get(record.id) is record:
            del same[record.id]
        if not same:
            self._by_generation.pop(record.generation, None)

    def of(self, generation: int) -> tuple[LeaseRecord, ...]:
        """The leases on one export, oldest first."""
        return tuple(self._by_generation.get(generation, {}).values())
