# SPDX-License-Identifier: Apache-2.0
"""Results of calls and statuses of completions (URMA specification 5, 10), and what each means here."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Final

from obmm.causes.urma import STATUSES, call_cause, status_cause


class Status(IntEnum):
    """How a request ended (section 5).

    >>> obmm.urma.Status(0).name
    'SUCCESS'
    """

    SUCCESS = 0
    UNSUPPORTED_OPCODE_ERR = 1
    LOC_LEN_ERR = 2
    LOC_OPERATION_ERR = 3
    LOC_ACCESS_ERR = 4
    REM_RESP_LEN_ERR = 5
    REM_UNSUPPORTED_REQ_ERR = 6
    REM_OPERATION_ERR = 7
    REM_ACCESS_ABORT_ERR = 8
    ACK_TIMEOUT_ERR = 9
    RNR_RETRY_CNT_EXC_ERR = 10
    WR_FLUSH_ERR = 11
    WR_SUSPEND_DONE = 12
    WR_FLUSH_ERR_DONE = 13
    WR_UNHANDLED = 14
    LOC_DATA_POISON = 15
    REM_DATA_POISON = 16


REFUSALS: Final = frozenset(Status(number) for number, (_, near, _, _) in STATUSES.items() if near == "EACCES")


def status_name(status: int) -> str:
    """The name of a completion status, or its number."""
    try:
        return Status(status).name
    except ValueError:
        return f"status {status}"


def call_hint(operation: str, code: int) -> str:
    """What `code` means for `operation`, and what to do."""
    return call_cause(operation, code).text


def status_errno(status: int) -> int:
    """The errno nearest to a completion status."""
    return int(getattr(errno, STATUSES[status][1])) if status in STATUSES else errno.EIO


def status_hint(status: int) -> str:
    """What a completion status means, and what to do."""
    return status_cause(status).text
