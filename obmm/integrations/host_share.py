# SPDX-License-Identifier: Apache-2.0
"""Ranks of one host read a table once: one of them gathers, the others copy what it published (Engram specification 7.4).

All ranks make the same steps in the same order.  That is what an engine does; here nothing trusts in it: with the rows of
a step goes a digest of their numbers, and who asked for others reads for itself.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.driver.descriptor import Descriptor
from obmm.driver.process import boot_id
from obmm.errors import ObmmError
from obmm.integrations.lanes import Fetched, Lane, Source, patience
from obmm.prefetch import (
    Deadlines,
    PeerFailedError,
    PrefetchLayer,
    Rows,
    RowsStatus,
    SharedStaging,
    StagingFollower,
)

_DIGEST, _DIGEST_BYTES = "numbers", 16
_MISSES = 8
"""So many steps in a row that were not the reader's: from then on a rank reads for itself."""


def _digest(ids: Sequence[NDArray[Any]]) -> bytes:
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for numbers in ids:
        found.update(np.ascontiguousarray(numbers, np.int64).data)
    return found.digest()


class PublishingLane(Lane):
    """A lane whose rows lie in memory that the other ranks of the host copy from: ``fileno()``."""

    def __init__(
        self,
        source: Source,
        tables: Sequence[str],
        capacity: int,
        deadlines: Deadlines,
        failed: Callable[[ObmmError], None],
    ) -> None:
        described: Mapping[str, Any] = {
            **{table: source.store.tables[table] for table in tables},
            _DIGEST: SimpleNamespace(row_bytes=_DIGEST_BYTES),
        }
        layers = [PrefetchLayer(place, table, 1) for place, table in enumerate((*tables, _DIGEST))]
        self._staging = SharedStaging(SimpleNamespace(tables=described), layers, capacity, depth=1)
        try:
            super().__init__(source, tables, capacity, deadlines, self._staging.allocate, failed)
            memory = self._staging.allocate(capacity * _DIGEST_BYTES)
        except BaseException:
            self._staging.close()
            raise
        self._sum: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)[:_DIGEST_BYTES].reshape(1, 1, _DIGEST_BYTES)
        self._step = -1
        self._told: set[int] = set()

    def fileno(self) -> int:
        """For the followers; the descriptor stays this lane's."""
        return self._staging.fileno()

    def start(self, ids: Sequence[NDArray[Any]]) -> int | None:
        self._turn()
        zeros = super().start(ids)
        self._announce(ids)
        return zeros

    def fetch(self, ids: Sequence[NDArray[Any]]) -> int | None:
        self._turn()
        zeros = super().fetch(ids)
        self._announce(ids)
        return zeros

    def take(self, table: str) -> Fetched:
        fetched = super().take(table)
        self._tell(table, fetched)
        return fetched

    def explain(self) -> str:
        """One line."""
        return f"read here for the other ranks of the host, {self._step + 1} steps"

    def close(self) -> None:
        if self._step >= 0:
            self._staging.retire(self._step)
        super().close()
        self._staging.close()

    def _turn(self) -> None:
        """The followers of the step before have copied its rows, or lose it: no follower is waited for."""
        if self._step >= 0:
            self._staging.retire(self._step)
        self._step += 1
        self._told.clear()

    def _announce(self, ids: Sequence[NDArray[Any]]) -> None:
        self._sum[0, 0] = np.frombuffer(_digest(ids), np.uint8)
        self._staging.publish(len(self.tables), self._step, Rows(self._sum, 1, RowsStatus.OK))
        if self.gathered:  # rows are there already: the others need not wait until they are taken here
            for table in self.tables:
                self.take(table)

    def _tell(self, table: str, fetched: Fetched) -> None:
        place = self.tables.index(table)
        if place in self._told:
            return
        self._told.add(place)
        status = RowsStatus.OK if fetched.ok else RowsStatus.FAILED
        self._staging.publish(place, self._step, Rows(fetched.rows[:, None], len(fetched.rows), status))


class FollowingLane:
    """A lane that copies the rows of another rank's `PublishingLane`, whose descriptor it was given.

    A step that the reader did not make, or has not made in time, is read here by `own`, a lane for it.
    """

    def __init__(
        self,
        descriptor: int,
        tables: Sequence[str],
        capacity: int,
        deadlines: Deadlines,
        own: Callable[[], Lane],
        failed: Callable[[ObmmError], None],
    ) -> None:
        self.lock = threading.Lock()
        self.turn = 0
        self.tables = tuple(tables)
        self.capacity = capacity
        self._follower = StagingFollower(descriptor)
        self._deadlines = deadlines
        self._make = own
        self._own: Lane | None = None
        self._failed = failed
        self._step = -1
        self._ids: Sequence[NDArray[Any]] = ()
        self._agreed: bool | None = None
        self._misses = self._alone = 0
        self._why = ""

    def start(self, ids: Sequence[NDArray[Any]]) -> int | None:
        """A step begins; the reader looks at its numbers."""
        self._step += 1
        self._ids = ids
        self._agreed = None if self._misses < _MISSES else False
        if self._agreed is None:
            return 0
        return self._read_here("")

    def fetch(self, ids: Sequence[NDArray[Any]]) -> int | None:
        """The same."""
        return self.start(ids)

    def take(self, table: str) -> Fetched:
        """The rows of one table, copied or read here; waits until the deadline."""
        if self._agreed is None:
            self._agree()
        if not self._agreed:
            assert self._own is not None
            return self._own.take(table)
        rows = self._follower.wait(self.tables.index(table), self._step, self._patience)
        n = len(self._ids[0])
        if rows.status is RowsStatus.OK or not n:
            return Fetched(rows.buffer[:n, 0], True)
        error = self._ended()
        if isinstance(error, PeerFailedError) and error.errno == errno.EIO:  # all ranks go on with the same bytes
            self._failed(error)
            return Fetched(rows.buffer[:n, 0], False)
        self._read_here(str(error))
        assert self._own is not None
        return self._own.take(table)

    def explain(self) -> str:
        """One line."""
        if self._misses >= _MISSES:
            return f"read here, as {_MISSES} steps in a row were not the reader's ({self._why})"
        copied = self._step + 1 - self._alone
        return f"copied from the host's reader, {copied} steps; {self._alone} were read here {self._why}".rstrip()

    def close(self) -> None:
        """The reader's memory is let go."""
        self._follower.close()
        if self._own is not None:
            self._own.close()

    def _agree(self) -> None:
        """Whether the reader's step is this one."""
        found = self._follower.wait(len(self.tables), self._step, self._patience)
        if found.status is not RowsStatus.OK:
            self._read_here(str(self._ended()))
        elif found.buffer[0, 0].tobytes() != _digest(self._ids):
            self._read_here("the reader's step asks for other rows")
        else:
            self._agreed, self._misses = True, 0

    def _read_here(self, why: str) -> int | None:
        self._agreed = False
        self._alone += 1
        if why:
            self._misses += 1
            self._why = why
        if self._own is None:
            self._own = self._make()
        return self._own.fetch(self._ids)

    def _ended(self) -> ObmmError | None:
        try:
            self._follower.drain()
        except ObmmError as error:
            return error
        return None

    @property
    def _patience(self) -> float:
        return patience(self._deadlines, len(self._ids[0]))


def offer(lane: PublishingLane) -> tuple[int, int]:
    """What another process of the host needs to find the memory: this process and its descriptor."""
    return os.getpid(), lane.fileno()


def opened(offered: tuple[int, int]) -> Descriptor:
    """A descriptor of the memory that `offer` speaks of, the caller's to close; OSError when this process may not have it."""
    process, descriptor = offered
    return Descriptor.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)


def host() -> tuple[str, int]:
    """The same in processes that can find each other's memory: one kernel, one namespace of process ids."""
    return boot_id().hex(), os.stat("/proc/self/ns/pid").st_ino
