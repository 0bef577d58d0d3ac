# SPDX-License-Identifier: Apache-2.0
"""Typed reading of one TOML table, with errors that name the place, the value and the fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_REQUIRED = object()


class TopologyError(ValueError):
    """The description of a fabric is wrong; the text names the place, the value and the rule."""


class Table:
    """A table at `where`. Every read names a key; `finish` refuses keys that were not read."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise TopologyError(f"{where}: {value!r} is not a table")
        self.where = where
        self._values: dict[str, Any] = dict(value)
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def place(self, key: str) -> str:
        """How errors call `key`."""
        return f"{self.where}.{key}"

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The raw value; TopologyError when it is missing and has no default."""
        self._known.append(key)
        if key in self._values:
            return self._values.pop(key)
        if default is _REQUIRED:
            raise TopologyError(f"{self.where}: {key} is missing")
        return default

    def integer(self, key: str, default: Any = _REQUIRED, low: int = 0, high: int = (1 << 63) - 1) -> Any:
        """An integer in [low, high]."""
        value = self.get(key, default)
        if value is default and default is not _REQUIRED:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise TopologyError(f"{self.place(key)}: {value!r} is not an integer")
        if not low <= value <= high:
            raise TopologyError(f"{self.place(key)}: {value:#x} is not between {low:#x} and {high:#x}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise TopologyError(f"{self.place(key)}: {value!r} is neither true nor false")
        return value

    def text(self, key: str, default: Any = _REQUIRED, choices: tuple[str, ...] = ()) -> str:
        """A text, one of `choices` when they are given."""
        value = self.get(key, default)
        if not isinstance(value, str) or not value:
            raise TopologyError(f"{self.place(key)}: {value!r} is not text")
        if choices and value not in choices:
            raise TopologyError(f"{self.place(key)}: {value!r} is none of {', '.join(choices)}")
        return value

    def size(self, key: str, default: Any = _REQUIRED, multiple: int = 1) -> Any:
        """Bytes: an integer, or a text with a unit."""
        value = self.get(key, default)
        if value is default and default is not _REQUIRED:
            return value
        number = parse_size(value, self.place(key))
        if number % multiple:
            raise TopologyError(f"{self.place(key)}: {value!r} is not a multiple of {multiple:#x}")
        return number

    def tables(self, key: str) -> list[Table]:
        """An array of tables; none when it is missing."""
        value = self.get(key, [])
        if not isinstance(value, list):
            raise TopologyError(f"{self.place(key)}: write [[{key}]], one for each")
        return [Table(one, f"{self.place(key)}[{index}]") for index, one in enumerate(value)]

    def finish(self) -> None:
        """Refuse keys that mean nothing."""
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(set(self._known)))}"
            raise TopologyError(f"{self.place(repr(key)[1:-1])}: unknown key; {hint}")


def parse_size(value: object, where: str) -> int:
    """Bytes from an integer or a text such as ``"2MiB"``, ``"2M"`` or ``"0x200000"``."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        match = value if not isinstance(value, str) else _SIZE.fullmatch(value.strip())
        if not isinstance(match, re.Match):
            raise TopologyError(f"{where}: {value!r} is not a size; write bytes, or a number with KiB, MiB, GiB or TiB")
        number = int(match[1].replace("_", ""), 0) * _UNITS[match[2]]
    if not 0 <= number < 1 << 64:
        raise TopologyError(f"{where}: {value!r} does not fit in 64 bits")
    return number


_SIZE = re.compile(r"(0[xX][0-9a-fA-F_]+|[0-9][0-9_]*)\s*([KMGT]?)(?:iB)?")


def size_text(size: int) -> str:
    """`size` as a module parameter would be written: "1G", "2M"."""
    for unit in "TGMK":
        if size and not size % _UNITS[unit]:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)
