# SPDX-License-Identifier: Apache-2.0
"""`obmm.open` and `obmm.attach`: which device, and where its windows come from."""

from __future__ import annotations

import os
import weakref

from obmm.driver.abi import Cache
from obmm.driver.backend import Backend
from obmm.region.attached import AttachedRegion
from obmm.region.device import Device
from obmm.windows.provider import WindowProvider
from obmm.windows.static import StaticWindows


def open(device: str | None = None, *, windows: WindowProvider | str | os.PathLike[str] | None = None) -> Device:
    """Open the OBMM device: the driver's ``/dev/obmm``, or an emulated node.

    `device` (default: OBMM_DEVICE, else ``/dev/obmm``) is ``"/dev/obmm"``, ``"emulator"`` or
    ``"emulator:<socket>#<node>"``.  `windows` (default: OBMM_WINDOWS) is a provider, or the path of a static table.
    Never falls back: DeviceNotFoundError says how to load the module and how to start the emulator.

    >>> with obmm.open(fabric.device("a")) as device:
    ...     device.backend.node
    'a'
    """
    if windows is None:
        windows = os.environ.get("OBMM_WINDOWS") or None
    provider = StaticWindows(windows) if isinstance(windows, str | os.PathLike) else windows
    return Device(Backend.parse(device), provider)


def attach(
    mem_id: int, length: int | None = None, *, device: str | None = None, cache: Cache | None = None, pmd: bool = False
) -> AttachedRegion:
    """`Device.attach` of region `mem_id` on a device of its own, which closes with the region's last reference.

    `length` in bytes, `cache` and `pmd` as there, `device` as for `obmm.open`; the errors of both.

    >>> with a.export_region("4MiB") as region:
    ...     with obmm.attach(region.mem_id, device=fabric.device("a")) as same:
    ...         same.length == region.length
    True
    """
    opened = open(device)
    try:
        region = opened.attach(mem_id, length, cache=cache, pmd=pmd)
    except BaseException:
        opened.close()
        raise
    weakref.finalize(region, opened.close)
    return region
