# SPDX-License-Identifier: Apache-2.0
"""The errors of memory that did not answer, for its users: a mapping, a strip, a store."""

from __future__ import annotations

import errno

from obmm.errors import RemoteMemoryError

REASONS = {"SIGBUS": "the memory behind it is gone", "SIGSEGV": "this process has no right to it"}


def remote_fault(
    what: str, where: object, offset: int, kind: str, code: int, peer: str, *, operation: str = "ACCESS"
) -> RemoteMemoryError:
    """`what` at payload byte `offset` of `where` faulted; `kind` is ``"SIGBUS"`` or ``"SIGSEGV"``."""
    return RemoteMemoryError(
        errno.EFAULT,
        f"{what} at offset {offset} of {where} faulted with {kind} (code {code}): {REASONS.get(kind, 'it did not answer')} "
        f"({peer}) [9.9, 17]; fix: close it and fetch a fresh handle",
        operation=operation,
        offset=offset,
        kind=kind,
        peer=peer,
    )


def fault_elsewhere(what: str, kind: str, code: int, *, operation: str = "ACCESS") -> RemoteMemoryError:
    """The caller's own buffer faulted: it is a view of other remote memory."""
    return RemoteMemoryError(
        errno.EFAULT,
        f"{what}: a buffer that was passed is a view of other remote memory, which faulted with {kind} (code {code}) "
        "[9.9, 17]; fix: pass memory of your own, or a snapshot() of that view's mapping, which says where",
        operation=operation,
        kind=kind,
    )
