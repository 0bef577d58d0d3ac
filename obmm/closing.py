# SPDX-License-Identifier: Apache-2.0
"""The end of a with block, the same for everything that can refuse to close."""

from __future__ import annotations

from typing import Protocol

from obmm.errors import ObmmError


class Closable(Protocol):
    """Something with an ordered, idempotent `close`."""

    def close(self) -> object: ...


def close_on_exit(thing: Closable, error: BaseException | None) -> None:
    """Close at the end of a with block; with an exception in flight a refusal becomes a note on it."""
    try:
        thing.close()
    except ObmmError as refusal:
        if error is None:
            raise
        error.add_note(f"and {thing!r} stayed open: {refusal}")
