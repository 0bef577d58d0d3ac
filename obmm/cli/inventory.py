# SPDX-License-Identifier: Apache-2.0
"""Where `ls` and `gc` get their records from: the driver's sysfs and /proc, or an emulated fabric's account."""

from __future__ import annotations

from functools import partial

from obmm.backend import Backend
from obmm.driver import Driver
from obmm.inventory import RegionRecord, processes_with_regions, regions


def records_of(backend: Backend) -> tuple[RegionRecord, ...]:
    """Every region of the backend's node.  PermissionError without root."""
    driver = Driver(backend)
    try:
        node, root = driver.name.rpartition("#")[2], driver.root
    finally:
        driver.close()
    if backend.socket is None:
        return regions(root, processes_with_regions)
    return regions(root, partial(_users_in_fabric, backend.socket, node))


def all_released(generation: int) -> bool | None:
    """Whether the lease journals of this user show every lease on an export released; None when none knows it."""
    from obmm.exchange.journal import released_everywhere

    return released_everywhere(generation)


def _users_in_fabric(socket: str, node: str) -> dict[int, tuple[int, ...]]:
    """An emulated mapping is an anonymous file in /proc: ask the fabric instead."""
    from obmm.emulator import ControlClient

    with ControlClient(socket) as control:
        status = control.request("status")["nodes"][node]
    return {region["mem_id"]: tuple(region["users"]) for region in status["regions"]}
