# SPDX-License-Identifier: Apache-2.0
"""Buffers of callers that native code writes bytes to."""

from __future__ import annotations

from typing import Any

import numpy as np


def holds_objects(buffer: Any) -> bool:
    """Whether `buffer` is memory of Python references: bytes written over them crash the interpreter later."""
    if type(buffer) is bytearray:
        return False
    owner = buffer if isinstance(buffer, np.ndarray) else memoryview(buffer).obj
    return isinstance(owner, np.ndarray) and owner.dtype.hasobject
