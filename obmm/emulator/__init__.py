# SPDX-License-Identifier: Apache-2.0
"""A fabric of nodes that answer like the driver, for machines without the hardware (docs/emulator.md).

with obmm.emulator.start(nodes=2) as fabric:
    a, b = obmm.open(fabric.device("a")), obmm.open(fabric.device("b"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .control import ControlClient, ControlError
    from .fabric import Fabric, FabricError, start, wait_as

__all__ = ["ControlClient", "ControlError", "Fabric", "FabricError", "start", "wait_as"]

_HOMES = {
    "ControlClient": "control",
    "ControlError": "control",
    "Fabric": "fabric",
    "FabricError": "fabric",
    "start": "fabric",
    "wait_as": "fabric",
}


def __getattr__(name: str) -> Any:
    # lazily: the server process imports this package too and needs none of it
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{home}", __name__), name)
