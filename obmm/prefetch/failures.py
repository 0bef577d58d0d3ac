# SPDX-License-Identifier: Apache-2.0
"""The prefetcher's own errors, and names for the errors of other rooms (Engram specification 11.1)."""

from __future__ import annotations

import errno

from obmm.errors import ObmmArgumentError, ObmmError, StaleHandleError
from obmm.rows import GatherDeadlineError


class PeerFailedError(ObmmError):
    """The circuit breaker is open: the peer failed, and no probe has come back whole since.

    >>> issubclass(obmm.prefetch.PeerFailedError, obmm.ObmmError)
    True
    """


def refused(problem: str, fix: str, rule: str) -> ObmmArgumentError:
    """An argument that the prefetcher does not take."""
    return ObmmArgumentError.because("PREFETCH", errno.EINVAL, problem, fix, f"Engram specification {rule}")


def no_slot(table: object) -> ObmmError:
    """Every buffer of the table is still in use."""
    return ObmmError(
        errno.EBUSY,
        f"PREFETCH: every slot of table {table!r} is held by a late gather [Engram specification 11.3-4]; fix: look at "
        "the fabric and the peer, or make the prefetcher deeper",
        operation="PREFETCH",
    )


def changed(table: object, began: int, now: int) -> StaleHandleError:
    """The table was published anew within a step."""
    return StaleHandleError(
        errno.ESTALE,
        f"PREFETCH: table {table!r} was published again during the step: generation {began} at begin, {now} in the "
        "gather [Engram specification 10-17]; fix: run the step again",
        operation="PREFETCH",
        reason="generation",
    )


def peer_failed(why: str) -> PeerFailedError:
    """The peer is not asked, and why."""
    return PeerFailedError(
        errno.EHOSTDOWN,
        f"PREFETCH: not asking the peer, {why} [Engram specification 11.3-6]; fix: none needed when it comes back, the "
        'canary rows are read every second; policy "local" or "zero" goes on without it',
        operation="PREFETCH",
    )


def as_obmm_error(error: BaseException) -> ObmmError:
    """What a gather raised, as the kind of error that `drain` promises."""
    if isinstance(error, ObmmError):
        return error
    wrapped = ObmmError(errno.EIO, f"PREFETCH: the gather failed: {error!r}", operation="PREFETCH")
    wrapped.__cause__ = error
    return wrapped


def kind_of(error: ObmmError) -> str:
    """The label of obmm_errors_total."""
    if isinstance(error, GatherDeadlineError):
        return "deadline"
    if isinstance(error, StaleHandleError):
        return "generation"
    if isinstance(error, PeerFailedError):
        return "heartbeat"
    return "fault"
