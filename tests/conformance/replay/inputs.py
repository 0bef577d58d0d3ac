# SPDX-License-Identifier: Apache-2.0
"""What a step was given, and whether all of it was read."""

from __future__ import annotations

from typing import Any


class Inputs(dict[str, Any]):
    """A step's inputs, which know what was read of them: one that an operation passes over would be answered by luck."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return super().get(key, default)

    def all_read_by(self, op: str) -> None:
        """NotImplementedError that names what `op` did not read. Names of the recorder's own remarks end in an underscore."""
        unread = sorted(key for key in self if key not in self._read and not key.endswith("_"))
        if unread:
            raise NotImplementedError(f"the replay does not know what {', '.join(unread)} means to {op!r}")
