# SPDX-License-Identifier: Apache-2.0
"""`priv` and `vendor_info`: bytes that a command carries by pointer (rules X8, X9, I5, P7)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ..calls import KernelError

if TYPE_CHECKING:
    from ..calls import UserMemory


def read_attached(user: UserMemory, pointer: int, length: int, limit: int, rule: str) -> bytes:
    """The bytes at `pointer`; a zero length never dereferences it."""
    if length > limit:
        raise KernelError(errno.EINVAL, rule, f"length {length} > {limit}")
    return user.read(pointer, length) if length else b""
