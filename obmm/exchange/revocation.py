# SPDX-License-Identifier: Apache-2.0
"""Who waits for the leases on an export to come back.  Each has its own deadline: a long one does not prolong the others."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from obmm.exchange.leases import LeaseRecord
from obmm.exchange.publication import Publication


@dataclass(eq=False, slots=True)
class Revocation:
    """Waits for the leases on one export; `done` gets those that are still out at its deadline."""

    publication: Publication
    done: Future[tuple[LeaseRecord, ...]] = field(default_factory=Future)


class Revocations:
    """Those that are under way, by the generation of the export."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Revocation]] = {}

    def begin(self, publication: Publication) -> Revocation:
        """One more that waits."""
        revocation = Revocation(publication)
        self._waiting.setdefault(publication.generation, []).append(revocation)
        return revocation

    def of(self, generation: int) -> tuple[Revocation, ...]:
        """All that wait for this export."""
        return tuple(self._waiting.get(generation, ()))

    def end(self, revocation: Revocation) -> None:
        """It waits no longer; again is not an error."""
        generation = revocation.publication.generation
        left = [each for each in self._waiting.get(generation, ()) if each is not revocation]
        if left:
            self._waiting[generation] = left
        else:
            self._waiting.pop(generation, None)
