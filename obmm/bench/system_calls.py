# SPDX-License-Identifier: Apache-2.0
"""How many system calls direct OBMM makes, counted where they are made: at the device's system-call table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import obmm
from obmm._native import ffi


class SystemCalls:
    """Counts of one device's calls by name, from `counting`."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.made.total()


@contextmanager
def counting(device: obmm.Device) -> Iterator[SystemCalls]:
    """Every call that goes through the table of `device` while the block runs; these are slow, so never timed ones.

    On an emulated node these are the calls that the kernel would get.  Regions and mappings made inside must be closed
    inside.
    """
    calls, driver = SystemCalls(), device.driver
    inner, direct = driver.sys, driver.direct

    def counted(name: str, kind: str, of: Any) -> Any:
        # the first parameter is the table itself; errno passes through
        call = getattr(of, name)

        def one(_: Any, *arguments: Any) -> Any:
            calls.made[name] += 1
            return call(of, *arguments)

        return ffi.callback(kind, one)

    def table(of: Any) -> tuple[Any, list[Any]]:
        made = ffi.new("struct obmm_sys *", of[0])
        kept = [counted(name, kind, of) for name, kind in _KINDS.items()]
        for name, function in zip(_KINDS, kept, strict=True):
            setattr(made, name, function)
        return made, kept

    counting_sys, kept = table(inner)
    counting_direct, kept_direct = (counting_sys, kept) if direct == inner else table(direct)
    driver.sys, driver.direct = counting_sys, counting_direct
    try:
        yield calls
    finally:
        driver.sys, driver.direct = inner, direct
        del kept, kept_direct


_KINDS = {
    "open": "int(struct obmm_sys *, const char *, int)",
    "ioctl": "int(struct obmm_sys *, int, unsigned long, void *)",
    "mmap": "void *(struct obmm_sys *, void *, size_t, int, int, int, uint64_t)",
    "munmap": "int(struct obmm_sys *, void *, size_t)",
    "close": "int(struct obmm_sys *, int)",
}
