# SPDX-License-Identifier: Apache-2.0
"""The tokens before the batch, per request (Engram specification 10, conditions 1-7)."""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from obmm.errors import ObmmArgumentError


class ExportedHistory(NamedTuple):
    """What travels with a request: its `position` (tokens so far) and the last N-1 ids, newest first, -1 unknown."""

    position: int
    window: tuple[int, ...]


class History:
    """The last tokens of every live request, so that chunks, cached prefixes and rejected drafts hash as one sequence.

    `order` is the hasher's (N): a window has N-1 tokens.  `max_rollback` tokens more are kept, so that as many
    rejected drafts can be taken back.  A request is any hashable name; positions count its tokens from 0.

    A window that is not known raises: a guessed history gives wrong rows without a sign.
    """

    def __init__(self, order: int, *, max_rollback: int = 16) -> None:
        self._back = order - 1
        self._capacity = self._back + max_rollback
        # request -> (number of tokens, the newest of them, oldest first)
        self._requests: dict[Hashable, tuple[int, list[int]]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Hashable) -> bool:
        return request in self._requests

    def position(self, request: Hashable) -> int:
        """How many tokens the request has; 0 for one that was never seen."""
        return self._requests.get(request, (0, []))[0]

    def extend(self, request: Hashable, tokens: ArrayLike, *, position: int | None = None) -> None:
        """Append accepted or drafted `tokens`, dead ones as -1.

        `position`, where the caller thinks that these tokens start, is checked when given: a name that another request
        used before is noticed (condition 5).
        """
        length, kept = self._requests.get(request, (0, []))
        if position is not None and position != length:
            raise _refused(
                f"request {request!r} is at {length}, not at {position}",
                "drop() a finished request before its name is used again, import_() one that moved here",
                "10, condition 5",
            )
        new = np.asarray(tokens, dtype=np.int64).tolist()
        self._requests[request] = length + len(new), (kept + new)[-self._capacity :]

    def rollback(self, request: Hashable, n: int) -> None:
        """Take back the last `n` tokens: rejected drafts."""
        length, kept = self._known(request)
        left = len(kept) - n
        whole = len(kept) == length
        if n < 0 or left < (0 if whole else self._back):
            raise _refused(
                f"cannot take back {n} of request {request!r}: {len(kept)} of its {length} tokens are kept",
                "give History a max_rollback of at least the number of drafts",
                "10, condition 6",
            )
        self._requests[request] = length - n, kept[:left]

    def drop(self, request: Hashable) -> None:
        """Forget a finished request; unknown ones are no error."""
        self._requests.pop(request, None)

    def windows(self, requests: Sequence[Hashable], positions: Iterable[int] | None = None) -> NDArray[np.int64]:
        """``[R, N-1]`` int64, newest first, -1 before the start: the `history` argument of `NgramHasher.hash`.

        A request that was never seen starts here.  `positions`, where the batch's tokens start in each request, is
        checked when given: a request whose history did not come along is noticed (condition 4).
        """
        out = np.full((len(requests), self._back), -1, dtype=np.int64)
        for row, request in enumerate(requests):
            newest = self._requests.get(request, (0, []))[1][: -self._back - 1 : -1]
            out[row, : len(newest)] = newest
        if positions is not None:
            for request, position in zip(requests, positions, strict=True):
                if position != self.position(request):
                    raise _refused(
                        f"request {request!r} goes on at {position}, its history ends at {self.position(request)}",
                        "carry the last N-1 tokens with the request: export() there, import_() here",
                        "10, condition 4",
                    )
        return out

    def export(self, request: Hashable) -> ExportedHistory:
        """What another node needs to go on with the request."""
        length, _ = self._known(request)
        return ExportedHistory(length, tuple(self.windows([request])[0].tolist()))

    def import_(self, request: Hashable, exported: ExportedHistory) -> None:
        """Go on with a request that another node, or the prefix cache, has begun."""
        position, window = exported
        due = min(position, self._back)
        if position < 0 or len(window) != self._back:
            raise _refused(
                f"position {position} and {len(window)} tokens for request {request!r}",
                f"pass the position and the last {self._back} token ids, newest first, padded with -1",
                "10, condition 4",
            )
        self._requests[request] = position, list(window[:due])[::-1]

    def _known(self, request: Hashable) -> tuple[int, list[int]]:
        try:
            return self._requests[request]
        except KeyError:
            raise _refused(
                f"request {request!r} is not known", "extend() or import_() it first", "10, condition 4"
            ) from None


def _refused(problem: str, fix: str, rule: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("HISTORY", errno.EINVAL, problem, fix, f"Engram specification {rule}")
