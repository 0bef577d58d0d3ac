# SPDX-License-Identifier: Apache-2.0
"""What users say about arrays over mapped memory: types, shapes, strides."""

from __future__ import annotations

import errno
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm.arguments import whole, wrong_type
from obmm.errors import ObmmArgumentError


def plain_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """A type of at least one byte without Python objects."""
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise wrong_type("VIEW", "dtype", dtype, "what NumPy takes as a dtype") from None
    if kind.hasobject or kind.itemsize == 0:
        raise ObmmArgumentError.because(
            "VIEW",
            errno.EINVAL,
            f"dtype {kind} holds Python objects or no bytes at all",
            "a plain data type",
            "docs/safety.md",
        )
    return kind


def numbers(name: str, given: Any) -> tuple[int, ...]:
    """Sizes or strides: whole numbers of at least 0, one or several."""
    if isinstance(given, str | bytes | dict):
        raise wrong_type("VIEW", name, given, "a whole number, or a tuple of them")
    try:
        items = tuple(given)
    except TypeError:
        items = (given,)
    return tuple(whole("VIEW", name, item, low=0) for item in items)


def extent(shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int) -> int:
    """Bytes from the first item's first to the last item's last byte."""
    if 0 in shape:
        return 0
    if strides is None:
        return math.prod(shape) * itemsize
    if len(strides) != len(shape):
        raise ObmmArgumentError.because(
            "VIEW",
            errno.EINVAL,
            f"strides {strides} do not fit shape {shape}",
            "one stride in bytes per dimension",
        )
    return sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + itemsize
