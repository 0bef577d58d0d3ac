# SPDX-License-Identifier: Apache-2.0
"""Items of a server's status (docs/exchange-protocol.md, section 4.19): no handle, no whole lease id, no key."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from obmm.exchange.leases import LeaseBook, LeaseRecord, LeaseState
from obmm.exchange.publication import Publication


def items(
    published: Iterable[Publication],
    book: LeaseBook,
    connected: Container[bytes],
    allowed: Callable[[str], bool] | None,
) -> Iterator[dict[str, Any]]:
    """Regions, then leases; those whose region is not ``allowed`` (None: all are) are left out."""
    for each in published:
        if allowed is None or allowed(each.name):
            yield region_item(each, book.of(each.generation))
    for record in tuple(book):
        if allowed is None or allowed(record.region):
            yield lease_item(record, connected=record.id in connected)


def by_state(book: LeaseBook) -> dict[str, int]:
    """How many leases are in each state."""
    counts = Counter(record.state.value for record in book)
    return {state.value: counts[state.value] for state in LeaseState}


def region_item(publication: Publication, leases: tuple[LeaseRecord, ...]) -> dict[str, Any]:
    """A published region, with its leases counted by state."""
    return {
        "kind": "region",
        "region": publication.name,
        "bytes": publication.handle.length,
        "state": "revoked" if publication.revoked else "published",
        "leases": dict(Counter(record.state.value for record in leases)),
    }


def lease_item(record: LeaseRecord, *, connected: bool) -> dict[str, Any]:
    """A lease that is out; ``connected``: its holder has a connection at the moment."""
    left = record.expires - time.monotonic()
    return {
        "kind": "lease",
        "lease": record.short,
        "region": record.region,
        "client": record.client,
        "address": record.address,
        "identity": record.identity,
        "importer_eid": record.importer_eid.hex() if any(record.importer_eid) else "",
        "state": record.state.value,
        "connected": connected,
        "granted": record.granted,
        "expires_in_s": round(left, 1) if record.state is LeaseState.ACTIVE else None,
    }
