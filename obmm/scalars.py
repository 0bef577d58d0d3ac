# SPDX-License-Identifier: Apache-2.0
"""The scalar types of `Mapping.load` and `Mapping.store`: NumPy's names, 1 to 8 bytes."""

from __future__ import annotations

import struct
import sys
from types import MappingProxyType
from typing import Final

_CODES = {
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "i8": "q",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
_NATIVE = "<" if sys.byteorder == "little" else ">"


class Scalar:
    """How one scalar type travels through a 64-bit word in host order."""

    __slots__ = ("_carrier", "_codec", "width")

    def __init__(self, order: str, code: str) -> None:
        self._codec = struct.Struct(order + code)
        self.width = self._codec.size
        self._carrier = struct.Struct(_NATIVE + {1: "B", 2: "H", 4: "I", 8: "Q"}[self.width])

    def decode(self, word: int) -> int | float:
        value: int | float = self._codec.unpack(self._carrier.pack(word))[0]
        return value

    def encode(self, value: int | float) -> int:
        """struct.error (a ValueError of the caller's) when `value` does not fit."""
        word: int = self._carrier.unpack(self._codec.pack(value))[0]
        return word


SCALARS: Final = MappingProxyType(
    {
        prefix + name: Scalar(order, code)
        for name, code in _CODES.items()
        for prefix, order in (("", _NATIVE), ("=", _NATIVE), ("<", "<"), (">", ">"))
    }
)
