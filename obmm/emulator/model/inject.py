# SPDX-License-Identifier: Apache-2.0
"""Faults on request: one entry for everything that can be made to go wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..topology import PAGE
from .calls import KernelError
from .faults import Faults
from .memory import SegmentedMemory
from .region import ExportRegion

if TYPE_CHECKING:
    from .host import Host


def faults() -> dict[str, str]:
    """Every fault that `inject` knows: name -> what it does and what it needs."""
    known = {name: " ".join((action.__doc__ or "").split()) for name, action in _ACTIONS.items()}
    for one in fields(Faults):
        known[one.name.replace("_", "-")] = f"value=...: {one.metadata['text']}"
    return known


def inject(host: Host, fault: str, **arguments: Any) -> None:
    """Make `fault` happen on `host`, or arm it. Called with the fabric's lock held.

    `fault` is one of `faults()`: an action with its own arguments, or a field of `Faults` with `value`: an
    errno as number or name, seconds, a count. EINVAL for anything else.
    """
    name = fault.replace("-", "_")
    action = _ACTIONS.get(fault)
    known = {one.name: one.default for one in fields(Faults)}
    if action is None and name not in known:
        raise KernelError(errno.EINVAL, "inject", f"no fault {fault!r}; known are {', '.join(faults())}")
    try:
        if action is not None:
            action(host, **{key: int(value) for key, value in arguments.items()})
        else:
            setattr(host.faults, name, _value(known[name], **arguments))
    except (TypeError, ValueError) as error:
        raise KernelError(errno.EINVAL, "inject", f"{fault} {arguments}: {error}") from None


def _value(healthy: object, *, value: Any) -> object:
    """What to set a field to whose healthy value is `healthy`."""
    if isinstance(value, (tuple, list)):
        return tuple(int(one) for one in value)
    if isinstance(value, str) and value in _ERRNO_NAMES:
        return _ERRNO_NAMES[value]
    if isinstance(healthy, bool):
        return bool(int(value))
    return float(value) if isinstance(healthy, float) else int(value)


_ERRNO_NAMES = {name: number for number, name in errno.errorcode.items()} | {"EOPNOTSUPP": errno.EOPNOTSUPP}


def _node_death(host: Host) -> None:
    """The machine is gone: its exports answer nobody any more (SIGBUS at importers, on existing
    mappings too), and its own calls fail with ENODEV."""
    host.dead = True
    for region in host.regions.values():
        if isinstance(region, ExportRegion):
            _cut_off(host, region)


def _revoke(host: Host, mem_id: int) -> None:
    """mem_id=...: an export answers nobody any more, under live importers (SIGBUS). The emulator has one
    memory for everybody, so the exporter's own mappings get SIGBUS as well."""
    _cut_off(host, _export(host, mem_id))


def _cut_off(host: Host, region: ExportRegion) -> None:
    if region.memory is not None:
        for viewer, vma in {(view.host, view.vma) for view in host.fabric.views(region)}:
            viewer.caches.forget(vma.region)
        region.memory.revoke()


def _poison(host: Host, mem_id: int, offset: int) -> None:
    """mem_id=... offset=...: one page of an export gives SIGBUS to everybody. New mappings see it at once;
    existing ones at once when the topology has a poison_unit (the whole unit is lost then), else with the
    process's next call."""
    region = _export(host, mem_id)
    if not 0 <= offset < region.size or region.memory is None:
        raise KernelError(errno.EINVAL, "inject", f"offset {offset:#x} of region {mem_id}")
    page = offset // PAGE * PAGE
    low, high = region.memory.poison(page)
    if isinstance(region.memory, SegmentedMemory) and not host.fabric.topology.strict:
        return
    for view in host.fabric.views(region):
        start, end = max(low, view.offset), min(high, view.offset + view.length)
        if start < end:
            at = view.address - view.offset
            view.process.stale.append((at + start, at + end))


def _export(host: Host, mem_id: int) -> ExportRegion:
    region = host.regions.get(mem_id)
    if not isinstance(region, ExportRegion):
        raise KernelError(errno.ENOENT, "inject", f"host {host.name} has no export {mem_id}")
    return region


def _low_memory(host: Host, node: int) -> None:
    """node=...: reclaim takes the free part of the node's pool back."""
    if node not in host.pools:
        raise KernelError(errno.ENODEV, "inject", f"node {node} has no pool")
    host.pools[node].low_memory()


def _gate_closed(host: Host) -> None:
    """The firmware feature gate closes, as a module load would find it (EOPNOTSUPP)."""
    host.features = 0
    host.module.gate_open = False


def _module_absent(host: Host) -> None:
    """The module is unloaded (EAGAIN while it is in use)."""
    host.unload()


def _reset(host: Host) -> None:
    """Every armed fault is disarmed; what has died stays dead."""
    host.faults.reset()
    host.fabric.wake()


_ACTIONS: dict[str, Callable[..., None]] = {
    "node-death": _node_death,
    "revoke": _revoke,
    "poison": _poison,
    "low-memory": _low_memory,
    "gate-closed": _gate_closed,
    "module-absent": _module_absent,
    "reset": _reset,
}
