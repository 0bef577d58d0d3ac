# SPDX-License-Identifier: Apache-2.0
"""Arguments of the wrong type, refused by name before they take part in a sum.

A NumPy integer is a whole number too, but wraps around: all arithmetic on offsets and sizes is done on Python's.
"""

from __future__ import annotations

import errno
import math
import operator
from typing import Any

from obmm.errors import ObmmArgumentError

U64 = (1 << 64) - 1
_LONGEST = 1e9  # seconds


def whole(operation: str, name: str, value: Any, *, low: int | None = None, high: int | None = None) -> int:
    """`value` as a Python int in [low, high]; ObmmArgumentError for floats, texts, truth values and what is outside."""
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            # of a subclass of int the number itself: its comparisons may say anything
            value = int.__index__(operator.index(value))
        except TypeError:
            raise wrong_type(operation, name, value, "a whole number") from None
    if (low is not None and value < low) or (high is not None and value > high):
        raise ObmmArgumentError.because(
            operation,
            errno.EINVAL,
            f"{name}={value:#x} is out of range" if value > 0xFFFF else f"{name}={value} is out of range",
            f"{low if low is not None else 'any'}..{high if high is None or high < 0xFFFF else hex(high)}",
        )
    return int(value)


def seconds(operation: str, name: str, value: Any) -> float:
    """`value` as a duration; ObmmArgumentError for NaN, which no clock ever reaches, and for what is not a number."""
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        duration = float(value)
        if math.isnan(duration):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise wrong_type(operation, name, value, "a number of seconds") from None
    return duration


def patience(operation: str, name: str, value: Any) -> float:
    """`value` as a time to wait for that locks and sockets take: 0 for less, years for infinity; else as `seconds`."""
    return min(max(seconds(operation, name, value), 0.0), _LONGEST)


def listed(operation: str, name: str, value: Any, of: str) -> list[Any]:
    """`value`, any iterable, as a list; ObmmArgumentError for a single text or buffer, whose items are not meant."""
    try:
        if isinstance(value, str | bytes | bytearray | memoryview):
            raise TypeError
        iterator = iter(value)
    except TypeError:
        raise wrong_type(operation, name, value, f"a list of {of}") from None
    return list(iterator)


def text(operation: str, name: str, value: Any) -> str:
    """`value`, a str that UTF-8 can carry."""
    if not isinstance(value, str):
        raise wrong_type(operation, name, value, "a text (str)")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ObmmArgumentError.because(
            operation, errno.EINVAL, f"{name}: {error}", "a text that UTF-8 can carry"
        ) from None
    return value


def raw(operation: str, name: str, value: Any) -> bytes:
    """The bytes of `value`, a bytes-like object."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise wrong_type(operation, name, value, "bytes")
    return bytes(value)


def wrong_type(operation: str, name: str, value: object, wanted: str) -> ObmmArgumentError:
    """The error for a `value` that is not `wanted`."""
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return ObmmArgumentError.because(
        operation, errno.EINVAL, f"{name}={shown} is of type {type(value).__name__}", wanted
    )
