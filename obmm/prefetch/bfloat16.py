# SPDX-License-Identifier: Apache-2.0
"""float32 <-> bfloat16 bits; NumPy has no bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even, as torch does; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def from_bfloat16_bits(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Exact."""
    return (np.ascontiguousarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
