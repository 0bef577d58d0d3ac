# SPDX-License-Identifier: Apache-2.0
"""The scalar types of `Mapping.load` and `Mapping.store`: NumPy's names, 1 to 8 bytes."""

from __future__ import annotations

import errno
import struct
import sys
from collections.abc import Callable
from typing import Final

from obmm.errors import ObmmArgumentError

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
    """How one scalar type travels through a 64-bit word in host order.

    `decode` is None where the word is the value.
    """

    __slots__ = ("_carrier", "_codec", "decode", "width")

    def __init__(self, order: str, code: str) -> None:
        self._codec = struct.Struct(order + code)
        self.width = self._codec.size
        self._carrier = struct.Struct(_NATIVE + {1: "B", 2: "H", 4: "I", 8: "Q"}[self.width])
        unsigned = code in "BHIQ" and (order == _NATIVE or self.width == 1)
        self.decode: Callable[[int], int | float] | None = None if unsigned else self._unpack

    def _unpack(self, word: int) -> int | float:
        value: int | float = self._codec.unpack(self._carrier.pack(word))[0]
        return value

    def encode(self, value: int | float) -> int:
        """ValueError when `value` does not fit."""
        try:
            word: int = self._carrier.unpack(self._codec.pack(value))[0]
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{value!r} does not fit {self.width} bytes of this type: {error}") from None
        return word


SCALARS: Final = {
    prefix + name: Scalar(order, code)
    for name, code in _CODES.items()
    for prefix, order in (("", _NATIVE), ("=", _NATIVE), ("<", "<"), (">", ">"), ("|", _NATIVE))
}


def scalar_of(dtype: str) -> Scalar:
    """The scalar type of that name; ObmmArgumentError for what is none."""
    try:
        return SCALARS[dtype]
    except (KeyError, TypeError):
        raise bad_scalar(dtype) from None


def bad_scalar(dtype: object) -> ObmmArgumentError:
    """The error for a name that is not a scalar's."""
    return ObmmArgumentError.because(
        "ACCESS",
        errno.EINVAL,
        f"dtype={dtype!r} is not a scalar of 1, 2, 4 or 8 bytes",
        "for example '<u8', '<f4' or 'u1'",
    )
