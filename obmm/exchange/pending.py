# SPDX-License-Identifier: Apache-2.0
"""Grants between the request and the disk: they leave in the order of the journal's batches."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from obmm.exchange.connection import Connection
from obmm.exchange.leases import LeaseRecord
from obmm.exchange.publication import Publication


@dataclass(frozen=True, slots=True)
class Granting:
    """A grant that waits for the journal."""

    connection: Connection
    request: int
    record: LeaseRecord
    publication: Publication


class PendingGrants:
    """Those of the batch that is being filled, and of the batches that are being written."""

    def __init__(self) -> None:
        self._filling: list[Granting] = []
        self._writing: deque[tuple[Granting, ...]] = deque()
        self._written = 0

    def __len__(self) -> int:
        return len(self._filling) + self._written

    @property
    def filling(self) -> bool:
        """The next batch has grants in it."""
        return bool(self._filling)

    def add(self, granting: Granting) -> None:
        self._filling.append(granting)

    def retract(self, record: LeaseRecord) -> None:
        self._filling = [each for each in self._filling if each.record is not record]

    def take(self) -> None:
        """What was added so far goes with the batch that is submitted now."""
        self._writing.append(tuple(self._filling))
        self._written += len(self._filling)
        self._filling = []

    def pop(self, batches: int) -> tuple[Granting, ...]:
        """The grants of the oldest batches."""
        done = tuple(each for _ in range(batches) for each in self._writing.popleft())
        self._written -= len(done)
        return done
