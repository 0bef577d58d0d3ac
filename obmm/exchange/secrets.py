# SPDX-License-Identifier: Apache-2.0
"""Bytes that must not show.

Handles and keys pass through local variables, and a traceback printed with
its locals (pytest, sentry, rich) shows the ``repr`` of each.  Whatever may
hold a handle or a key is therefore an ``Opaque``, or a ``memoryview`` of one,
whose ``repr`` says how long it is and nothing else.
"""

from __future__ import annotations


class Opaque(bytearray):
    """A bytearray that does not print its content."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes, not shown>"

    __str__ = __repr__

    def wipe(self) -> None:
        """Overwrite the content (best effort: Python may have made copies before)."""
        self[:] = bytes(len(self))
