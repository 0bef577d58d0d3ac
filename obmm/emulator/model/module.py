# SPDX-License-Identifier: Apache-2.0
"""The driver module and its parameters (driver specification 8, 12)."""

from __future__ import annotations

import errno
import re

from ..topology import PMD
from .calls import KernelError

GRANULE = 2 << 20
PUD = 1 << 30
ALLOCATORS = {"buddy_highmem": None, "hugetlb_pmd": PMD, "hugetlb_pud": PUD}
"""Allocators and the only memseg they work with (None: any)."""
SIZE_TEXTS = {None: "2M", PMD: "2M", PUD: "1G"}
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_BOOLS = {"y": True, "1": True, "on": True, "": True, "n": False, "0": False, "off": False}
FEATURE_MASK = 0xF
"""Borrow NC, borrow CC, share NC, share CC: one of them opens the gate (rule D1)."""


class Module:
    """Parameters of one load of the module, parsed as the kernel parses them."""

    def __init__(self, params: str, features: int | None, contiguous_percent: int) -> None:
        texts = {"mempool_size": "1G", "mempool_refill_timeout": "30000", "mempool_allocator": "buddy_highmem"}
        texts["skip_cache_maintain"] = "N"
        granularity: str | None = None
        for word in params.split():
            name, _, value = word.partition("=")
            if name == "mem_allocator_granu":
                granularity = value
            elif name in texts:
                texts[name] = value
        allocator = texts["mempool_allocator"]
        if allocator not in ALLOCATORS:
            raise KernelError(errno.EINVAL, "12", f"mempool_allocator {allocator!r}")
        only = ALLOCATORS[allocator]
        granularity = SIZE_TEXTS[only] if granularity is None else granularity
        self.memseg = memparse(granularity)
        if self.memseg < GRANULE or self.memseg & (self.memseg - 1) or only not in (None, self.memseg):
            raise KernelError(errno.EINVAL, "12", f"mem_allocator_granu {granularity!r} for {allocator}")
        if allocator == "hugetlb_pmd" and contiguous_percent < 100:
            raise KernelError(errno.EINVAL, "12", "hugetlb_pmd needs pmd_mapping=100%")
        self.mempool_size = memparse(texts["mempool_size"])
        self.refill_timeout = _integer(texts["mempool_refill_timeout"]) / 1000
        flag = _BOOLS.get(texts["skip_cache_maintain"].lower())
        if flag is None:
            raise KernelError(errno.EINVAL, "12", f"skip_cache_maintain {texts['skip_cache_maintain']!r}")
        self.skip_cache_maintain = flag
        self.allocator = allocator
        self.gate_open = features is None or bool(features & FEATURE_MASK)
        """Evaluated once, at load (rule D1)."""
        self.files = {
            "mempool_size": (texts["mempool_size"], 0o440),
            "mempool_refill_timeout": (str(_integer(texts["mempool_refill_timeout"])), 0o440),
            "mempool_allocator": (allocator, 0o440),
            "mem_allocator_granu": (granularity, 0o440),
            "skip_cache_maintain": ("Y" if flag else "N", 0o444),
        }
        """Parameter files: name -> (text, mode)."""

    @property
    def low_memory_reason(self) -> int:
        """The reclaim event that this allocator answers to: 2 ordinary, 3 huge pages."""
        return 2 if self.allocator == "buddy_highmem" else 3


def memparse(text: str) -> int:
    """A size as the kernel's memparse reads it; anything left over is EINVAL."""
    match = re.fullmatch(r"(0[xX][0-9a-fA-F]+|[0-9]+)([kKmMgGtT]?)", text)
    if match is None:
        raise KernelError(errno.EINVAL, "12", f"{text!r} is no size")
    digits = match[1]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    try:
        return int(digits, base) << _UNITS[match[2].lower()]
    except ValueError:
        raise KernelError(errno.EINVAL, "12", f"{text!r} is no size") from None


def _integer(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = 1 << 31
    if not -(1 << 31) <= value < 1 << 31:
        raise KernelError(errno.EINVAL, "12", f"{text!r} is no int")
    return value
