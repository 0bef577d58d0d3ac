# SPDX-License-Identifier: Apache-2.0
"""Bytes that must not show.

Handles and keys pass through local variables, and a traceback printed with
its locals (pytest, sentry, rich) shows the ``repr`` of each.  Whatever may
hold a handle or a key is therefore an ``Opaque``, or a ``memoryview`` of one,
whose ``repr`` says how long it is and nothing else.
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress

_PR_SET_DUMPABLE = 4


class Opaque(bytearray):
    """A bytearray that does not print its content."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes, not shown>"

    __str__ = __repr__

    def wipe(self) -> None:
        """Overwrite the content (best effort: Python may have made copies before)."""
        self[:] = bytes(len(self))


def keep_secrets_in_memory() -> bool:
    """No core dump of this process, and no look into its memory by others of its user; False where that cannot be had.

    For commands only: a library must not change the process that it is loaded into.
    """
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
