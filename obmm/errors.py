# SPDX-License-Identifier: Apache-2.0
"""Errors that say what was refused, why, and what to do.

Every error is an `OSError` with the driver's errno.  The texts come from `obmm.explanations`; values of tokenid, UBA
and keys never enter a message.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import Any

from obmm.explanations import causes


def errno_name(number: int) -> str:
    """``EINVAL`` for 22; the number itself when it has no name."""
    return "EOPNOTSUPP" if number == _errno.EOPNOTSUPP else _errno.errorcode.get(number, str(number))


def _shown(value: object) -> str:
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 0xFFFF else str(value)


class ObmmError(OSError):
    """A refused or failed operation.

    `errno` is what the driver answered, or would have answered; `operation` is its name as in ``obmm explain``.
    """

    def __init__(self, errno: int, message: str, *, operation: str = "") -> None:
        super().__init__(errno, message)
        self.operation = operation

    @classmethod
    def refused(cls, operation: str, errno: int, **fields: object) -> ObmmError:
        """The error for `operation` answered with `errno`; `fields` are the inputs that matter (no secrets)."""
        name = errno_name(errno)
        given = ", ".join(f"{key}={_shown(value)}" for key, value in fields.items())
        lines = [f"{operation}({given}) failed with {name} ({os.strerror(errno)})"]
        known = causes(operation, name)
        lines += [f"  - {cause.meaning} [{cause.rules}]; fix: {cause.fix}" for cause in known]
        if not known:
            lines.append(
                "  - no rule of the driver specification gives this answer; read the kernel log (prefix OBMM:)"
            )
        return cls(errno, "\n".join(lines), operation=operation)


class ObmmArgumentError(ObmmError, ValueError):
    """An argument that the driver would refuse (or that has crashed hosts), refused before the call."""

    @classmethod
    def because(cls, operation: str, errno: int, problem: str, fix: str, rule: str = "") -> ObmmArgumentError:
        """`problem` names the value and the rule it breaks, `fix` what to pass instead."""
        source = f" [{rule}]" if rule else ""
        return cls(errno, f"{operation}: {problem}{source}; fix: {fix}", operation=operation)


class DeviceNotFoundError(ObmmError):
    """There is no OBMM device: the module is not loaded, or no emulated fabric runs."""


class ClosedError(ObmmError, ValueError):
    """The object was closed, or belongs to the parent of a forked process."""

    @classmethod
    def of(cls, what: object, why: str = "is closed") -> ClosedError:
        return cls(_errno.EBADF, f"{what} {why}")


class StaleHandleError(ObmmError):
    """The memory behind a handle is not the memory that the handle was made for.

    `reason` is one of ``"generation"``, ``"header"``, ``"length"``, ``"state"``.
    """

    def __init__(self, errno: int, message: str, *, operation: str = "", reason: str = "") -> None:
        super().__init__(errno, message, operation=operation)
        self.reason = reason


class MappingBusyError(ObmmError):
    """Closing or publishing would pull memory from under live views or running gathers; nothing was changed."""


class OwnershipError(ObmmError):
    """An access needs a right that the range does not have; an unguarded access would be a SIGSEGV."""


class RemoteMemoryError(ObmmError):
    """A load or store did not come back: the memory behind the mapping faulted (driver specification 9.9 and 17).

    `offset` counts from the payload, `kind` is ``"SIGBUS"`` (the memory is gone) or ``"SIGSEGV"`` (no right).
    """

    failed_rows: Any = None
    """Of a gather with ``faulty="zero"``: a bool array with one entry per id, true where the row could not be read.  None:
    nothing is known of any row."""

    def __init__(
        self,
        errno: int,
        message: str,
        *,
        operation: str = "",
        offset: int | None = None,
        kind: str = "",
        peer: str = "",
    ) -> None:
        super().__init__(errno, message, operation=operation)
        self.offset = offset
        self.kind = kind
        self.peer = peer


def explain(operation: str, errno: str) -> str:
    """The text of ``obmm explain OPERATION ERRNO``; LookupError when nothing is known."""
    known = causes(operation.upper(), errno.upper())
    if not known:
        raise LookupError(f"nothing is known about {operation.upper()} ending with {errno.upper()}")
    lines = [f"{operation.upper()} -> {errno.upper()}"]
    for cause in known:
        lines += [f"  [{cause.rules}] {cause.meaning}", f"      fix: {cause.fix}"]
    return "\n".join(lines)


__all__ = [
    "ClosedError",
    "DeviceNotFoundError",
    "MappingBusyError",
    "ObmmArgumentError",
    "ObmmError",
    "OwnershipError",
    "RemoteMemoryError",
    "StaleHandleError",
    "errno_name",
    "explain",
]
