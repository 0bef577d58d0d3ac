# SPDX-License-Identifier: Apache-2.0
"""What a gather can end with besides rows (Engram specification 11.1)."""

from __future__ import annotations

import errno

from obmm.errors import ObmmArgumentError, ObmmError, RemoteMemoryError, StaleHandleError


class GatherDeadlineError(ObmmError, TimeoutError):
    """A gather did not come back in time.  It may still write into its output until its ticket is done.

    >>> issubclass(obmm.rows.GatherDeadlineError, obmm.ObmmError)
    True
    """


class CanaryError(StaleHandleError):
    """Rows do not have the bytes that the manifest promises: another table, another model, or broken memory.

    >>> issubclass(obmm.rows.CanaryError, obmm.StaleHandleError)
    True
    """


def refused(problem: str, fix: str, rule: str = "13.2") -> ObmmArgumentError:
    """An argument that cannot be right."""
    return ObmmArgumentError.because("GATHER", errno.EINVAL, problem, fix, f"Engram specification {rule}")


def refuse_threads(threads: int) -> None:
    """A number of threads that is none."""
    if not isinstance(threads, int) or not 0 < threads < 1 << 32:
        raise refused(f"threads={threads!r}", "0 leaves it to the plan; more than the engine has is all of them")


def bad_manifest(problem: str) -> ObmmArgumentError:
    """A manifest that this version cannot use."""
    return ObmmArgumentError.because(
        "MANIFEST", errno.EINVAL, problem, "publish the tables with RowStore.publish()", "Engram specification 5.4"
    )


def bad_id(table: object, n_rows: int, index: int, identity: int) -> ObmmArgumentError:
    """An id outside its table; nothing was read."""
    return refused(
        f"ids[{index}] (flattened) is {identity}, table {table!r} has rows 0..{n_rows - 1}",
        'hash with this table\'s manifest, or pass invalid="zero" for zero rows in such places',
        "10-13",
    )


def over_its_input() -> ObmmArgumentError:
    """The output is memory that the gather reads."""
    return refused(
        "out overlaps the table's rows or the ids, which are read while it is written", "a buffer of its own"
    )


def late(table: object, seconds: float) -> GatherDeadlineError:
    """The deadline passed."""
    return GatherDeadlineError(
        errno.ETIMEDOUT,
        f"GATHER: rows of table {table!r} did not come within {seconds * 1e3:.3g} ms [Engram specification 11.3-3]; "
        "fix: look at the peer, or allow more time; the output may still be written until the ticket is done",
        operation="GATHER",
    )


def outdated(attached: int, version: int) -> StaleHandleError:
    """The owner published under a cacheable import."""
    now = f"{version}, which is being written" if version % 2 else f"{version}"
    return StaleHandleError(
        errno.ESTALE,
        f"GATHER: publication {attached} was attached, the memory holds {now}; cached rows may be of either [Engram "
        "specification 10-18, driver specification 16]; fix: refresh(new_manifest), or attach again",
        operation="GATHER",
        reason="generation",
    )


def republished(table: object, version: int) -> StaleHandleError:
    """The content changed under the gather."""
    when = f"is being published (version {version} is odd)" if version % 2 else "was published again meanwhile"
    return StaleHandleError(
        errno.ESTALE,
        f"GATHER: table {table!r} {when} [Engram specification 10-17]; fix: gather again, with the new manifest",
        operation="GATHER",
        reason="generation",
    )


def elsewhere(what: str, kind: str, code: int) -> RemoteMemoryError:
    """A fault outside the table: the ids or the output are a view of memory that is gone."""
    return RemoteMemoryError(
        errno.EFAULT,
        f"{what}: its ids or its output lie in a view of other remote memory, which faulted with {kind} (code {code}) "
        "[9.9, 17]; fix: pass ids and out of your own, or a snapshot()",
        operation="GATHER",
        kind=kind,
    )
