# SPDX-License-Identifier: Apache-2.0
"""Faults under the names of the driver transcript (its section "Injections")."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .host import Host


def _fault(name: str, scale: float | None = None) -> Callable[..., None]:
    """Set one field of `host.faults` to the given value."""

    def arm(host: Host, value: int) -> None:
        setattr(host.faults, name, value if scale is None else value * scale)

    return arm


def _flag(name: str) -> Callable[..., None]:
    def arm(host: Host, value: int) -> None:
        setattr(host.faults, name, bool(value))

    return arm


def _blocker(host: Host, start: int, length: int) -> None:
    host.faults.blocker = (start, length) if length else None


def _low_memory(host: Host, node: int, reason: int) -> None:
    if reason == host.module.low_memory_reason:
        host.pools[node].low_memory()


def _reset(host: Host) -> None:
    host.faults.reset()
    host.fabric.wake()


STUBS: dict[str, Callable[..., None]] = {
    "flush_err": _fault("flush_error"),
    "flush_skip": _fault("flush_skip"),
    "flush_busy": _fault("flush_busy"),
    "flush_sleep": _fault("flush_sleep", 1e-3),
    "kt_flush_err": _fault("clearing_error"),
    "drain_state": _fault("drain_state"),
    "add_err": _fault("add_error"),
    "add_sleep": _fault("add_sleep", 1e-3),
    "remove_err": _fault("remove_error"),
    "dist_err": _fault("distance_error"),
    "numa_remote": _flag("numa_remote"),
    "tdev_fail": _flag("ummu_refuses"),
    "tdev_free_err": _fault("ummu_free_error"),
    "tid_min": _fault("token_min"),
    "tid_max": _fault("token_max"),
    "map_err": _fault("ummu_map_error"),
    "alloc_fail": _flag("alloc_fails"),
    "alloc_limit": _fault("alloc_limit"),
    "lin_err": _fault("linear_error"),
    "split_err": _fault("split_error"),
    "split_skip": _fault("split_skip"),
    "remap_err": _fault("remap_error"),
    "remote_mask": _fault("remote_nodes"),
    "blocker": _blocker,
    "lowmem": _low_memory,
    "reset": _reset,
}
