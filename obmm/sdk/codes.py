# SPDX-License-Identifier: Apache-2.0
"""Result codes of the SDK (SDK specification 4.3), and what each means for each operation (13)."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Final

from obmm.causes.sdk import CODES, cause
from obmm.causes.sdk import HINTS as HINTS  # the table behind `hint`


class Code(IntEnum):
    """What the SDK's functions return.

    >>> obmm.sdk.Code(6020).name
    'NOT_FOUND'
    """

    OK = 0
    PARAM_INVALID = 6010
    NOPERM = 6011
    MEMORY = 6012
    UNIMPL = 6013
    CHECK_RESOURCE = 6014
    MEMLIB = 6015
    NO_NEEDED = 6016
    BUSY = 6017
    NOT_FOUND = 6020
    ALREADY_EXIST = 6021
    MALLOC_FAIL = 6022
    RECORD = 6023
    IN_USING = 6024
    NET = 6040
    UBSE = 6050
    OBMM = 6051
    LOCK_NOT_SUPPORTED = 6060
    LOCK_ALREADY_LOCKED = 6061
    DLOCK = 6062
    BUFF = 6099


def c_name(code: int) -> str:
    """The name in the SDK's header, or the number of a code that it does not have."""
    return CODES[code][0] if code in CODES else "UBSM_OK" if code == Code.OK else f"code {code}"


ERRNO: Final[dict[int, int]] = {code: getattr(errno, near) for code, (_, near) in CODES.items()}
"""The errno nearest to each code: an SDK error is an OSError like every other of this package."""


def hint(operation: str, code: int) -> str:
    """What `code` means for `operation`, and what to do."""
    return cause(operation, code).text
