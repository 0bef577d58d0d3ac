# SPDX-License-Identifier: Apache-2.0
"""Another node's memory through openEuler's OBMM driver: export, import, plain loads and stores."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from obmm.attached import AttachedRegion
from obmm.backend import Backend
from obmm.device import Device, attach, open
from obmm.errors import (
    ClosedError,
    DeviceNotFoundError,
    MappingBusyError,
    ObmmArgumentError,
    ObmmError,
    OwnershipError,
    RemoteMemoryError,
    StaleHandleError,
)
from obmm.exported import ExportedRegion
from obmm.handle import Handle, HandleFlag, eid
from obmm.imported import ImportedRegion
from obmm.mapping import Mapping
from obmm.ownership import Right
from obmm.topology import Controller
from obmm.window import ExplicitWindow, Window, WindowProvider
from obmm.window_static import StaticWindows

if TYPE_CHECKING:
    from obmm import emulator
    from obmm.exchange import Lease, Peer, Server, connect, serve

__version__ = "0.1.0"

# What most programs need only one of is loaded at first use.
_LAZY = dict.fromkeys(("Lease", "Peer", "Server", "connect", "serve"), "obmm.exchange")


def __getattr__(name: str) -> Any:
    if name == "emulator":
        return import_module("obmm.emulator")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'obmm' has no attribute {name!r}")


__all__ = [
    "AttachedRegion",
    "Backend",
    "ClosedError",
    "Controller",
    "Device",
    "DeviceNotFoundError",
    "ExplicitWindow",
    "ExportedRegion",
    "Handle",
    "HandleFlag",
    "ImportedRegion",
    "Lease",
    "Mapping",
    "MappingBusyError",
    "ObmmArgumentError",
    "ObmmError",
    "OwnershipError",
    "Peer",
    "RemoteMemoryError",
    "Right",
    "Server",
    "StaleHandleError",
    "StaticWindows",
    "Window",
    "WindowProvider",
    "__version__",
    "attach",
    "connect",
    "eid",
    "emulator",
    "open",
    "serve",
]
