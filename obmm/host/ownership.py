# SPDX-License-Identifier: Apache-2.0
"""The check of `obmm doctor --probe`: does an ownership change really change anything?"""

from __future__ import annotations

from obmm.errors import ObmmError
from obmm.host.check import Check
from obmm.region.device import Device

_NAME = "ownership"


def probe_ownership(device: Device) -> Check:
    """`Device.ownership_takes_effect` as a check."""
    try:
        works = device.ownership_takes_effect()
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
