# SPDX-License-Identifier: Apache-2.0
"""Where `ls` and `gc` get their records from: the driver's sysfs and /proc, or an emulated fabric's account."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from obmm.driver.backend import Backend
from obmm.driver.calls import Driver
from obmm.host.inventory import RegionRecord, processes_with_regions, regions


def records_of(backend: Backend) -> tuple[RegionRecord, ...]:
    """Every region of the backend's node.  PermissionError without root."""
    driver = Driver(backend)
    try:
        root = driver.root
    finally:
        driver.close()
    return regions(root, users_of(backend))


def users_of(backend: Backend) -> Callable[[], dict[int, tuple[int, ...]]]:
    """Who has which region open or mapped: asked of /proc, or of the fabric behind an emulated node."""
    if backend.socket is None:
        return processes_with_regions
    return partial(_users_in_fabric, backend.socket, backend.node)


def all_released(generation: int) -> bool | None:
    """Whether the lease journals of this user show every lease on an export released; None when none knows it."""
    from obmm.exchange.journal import released_everywhere

    return released_everywhere(generation)


def _users_in_fabric(socket: str, node: str | None) -> dict[int, tuple[int, ...]]:
    """An emulated mapping is an anonymous file in /proc: ask the fabric instead."""
    from obmm.emulator import ControlClient

    with ControlClient(socket) as control:
        nodes = control.request("status")["nodes"]
    status = nodes[node] if node else next(iter(nodes.values()))
    return {region["mem_id"]: tuple(region["users"]) for region in status["regions"]}
