# SPDX-License-Identifier: Apache-2.0
"""At the interpreter's end: imports under leases that were not closed are removed, and their owners hear of it.

A script that ends without a with block must not keep another node from taking its memory back.  Views of such imports
are gone from then on; imports without a lease stay as they are, and `obmm gc` knows it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from obmm.closing import Living

if TYPE_CHECKING:
    from obmm.region.device import Device

log = logging.getLogger("obmm.region")

AT_EXIT_S = 3.0
"""How long all of it may take: a process that ends does not wait for servers that are gone."""

_devices: Living[Device] = Living()


def has_leases(device: Device) -> None:
    """Something was imported on this device under a lease."""
    _devices.add(device)


def leave() -> None:
    """Close them, and remove those that were dropped; what fails or has no time stays for `obmm gc`."""
    deadline = time.monotonic() + AT_EXIT_S
    for device in _devices.snapshot():
        for close in () if device.closed else _closes(device):
            if time.monotonic() > deadline:
                log.warning("%r: imports are left to `obmm gc`: their owners do not answer", device)
                break
            try:
                close()
            except Exception as error:
                log.warning("%r: an import is left to `obmm gc`: %s", device, error)


def _closes(device: Device) -> list[Callable[[], None]]:
    held = [partial(region.close, force=True) for region in device.regions if region.lease is not None]
    dropped = [partial(device.give_back, kept, force=True) for kept in device.orphans() if kept.lease is not None]
    return [*held, *dropped]
