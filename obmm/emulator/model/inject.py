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


def inject(host: Host, fault: str, *values: Any) -> None:
    """Make `fault` happen on `host`, or arm it. Called with the fabric's lock held.

    `fault` is an action:

    * ``node-death``: the host is gone. Its exports answer nobody any more (SIGBUS at importers, on existing
      mappings too), its own calls fail with ENODEV.
    * ``revoke MEM_ID``: an export answers nobody any more, under live importers. The emulator has one memory
      for everybody, so the exporter's own mappings get SIGBUS as well.
    * ``poison MEM_ID OFFSET``: one page of an export gives SIGBUS from now on, to everybody. New mappings see
      it at once. Existing ones see it at once when the fabric was made with a `poison_unit` (then the whole
      unit is lost), else with the process's next call on the fabric.
    * ``low-memory NODE``: reclaim takes the free part of the node's pool back.
    * ``gate-closed``: the firmware feature gate closes (as a module load would find it).
    * ``module-absent``: the module is unloaded (EAGAIN while it is in use).
    * ``reset``: every armed fault is disarmed; what has died stays dead.

    or the name of a field of `Faults` with its value (an errno as number or name, seconds, a count).
    """
    action = _ACTIONS.get(fault)
    if action is not None:
        try:
            action(host, *(int(value) for value in values))
        except TypeError:
            raise KernelError(errno.EINVAL, "inject", f"{fault} {' '.join(map(str, values))}") from None
        return
    known = {one.name: one for one in fields(Faults)}
    if fault not in known:
        names = ", ".join([*_ACTIONS, *known])
        raise KernelError(errno.EINVAL, "inject", f"no fault {fault!r}; known are {names}")
    setattr(host.faults, fault, _value(known[fault].default, values))


def _value(default: object, values: tuple[Any, ...]) -> object:
    """What to set a field to whose healthy value is `default`."""
    if not values:
        raise KernelError(errno.EINVAL, "inject", "a value is missing")
    if len(values) > 1:
        return tuple(int(value) for value in values)
    value = values[0]
    if isinstance(value, str) and value in _ERRNO_NAMES:
        return _ERRNO_NAMES[value]
    if isinstance(default, bool):
        return bool(int(value))
    return float(value) if isinstance(default, float) else int(value)


_ERRNO_NAMES = {name: number for number, name in errno.errorcode.items()} | {"EOPNOTSUPP": errno.EOPNOTSUPP}


def _node_death(host: Host) -> None:
    host.dead = True
    for region in host.regions.values():
        if isinstance(region, ExportRegion):
            _cut_off(host, region)


def _revoke(host: Host, mem_id: int) -> None:
    _cut_off(host, _export(host, mem_id))


def _cut_off(host: Host, region: ExportRegion) -> None:
    if region.memory is not None:
        for viewer, vma in {(view.host, view.vma) for view in host.fabric.views(region)}:
            viewer.caches.forget(vma.region)
        region.memory.revoke()


def _poison(host: Host, mem_id: int, offset: int) -> None:
    region = _export(host, mem_id)
    if not 0 <= offset < region.size or region.memory is None:
        raise KernelError(errno.EINVAL, "inject", f"offset {offset:#x} of region {mem_id}")
    page = offset // PAGE * PAGE
    low, high = region.memory.poison(page)
    if isinstance(region.memory, SegmentedMemory) and not host.fabric.topology.strict:
        return
    for view in host.fabric.views(region):
        for start in range(max(low, view.offset), min(high, view.offset + view.length), PAGE):
            view.process.stale.add(view.address + start - view.offset)


def _export(host: Host, mem_id: int) -> ExportRegion:
    region = host.regions.get(mem_id)
    if not isinstance(region, ExportRegion):
        raise KernelError(errno.ENOENT, "inject", f"host {host.name} has no export {mem_id}")
    return region


def _low_memory(host: Host, node: int) -> None:
    if node not in host.pools:
        raise KernelError(errno.ENODEV, "inject", f"node {node} has no pool")
    host.pools[node].low_memory()


def _gate_closed(host: Host) -> None:
    host.features = 0
    host.module.gate_open = False


def _module_absent(host: Host) -> None:
    host.unload()


def _reset(host: Host) -> None:
    host.faults.reset()


_ACTIONS: dict[str, Callable[..., None]] = {
    "node-death": _node_death,
    "revoke": _revoke,
    "poison": _poison,
    "low-memory": _low_memory,
    "gate-closed": _gate_closed,
    "module-absent": _module_absent,
    "reset": _reset,
}
