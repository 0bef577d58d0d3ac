# SPDX-License-Identifier: Apache-2.0
"""Does an ownership change really change anything?

Driver builds of mid May to early June 2026 answered UPDATE_RANGE with success and left the page tables as they were
(driver specification 20): programs that forget a right then work by accident, and a store without the right is lost or
lands in somebody else's data.  Versions do not tell; a store that must fault does.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

from obmm.driver.abi import PAGE, CacheOp
from obmm.mapping.ownership import Right
from obmm.mapping.span import Span, SpanFault

if TYPE_CHECKING:
    from obmm.region.device import Device


def ownership_takes_effect(device: Device) -> bool:
    """Take one granule of the pool, give rights up over its first page, and see whether guarded accesses fault.

    The region is removed again.  ObmmError when the driver refuses a step.
    """
    with device.export_region(device.granule, header=False, label="ownership probe") as region:
        span = Span(
            device.driver, region.mem_id, 0, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, pmd=False, writable=True, nc=False
        )
        try:
            span.store(0, 8, 1)

            def change(right: Right) -> None:
                span.update_range(0, PAGE, right.access, CacheOp.INFER)

            change(Right.READ)
            if not _faults(span.store, 0, 8, 2):
                return False
            change(Right.NONE)
            if not _faults(span.load, 0, 8):
                return False
            change(Right.WRITE)
            span.store(0, 8, 3)
            return span.load(0, 8) == 3
        finally:
            span.shut()
            span.unmap()


def _faults(access: Callable[..., object], *arguments: int) -> bool:
    try:
        access(*arguments)
    except SpanFault as fault:
        return fault.kind == "SIGSEGV"
    return False
