# SPDX-License-Identifier: Apache-2.0
"""The driver module and its parameters (driver specification 8, 12)."""

from __future__ import annotations

import errno

from ..topology import PMD
from .calls import KernelError
from .kernel_text import kstrtobool, kstrtoint, memparse, parameters

GRANULE = 2 << 20
PUD = 1 << 30
ALLOCATORS = {"buddy_highmem": None, "hugetlb_pmd": PMD, "hugetlb_pud": PUD}
"""Allocators and the only memseg they work with (None: any)."""
SIZE_TEXTS = {None: "2M", PMD: "2M", PUD: "1G"}
FEATURE_MASK = 0xF
"""Borrow NC, borrow CC, share NC, share CC: one of them opens the gate (rule D1)."""


class Module:
    """Parameters of one load of the module, parsed as the kernel parses them."""

    def __init__(self, params: str, features: int | None, contiguous_percent: int) -> None:
        texts = {"mempool_size": "1G", "mempool_allocator": "buddy_highmem"}
        granularity: str | None = None
        refill, skip = 30000, False
        for name, value in parameters(params):
            if name == "skip_cache_maintain":
                skip = kstrtobool("1" if value is None else value)
            elif name not in (*texts, "mem_allocator_granu", "mempool_refill_timeout"):
                continue  # the kernel loads the module all the same, and says so in its log
            elif value is None:
                raise KernelError(errno.EINVAL, "12", f"{name} without a value")
            elif name == "mempool_refill_timeout":
                refill = kstrtoint(value)
            elif name == "mem_allocator_granu":
                granularity = value
            else:
                texts[name] = value
        allocator = texts["mempool_allocator"]
        if allocator not in ALLOCATORS:
            raise KernelError(errno.EINVAL, "12", f"mempool_allocator {allocator!r}")
        only = ALLOCATORS[allocator]
        granularity = SIZE_TEXTS[only] if granularity is None else granularity
        self.memseg, rest = memparse(granularity)
        power_of_two = self.memseg >= GRANULE and not self.memseg & (self.memseg - 1)
        if rest or not power_of_two or only not in (None, self.memseg):
            raise KernelError(errno.EINVAL, "12", f"mem_allocator_granu {granularity!r} for {allocator}")
        if allocator == "hugetlb_pmd" and contiguous_percent < 100:
            raise KernelError(errno.EINVAL, "12", "hugetlb_pmd needs pmd_mapping=100%")
        self.mempool_size, _ = memparse(texts["mempool_size"])
        self.refill_timeout = refill / 1000
        self.skip_cache_maintain = skip
        self.allocator = allocator
        self.gate_open = features is None or bool(features & FEATURE_MASK)
        """Evaluated once, at load (rule D1)."""
        self.files = {
            "mempool_size": (texts["mempool_size"], 0o440),
            "mempool_refill_timeout": (str(refill), 0o440),
            "mempool_allocator": (allocator, 0o440),
            "mem_allocator_granu": (granularity, 0o440),
            "skip_cache_maintain": ("Y" if skip else "N", 0o444),
        }
        """Parameter files: name -> (text, mode)."""

    @property
    def low_memory_reason(self) -> int:
        """The reclaim event that this allocator answers to: 2 ordinary, 3 huge pages."""
        return 2 if self.allocator == "buddy_highmem" else 3
