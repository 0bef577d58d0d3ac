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

from obmm.abi import CacheOp
from obmm.check import Check
from obmm.errors import ObmmError
from obmm.ownership import Right
from obmm.region import PAGE
from obmm.span import Span, SpanFault

if TYPE_CHECKING:
    from obmm.device import Device

_NAME = "ownership"


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


def probe_ownership(device: Device) -> Check:
    """The same, as a check of `obmm doctor --probe`."""
    try:
        works = ownership_takes_effect(device)
    except ObmmError as error:
        return Check(
            _NAME, "error", f"the probe was refused: {error.strerror}", "correct what the checks above say first"
        )
    if works:
        return Check(_NAME, "ok", "changes take effect: a store without the right faults")
    return Check(
        _NAME,
        "error",
        "UPDATE_RANGE succeeds and changes nothing: a store without the right went through (driver builds of mid May to "
        "early June 2026)",
        "update the driver; until then use non-cacheable mappings, which need no ownership",
    )


def _faults(access: Callable[..., object], *arguments: int) -> bool:
    try:
        access(*arguments)
    except SpanFault as fault:
        return fault.kind == "SIGSEGV"
    return False
