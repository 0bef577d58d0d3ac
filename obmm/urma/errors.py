# SPDX-License-Identifier: Apache-2.0
"""Errors of the URMA path.  Tokens never enter a message."""

from __future__ import annotations

import errno

from obmm.causes.urma import code_name, errno_of_call
from obmm.errors import ObmmError
from obmm.urma.codes import REFUSALS, call_hint, status_errno, status_hint, status_name


class UrmaError(ObmmError):
    """A call that was refused, or a request that failed.

    `code` is the library's result or the completion's status, `name` its name, `operation` the call, `elapsed` how long
    it took in seconds, `hint` what it means and what to do, `index` which piece of a batch it was (None: not known).
    `errno` is only the nearest one.

    >>> obmm.urma.UrmaError.answered("queue", 22, "a library", depth=3).name
    'EINVAL'
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        errno: int = errno.EIO,
        operation: str = "",
        name: str = "",
        elapsed: float = 0.0,
        hint: str = "",
        index: int | None = None,
    ) -> None:
        super().__init__(errno, message, operation=operation)
        self.code, self.name, self.elapsed, self.hint, self.index = code, name, elapsed, hint, index

    @classmethod
    def answered(cls, operation: str, code: int, library: str, **fields: object) -> UrmaError:
        """The error for `operation` that `library` answered with `code`; `fields` are the inputs that matter."""
        given = ", ".join(f"{key}={value!r}" for key, value in fields.items())
        hint, name = call_hint(operation, code), code_name(code)
        text = f"urma.{operation}({given}) of {library} failed with {code} {name}\n  - {hint}"
        return UrmaError(code, text, errno=errno_of_call(code), operation=operation, name=name, hint=hint)


class UrmaArgumentError(UrmaError, ValueError):
    """An argument that was refused before the call; nothing was posted.

    >>> obmm.urma.UrmaArgumentError.because("queue", "depth=0", "at least 1").operation
    'queue'
    """

    @classmethod
    def because(cls, operation: str, problem: str, fix: str, index: int | None = None) -> UrmaArgumentError:
        """An error of `operation`: `problem` names the value and the rule it breaks, `fix` what to pass instead, `index`
        which piece.
        """
        return cls(
            errno.EINVAL,
            f"urma.{operation}: {problem}; fix: {fix}",
            errno=errno.EINVAL,
            operation=operation,
            name="EINVAL",
            hint=fix,
            index=index,
        )


class UrmaRefused(UrmaError):
    """A request that the other side, or this side's own device, does not let in.  The queue is dead.

    >>> issubclass(obmm.urma.UrmaRefused, obmm.urma.UrmaError)
    True
    """


class UrmaTimeout(UrmaError, TimeoutError):
    """No completion before the deadline.  The queue is dead, and may write to the destination until it is closed.

    >>> issubclass(obmm.urma.UrmaTimeout, obmm.urma.UrmaError)
    True
    """


class UrmaQueueDead(UrmaError):
    """The queue died by an earlier error, or its completion queue did; make a new one and attach again.

    >>> issubclass(obmm.urma.UrmaQueueDead, obmm.urma.UrmaError)
    True
    """


class UrmaTicketError(UrmaError, ValueError):
    """Bytes that are not a ticket, or one that this process cannot use; the text says why.

    >>> obmm.urma.Ticket.unpack(b"no ticket")
    Traceback (most recent call last):
    obmm.urma.errors.UrmaTicketError: ...
    """


class UrmaLibraryError(ObmmError):
    """There is no usable ``liburma.so.0``; the text says what was tried.

    >>> obmm.urma.load("/nowhere/liburma.so.0")
    Traceback (most recent call last):
    obmm.urma.errors.UrmaLibraryError: ...
    """


def of_status(operation: str, status: int, index: int | None, pieces: int, elapsed: float, trouble: str) -> UrmaError:
    """The error for a batch whose piece `index` ended with `status`."""
    where = f"piece {index} of {pieces}" if index is not None else f"one of {pieces} pieces"
    hint = status_hint(status)
    text = (
        f"urma.{operation}: {where} ended with status {status} {status_name(status)} after {elapsed:.6f} s\n  - {hint}"
    )
    if trouble:
        text += f"\n  - {trouble}"
    kind = UrmaRefused if status in REFUSALS else UrmaError
    return kind(
        status,
        text,
        errno=status_errno(status),
        operation=operation,
        name=status_name(status),
        elapsed=elapsed,
        hint=hint,
        index=index,
    )
