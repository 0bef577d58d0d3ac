# SPDX-License-Identifier: Apache-2.0
"""Number types that NumPy does not have itself: bfloat16 and the 8-bit floats, by name, through the package ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

NAMED = frozenset(
    {
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)
"""The names that a manifest may use: one number is one or two whole bytes, so rows can be cut anywhere between numbers."""


def is_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether another package registered this type with NumPy: its .npy code names another type, or none."""
    return dtype.isbuiltin == 2


def holds_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether such a type is a field of this one, or its element."""
    if dtype.subdtype is not None:
        return is_foreign(dtype.base) or holds_foreign(dtype.base)
    parts = [entry[0] for entry in (dtype.fields or {}).values()]
    return any(is_foreign(part) or holds_foreign(part) for part in parts)


def named(name: str) -> np.dtype[Any]:
    """The type of this name.  ValueError: it is not one of `NAMED`, or ml_dtypes is not installed, or too old.

    >>> named("bfloat16").itemsize
    2
    """
    if name not in NAMED:
        raise ValueError(f"{name[:40]!r} is none of {', '.join(sorted(NAMED))}")
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError(f"{name} needs the package ml_dtypes: pip install 'obmm[files]'") from None
    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise ValueError(f"{name} needs a newer ml_dtypes: pip install -U ml_dtypes")
    kind: np.dtype[Any] = np.dtype(found)
    return kind
