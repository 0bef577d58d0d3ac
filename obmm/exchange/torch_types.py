# SPDX-License-Identifier: Apache-2.0
"""Between NumPy's types and torch's, bfloat16 and the 8-bit floats too.  Only calling these imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from obmm.exchange.dtypes import NAMED, is_foreign, named


def numpy_dtype(of: Any) -> np.dtype[Any]:
    """NumPy's type for a torch.dtype; ValueError when there is none."""
    name = str(of).removeprefix("torch.")
    return named(name) if name in NAMED else np.dtype(np.bool_ if name == "bool" else name).newbyteorder("<")


def tensor_from(array: np.ndarray[Any, Any]) -> Any:
    """A torch tensor over the same memory as `array`.  TypeError or ValueError: torch has no such type.

    >>> tensor_from(np.zeros(3, "<f4")).dtype  # doctest: +SKIP
    torch.float32
    """
    import torch

    if not is_foreign(array.dtype):
        return torch.from_numpy(array)
    kind = getattr(torch, array.dtype.name, None)
    if kind is None:
        raise ValueError(f"this torch has no {array.dtype.name}")
    return torch.from_numpy(array.view(np.uint8 if array.dtype.itemsize == 1 else np.uint16)).view(kind)
