# SPDX-License-Identifier: Apache-2.0
"""A get, put or lookup that runs in the background."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from obmm.arguments import patience
from obmm.blocks.buffers import Pieces
from obmm.blocks.errors import BlockStoreError
from obmm.blocks.memory import Batch
from obmm.blocks.reasons import Reason
from obmm.blocks.steps import Means, Steps, Work, succeeded


class BlockTicket:
    """One submitted call.  Its memory is in use until `done`, whatever the deadline says: a load cannot be cancelled.

    Made by `BlockStore.submit_get` and its like.
    """

    __slots__ = ("_done", "id", "kind", "reasons", "seconds", "work")

    def __init__(self, identity: int, kind: str, work: Work) -> None:
        self.id, self.kind, self.work = identity, kind, work
        self.reasons: npt.NDArray[np.int8] = work.reasons
        """`Reason` of each block, complete once done."""
        self.seconds = 0.0
        """From submission to the end, once done."""
        self._done = threading.Event()

    @property
    def done(self) -> bool:
        """Whether it has ended; never blocks."""
        return self._done.is_set()

    @property
    def nbytes(self) -> int:
        """Bytes that were copied."""
        return self.work.moved

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds (None: for ever); False when it has not ended."""
        return self._done.wait(None if timeout is None else patience("BLOCKS", "timeout", timeout))

    def result(self, timeout: float | None = None) -> npt.NDArray[np.uint8]:
        """Wait at most `timeout` seconds, then 1 for each block that is there.

        BlockStoreError when it has not ended in time: it goes on.
        """
        if not self.wait(timeout):
            raise BlockStoreError.because(
                errno.ETIMEDOUT,
                f"{self.kind} {self.id} has not ended in {timeout} s",
                "wait longer; its memory is in use",
            )
        return succeeded(self.reasons)

    def end(self, took: float) -> None:
        """Between rooms: for the store, its memory is not touched any more."""
        self.seconds = took
        self._done.set()

    def __repr__(self) -> str:
        return (
            f"<BlockTicket {self.id}: {self.kind} of {len(self.reasons)} blocks, {'done' if self.done else 'running'}>"
        )


class Job:
    """A ticket's steps on the way, used by the store's thread only."""

    __slots__ = ("batch", "make", "means", "pieces", "started", "steps", "ticket")

    def __init__(
        self, ticket: BlockTicket, pieces: Pieces | None, make: Callable[[], tuple[Means, Steps] | None]
    ) -> None:
        self.ticket, self.pieces, self.make = ticket, pieces, make
        self.started = time.monotonic()
        self.means: Means | None = None
        self.steps: Steps | None = None
        self.batch: Batch | None = None

    @property
    def time_left(self) -> float:
        deadline = self.ticket.work.deadline
        return float("inf") if deadline is None else max(0.001, deadline - time.monotonic())

    def fail(self, reason: Reason) -> None:
        """What has no verdict yet gets this one."""
        reasons = self.ticket.reasons
        reasons[reasons == Reason.PENDING] = reason

    def give_up(self) -> None:
        """The store has ended before it: nothing touches its memory any more."""
        self.fail(Reason.CLOSED)
        if self.pieces is not None:
            self.pieces.release()
        self.ticket.end(time.monotonic() - self.started)
