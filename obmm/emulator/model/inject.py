# SPDX-License-Identifier: Apache-2.0
"""Faults on request: one entry for everything that can be made to go wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import TYPE_CHECKING, Any

from ..topology import PAGE
from .calls import KernelError
from .faults import Faults, whole
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


def armed(host: Host) -> dict[str, Any]:
    """What is wrong with `host` at present: faults by name, with their value or the places that they hit."""
    found = host.faults.armed()
    if host.dead:
        found["node-death"] = True
    if host.module_taken:
        found["module-absent"] = True
    if host.gate_shut:
        found["gate-closed"] = True
    for region in host.regions.values():
        if not isinstance(region, ExportRegion) or region.memory is None:
            continue
        if region.memory.revoked:
            found.setdefault("revoke", []).append(region.mem_id)
        if lost := list(region.memory.poisoned):
            found.setdefault("poison", {})[region.mem_id] = lost
    return found


def inject(host: Host, fault: str, **arguments: Any) -> None:
    """Make `fault` happen on `host`, or arm it. Called with the fabric's lock held.

    `fault` is one of `faults()`: an action with its own arguments, or a field of `Faults` with `value`: an
    errno as number or name, seconds, a count, 0 or 1. EINVAL for anything else. `reset` undoes.
    """
    action = _ACTIONS.get(fault)
    parse = _PARSERS.get(fault)
    try:
        if action is not None:
            numbers = {
                key: value if key == "name" else whole(value, high=(1 << 63) - 1) for key, value in arguments.items()
            }
            signature(action).bind(host, **numbers)
            action(host, **numbers)
        elif parse is None:
            raise KernelError(errno.EINVAL, "inject", f"no fault {fault!r}; known are {', '.join(faults())}")
        elif list(arguments) != ["value"]:
            raise ValueError("write value=..., and nothing else")
        else:
            setattr(host.faults, fault.replace("-", "_"), parse(arguments["value"]))
    except (TypeError, ValueError) as error:
        raise KernelError(errno.EINVAL, "inject", f"{fault}: {error}") from None


_PARSERS: dict[str, Callable[[Any], Any]] = {
    one.name.replace("_", "-"): one.metadata["parse"] for one in fields(Faults)
}


def _node_death(host: Host) -> None:
    """The machine is gone: its exports do not answer any more (SIGBUS at importers, on existing
    mappings too), and its own calls fail with ENODEV. After a reset it answers again; that memory stays lost."""
    host.dead = True
    for region in host.regions.values():
        if isinstance(region, ExportRegion):
            _cut_off(host, region)


def _revoke(host: Host, mem_id: int) -> None:
    """mem_id=...: an export does not answer any more, under live importers (SIGBUS). The emulator has one
    memory for all nodes, so the exporter's own mappings get SIGBUS as well."""
    _cut_off(host, _export(host, mem_id))


def _cut_off(host: Host, region: ExportRegion) -> None:
    if region.memory is not None:
        for viewer, vma in {(view.host, view.vma) for view in host.fabric.views(region)}:
            viewer.caches.forget(vma.region)
        region.memory.revoke()


def _poison(host: Host, mem_id: int, offset: int) -> None:
    """mem_id=... offset=...: one page of an export gives SIGBUS to every process. New mappings see it at once;
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
    if not host.gate_shut:
        host.gate_shut = host.features, host.module.gate_open
    host.features = 0
    host.module.gate_open = False


def _open_gate(host: Host) -> None:
    if host.gate_shut:
        host.features, host.module.gate_open = host.gate_shut
        host.gate_shut = None


def _module_absent(host: Host) -> None:
    """The module is unloaded (EAGAIN while it is in use). A reset loads it again as the topology says."""
    host.unload()
    host.module_taken = True


def _load_module(host: Host) -> None:
    if host.module_taken and not host.loaded:
        host.load()
    host.module_taken = False


def _revive(host: Host) -> None:
    host.dead = False


def _reset(host: Host, name: str = "") -> None:
    """Every armed fault is disarmed, with name=FAULT only that one. Memory that was revoked, poisoned or lost with
    its node stays dead until its export is removed."""
    if name and name not in faults():
        raise ValueError(f"no fault {name!r}; known are {', '.join(faults())}")
    if name in ("revoke", "poison", "low-memory"):
        raise ValueError(f"{name} has no way back: remove the export and make it anew")
    for fault, undo in _UNDO.items():
        if name in ("", fault):
            undo(host)
    if not name:
        host.faults.reset()
    elif name in _PARSERS:
        field = name.replace("-", "_")
        setattr(host.faults, field, next(one.default for one in fields(Faults) if one.name == field))
    host.fabric.wake()


_UNDO: dict[str, Callable[[Host], None]] = {
    "gate-closed": _open_gate,
    "module-absent": _load_module,
    "node-death": _revive,
}

_ACTIONS: dict[str, Callable[..., None]] = {
    "node-death": _node_death,
    "revoke": _revoke,
    "poison": _poison,
    "low-memory": _low_memory,
    "gate-closed": _gate_closed,
    "module-absent": _module_absent,
    "reset": _reset,
}
