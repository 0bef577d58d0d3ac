# SPDX-License-Identifier: Apache-2.0
"""Why a block was not moved."""

from __future__ import annotations

import enum

from obmm._native import lib


class Reason(enum.IntEnum):
    """What became of one block.  `OK` and `EXISTED` are successes, everything else is a miss, never an error.

    >>> obmm.blocks.Reason.OK.name
    'OK'
    """

    OK = lib.OBMM_BLOCK_DONE
    LENGTH = lib.OBMM_BLOCK_LENGTH
    """The pieces do not have the block's size, or it is larger than a slot."""
    REUSED = lib.OBMM_BLOCK_REUSED
    """The slot holds another block by now, or is being written."""
    TORN = lib.OBMM_BLOCK_TORN
    """The slot changed under the copy."""
    CORRUPT = lib.OBMM_BLOCK_CORRUPT
    """The bytes do not have the sum that the header promises."""
    FAULT = lib.OBMM_BLOCK_FAULT
    """The owner's memory did not answer."""
    RIGHT = lib.OBMM_BLOCK_RIGHT
    """The driver gave no right to the slot."""
    CLOSED = lib.OBMM_BLOCK_CLOSED
    """The store, or the memory under it, was closed meanwhile."""
    LATE = lib.OBMM_BLOCK_LATE
    """The deadline came before its turn."""
    BUFFER = lib.OBMM_BLOCK_BUFFER
    """The caller's memory went away."""
    ABSENT = 20
    """The directory knows no such block."""
    FULL = 21
    """Every slot is pinned, reserved, or beyond the tenant's limit."""
    NO_OWNER = 22
    """No owner is attached: it is dead, restarted, or never answered."""
    NO_ANSWER = 23
    """The directory did not answer in time."""
    GONE = 24
    """The reservation ended before the block was committed."""
    EXISTED = 25
    """Stored already: nothing was copied."""
    PENDING = lib.OBMM_BLOCK_PENDING
    """It was not started: abandoned, closed, or too late."""


SUCCESSES = (Reason.OK, Reason.EXISTED)
# what another look into the directory may mend
WORTH_ANOTHER_LOOK = (Reason.REUSED, Reason.TORN, Reason.CORRUPT)
