# SPDX-License-Identifier: Apache-2.0
"""The tokens before the batch, per request (Engram specification 10, conditions 1-7)."""

from __future__ import annotations

import errno
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from obmm.errors import ObmmArgumentError
from obmm.mapping.buffers import array_here

_NOBODY = 0  # the row of requests that were never seen: no tokens


class ExportedHistory(NamedTuple):
    """What travels with a request: its `position` (tokens so far) and `window`, the last N-1 ids, newest first, -1 unknown.

    >>> obmm.prefetch.ExportedHistory(position=3, window=(4, 1)).position
    3
    """

    position: int
    window: tuple[int, ...]


class History:
    """The last tokens of every live request, so that chunks, cached prefixes and rejected drafts hash as one sequence.

    `order` is the hasher's (N): a window has N-1 tokens.  `max_rollback` tokens more are kept, so that as many
    rejected drafts can be taken back.  A request is any hashable name; positions count its tokens from 0.

    A window that is not known raises: a guessed history gives wrong rows without a sign.  One thread at a time.
    """

    def __init__(self, order: int, *, max_rollback: int = 16) -> None:
        self._back = order - 1
        self._ring = self._back + max_rollback
        self._row: dict[Hashable, int] = {}
        self._free: list[int] = []
        # one row per request: the token at position p lies at p % ring; the newest `known` of `length` are there
        self._tokens = np.full((1, self._ring), -1, dtype=np.int64)
        self._length = np.zeros(1, dtype=np.int64)
        self._known = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, request: Hashable) -> bool:
        return request in self._row

    def position(self, request: Hashable) -> int:
        """How many tokens the request has; 0 for one that was never seen."""
        return int(self._length[self._row.get(request, _NOBODY)])

    def extend(self, request: Hashable, tokens: ArrayLike, *, position: int | None = None) -> None:
        """Append accepted or drafted `tokens`, dead ones as -1; see `extend_batch`.

        `position`: where the caller thinks that they start; checked when given.
        """
        new = np.asarray(array_here(tokens), dtype=np.int64).ravel()
        self.extend_batch([request], new, [0, len(new)], None if position is None else [position])

    def extend_batch(
        self,
        requests: Sequence[Hashable],
        tokens: ArrayLike,
        request_starts: ArrayLike,
        positions: ArrayLike | None = None,
    ) -> None:
        """Append a batch, laid out as for `NgramHasher.hash`, each request at most once.

        `positions`, where the caller thinks that each request's tokens start, are checked when given: a name that
        another request used before is noticed (condition 5).
        """
        new = np.asarray(array_here(tokens), dtype=np.int64)
        starts = np.asarray(array_here(request_starts), dtype=np.int64)
        counts = np.diff(starts)
        if len(counts) != len(requests) or starts[0] != 0 or starts[-1] != len(new) or (counts < 0).any():
            raise _refused(
                f"{len(requests)} requests, {len(new)} tokens, request_starts of {len(starts)}",
                "pass [R+1] rising places, the last one T",
                "13.5",
            )
        if len(set(requests)) != len(requests):
            raise _refused("a request twice in one batch", "name each request once", "10, condition 1")
        if positions is not None:
            self._check_positions(
                requests,
                positions,
                "drop() a finished request before its name is used again, import_() one that moved here",
                "10, condition 5",
            )
        rows = self._rows(requests)
        ends = self._length[rows] + counts
        at = np.arange(len(new)) + np.repeat(self._length[rows] - starts[:-1], counts)
        kept = at >= np.repeat(ends - self._ring, counts)
        self._tokens[np.repeat(rows, counts)[kept], at[kept] % self._ring] = new[kept]
        self._length[rows] = ends
        self._known[rows] = np.minimum(self._known[rows] + counts, self._ring)

    def rollback(self, request: Hashable, n: int) -> None:
        """Take back the last `n` tokens: rejected drafts."""
        self.rollback_batch([request], [n])

    def rollback_batch(self, requests: Sequence[Hashable], counts: ArrayLike) -> None:
        """Take back the last tokens of several requests; refused for one, it changes none.

        `counts`: how many of each, ``[R]``.  ObmmArgumentError when one has fewer to give back.
        """
        back = np.asarray(array_here(counts), dtype=np.int64)
        rows = np.array([self._known_row(request) for request in requests], dtype=np.int64)
        length, known = self._length[rows], self._known[rows]
        least = np.where(known == length, 0, self._back)
        wrong = (back < 0) | (known - back < least)
        if wrong.any():
            place = int(wrong.argmax())
            raise _refused(
                f"cannot take back {back[place]} of request {requests[place]!r}: {known[place]} of its {length[place]} "
                "tokens are kept",
                "give History a max_rollback of at least the number of drafts",
                "10, condition 6",
            )
        self._length[rows] = length - back
        self._known[rows] = known - back

    def drop(self, request: Hashable) -> None:
        """Forget a finished request; unknown ones are ignored."""
        row = self._row.pop(request, None)
        if row is not None:
            self._length[row] = self._known[row] = 0
            self._free.append(row)

    def windows(self, requests: Sequence[Hashable], positions: ArrayLike | None = None) -> NDArray[np.int64]:
        """``[R, N-1]`` int64, newest first, -1 before the start: the `history` argument of `NgramHasher.hash`.

        A request that was never seen starts here.  `positions`, where the batch's tokens start in each request, are
        checked when given: a request whose history did not come along is noticed (condition 4).
        """
        if positions is not None:
            self._check_positions(
                requests,
                positions,
                "carry the last N-1 tokens with the request: export() there, import_() here",
                "10, condition 4",
            )
        rows = self._seen(requests)[:, None]
        shifts = np.arange(1, self._back + 1)
        found: NDArray[np.int64] = np.where(
            shifts <= self._known[rows], self._tokens[rows, (self._length[rows] - shifts) % self._ring], -1
        )
        return found

    def export(self, request: Hashable) -> ExportedHistory:
        """What another node needs to go on with the request. ObmmArgumentError for a request that is not known."""
        row = self._known_row(request)
        return ExportedHistory(int(self._length[row]), tuple(self.windows([request])[0].tolist()))

    def import_(self, request: Hashable, exported: ExportedHistory) -> None:
        """Go on with a `request` that another node, or the prefix cache, has `exported`; ObmmArgumentError for another
        window.
        """
        position, window = exported
        if position < 0 or len(window) != self._back:
            raise _refused(
                f"position {position} and {len(window)} tokens for request {request!r}",
                f"pass the position and the last {self._back} token ids, newest first, padded with -1",
                "10, condition 4",
            )
        (row,) = self._rows([request])
        known = min(position, self._back)
        self._length[row], self._known[row] = position, known
        self._tokens[row, (position - 1 - np.arange(known)) % self._ring] = window[:known]

    # --- inside ---------------------------------------------------------------------------------------------------

    def _rows(self, requests: Sequence[Hashable]) -> NDArray[np.int64]:
        """The row of each request, new ones made."""
        missing = [request for request in requests if request not in self._row]
        while len(self._free) < len(missing):
            self._grow()
        for request in missing:
            self._row[request] = self._free.pop()
        return np.array([self._row[request] for request in requests], dtype=np.int64)

    def _grow(self) -> None:
        size = len(self._length)
        self._tokens = np.concatenate([self._tokens, np.full_like(self._tokens, -1)])
        self._length = np.concatenate([self._length, np.zeros_like(self._length)])
        self._known = np.concatenate([self._known, np.zeros_like(self._known)])
        self._free += range(2 * size - 1, size - 1, -1)

    def _known_row(self, request: Hashable) -> int:
        row = self._row.get(request)
        if row is None:
            raise _refused(f"request {request!r} is not known", "extend() or import_() it first", "10, condition 4")
        return row

    def _seen(self, requests: Sequence[Hashable]) -> NDArray[np.int64]:
        """The row of each request; an empty row for requests that were never seen."""
        return np.array([self._row.get(request, _NOBODY) for request in requests], dtype=np.int64)

    def _check_positions(self, requests: Sequence[Hashable], positions: ArrayLike, fix: str, rule: str) -> None:
        given, ours = array_here(positions), self._length[self._seen(requests)]
        if given.shape != ours.shape:
            raise _refused(f"{given.shape} positions for {len(requests)} requests", "pass one each", "13.5")
        wrong = given != ours
        if wrong.any():
            place = int(wrong.argmax())
            raise _refused(f"request {requests[place]!r} is at {ours[place]}, not at {given[place]}", fix, rule)


def _refused(problem: str, fix: str, rule: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("HISTORY", errno.EINVAL, problem, fix, f"Engram specification {rule}")
