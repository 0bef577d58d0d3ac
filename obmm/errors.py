# SPDX-License-Identifier: Apache-2.0
"""Errors that say what was refused, why, and what to do.

Every error is an `OSError` with the driver's errno.  The texts come from `obmm.explanations`; values of tokenid, UBA
and keys never enter a message.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import Any

from obmm.explanations import causes, explained
from obmm.operations import called


def errno_name(number: int) -> str:
    """``EINVAL`` for the `number` 22; the number itself, as a text, when it has no name.

    >>> obmm.errors.errno_name(22), obmm.errors.errno_name(4000)
    ('EINVAL', '4000')
    """
    return "EOPNOTSUPP" if number == _errno.EOPNOTSUPP else _errno.errorcode.get(number, str(number))


def _shown(value: object) -> str:
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 0xFFFF else str(value)


def other_version(what: str, found: object, known: int) -> str:
    """A sentence about `what`, which is of the version `found` while this package reads `known`.

    >>> obmm.errors.other_version("the region header", 2, 1)
    'the region header is of version 2, made by a newer obmm: upgrade this one, which reads version 1'
    """
    if isinstance(found, int) and not isinstance(found, bool) and found > known:
        return f"{what} is of version {found}, made by a newer obmm: upgrade this one, which reads version {known}"
    return f"{what} is of version {_short(found)}, which no obmm makes; this one reads version {known}"


def _short(value: object) -> str:
    return repr(value)[:40]


class ObmmError(OSError):
    """A refused or failed operation.

    `errno` is what the driver answered, or would have answered; `operation` is its name as in ``obmm explain``.

    `str` of it names the operation, the values that matter, what this errno means there, and the fix.

    >>> try:
    ...     a.query_pa(4711)
    ... except obmm.ObmmError as error:
    ...     error.operation, obmm.errors.errno_name(error.errno)
    ('ADDR_QUERY', '...')
    >>> print(obmm.ObmmError.refused("IMPORT", 22, mem_id=3))
    [Errno 22] IMPORT(mem_id=3) failed with EINVAL ...
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
    """An argument that the driver would refuse (or that has crashed hosts), refused before the call.

    >>> a.export_region(-1)
    Traceback (most recent call last):
    obmm.errors.ObmmArgumentError: ...
    >>> obmm.ObmmArgumentError.because("EXPORT", 22, "size=-1", "a positive size").operation
    'EXPORT'
    """

    @classmethod
    def because(cls, operation: str, errno: int, problem: str, fix: str, rule: str = "") -> ObmmArgumentError:
        """An error of `operation` with that `errno`: `problem` names the value, `rule` what it breaks, `fix` what to
        pass instead.
        """
        source = f" [{rule}]" if rule else ""
        return cls(errno, f"{operation}: {problem}{source}; fix: {fix}", operation=operation)


class DeviceNotFoundError(ObmmError):
    """There is no OBMM device: the module is not loaded, or no emulated fabric runs.

    >>> obmm.open("emulator:/nowhere/at-all.socket")
    Traceback (most recent call last):
    obmm.errors.DeviceNotFoundError: ...
    """


class ClosedError(ObmmError, ValueError):
    """The object was closed, or belongs to the parent of a forked process.

    >>> region = a.export_region("2MiB")
    >>> region.close()
    >>> region.map("r")
    Traceback (most recent call last):
    obmm.errors.ClosedError: ...
    >>> obmm.ClosedError.of("the box").strerror
    'the box is closed'
    """

    @classmethod
    def of(cls, what: object, why: str = "is closed") -> ClosedError:
        """The error that says that `what` was used, and `why` it cannot be."""
        return cls(_errno.EBADF, f"{what} {why}")


class CopyError(ObmmError, TypeError):
    """A copy or a pickle of an object that owns what exists once outside Python.

    >>> import copy
    >>> copy.copy(a)
    Traceback (most recent call last):
    obmm.errors.CopyError: ...
    >>> obmm.errors.CopyError.of("Device").operation
    'COPY'
    """

    @classmethod
    def of(cls, kind: str) -> CopyError:
        """The error for a copy of an object of that `kind`."""
        return cls(
            _errno.EPERM,
            f"COPY: a {kind} cannot be copied or pickled: it owns what exists once, and a copy would give that back a "
            "second time; fix: open it in the worker, share the object between threads",
            operation="COPY",
        )


class StaleHandleError(ObmmError):
    """The memory behind a handle is not the memory that the handle was made for.

    `reason` is one of ``"generation"``, ``"header"``, ``"length"``, ``"state"``.

    >>> from dataclasses import replace
    >>> with a.export_region("2MiB") as region:
    ...     with b.import_region(replace(region.handle(), generation=7)) as imported:
    ...         try:
    ...             imported.map("r")
    ...         except obmm.StaleHandleError as error:
    ...             error.reason
    'generation'
    """

    def __init__(self, errno: int, message: str, *, operation: str = "", reason: str = "") -> None:
        super().__init__(errno, message, operation=operation)
        self.reason = reason


class MappingBusyError(ObmmError):
    """Closing or publishing would pull memory from under live views or running gathers; nothing was changed.

    >>> with a.export_region("2MiB") as region, region.map("r") as memory:
    ...     view = memory.view()
    ...     try:
    ...         memory.close()
    ...     except obmm.MappingBusyError:
    ...         print("a view lives")
    ...     del view
    a view lives
    """


class OwnershipError(ObmmError):
    """An access needs a right that the range does not have; an unguarded access would be a SIGSEGV.

    >>> with a.export_region("2MiB") as region, region.map("none") as memory:
    ...     memory.read(0, 1)
    Traceback (most recent call last):
    obmm.errors.OwnershipError: ...
    """


class RemoteMemoryError(ObmmError):
    """A load or store did not come back: the memory behind the mapping faulted (driver specification 9.9 and 17).

    `offset` counts from the payload, in bytes, `kind` is ``"SIGBUS"`` (the memory is gone) or ``"SIGSEGV"`` (no right),
    `peer` says whose memory it is.

    >>> region = a.export_region("2MiB", header=False)
    >>> imported = b.import_region(region.handle())
    >>> memory = imported.map("r")
    >>> memory.refresh()
    >>> fabric.inject("a", "revoke", mem_id=region.mem_id)
    >>> memory.read(0, 1)
    Traceback (most recent call last):
    obmm.errors.RemoteMemoryError: ...
    >>> imported.close(force=True), region.close(force=True)
    (None, None)
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
    """The text of ``obmm explain OPERATION ERRNO``, both by name; LookupError when nothing is known.

    `operation`: as in `ObmmError.operation` or as an error prints it, in any case; `errno`: its name, or for the SDK
    and URMA the number or name of their own.

    >>> print(obmm.errors.explain("IMPORT", "EINVAL"))
    IMPORT -> EINVAL
      [I14] ...
    """
    lines = []
    for one in called(operation):
        for name, known in explained(one, errno).items():
            lines.append(f"{one.printed} -> {name}")
            for cause in known:
                lines += [f"  [{cause.rules}] {cause.said}", f"      fix: {cause.fix}"]
    if not lines:
        raise LookupError(f"nothing is known about {operation} ending with {errno.upper()}")
    return "\n".join(lines)


__all__ = [
    "ClosedError",
    "CopyError",
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
