# SPDX-License-Identifier: Apache-2.0
"""Another node's memory through openEuler's OBMM driver: export, import, plain loads and stores.

    dev = obmm.open()                              the device: /dev/obmm, or what OBMM_DEVICE says
    dev.export_region("256MiB")                    lend memory
    obmm.serve({"name": region}, key="k")          hand its handle to who asks
    peer = obmm.connect("node-a", key="k")         ask another node
    peer.open("name")[[3, 1, 2]]                   rows of an array there
    dev.import_region(peer.fetch("name"))          any memory there

Rooms: `obmm.files` (tables in files), `obmm.rows` (many tables, many threads), `obmm.prefetch` (before the layer asks),
`obmm.blocks` (KV blocks), `obmm.nn` (torch), `obmm.emulator` (no hardware), `obmm.exchange`, `obmm.sdk`, `obmm.urma`.

Examples in docstrings run as they stand, with these names made before:

    fabric = obmm.emulator.start(nodes=2)          two emulated nodes
    a = obmm.open(fabric.device("a"))              the device of each
    b = obmm.open(fabric.device("b"))
    folder = pathlib.Path(...)                     an empty folder
    import numpy as np

The device, and what can be asked of it:

>>> device = obmm.open(fabric.device("a"))
>>> device.backend.is_emulator, device.granule >> 20, len(device.controllers), device.windows.name
(True, 2, 1, 'emulator')
>>> region = device.export_region("4MiB", label="words")
>>> device.regions == (region,), device.fileno() >= 0, str(device.root).startswith("/")
(True, True, True)
>>> address = device.query_pa(region.mem_id, offset=4096)
>>> device.query_id(address) == (region.mem_id, 4096), device.ownership_takes_effect()
(True, True)
>>> device.forgotten                               # what an interrupt left without an owner can be removed
()
>>> device.remove_forgotten()
>>> try:                                           # memory of this process in place of the pool's
...     device.export_user_memory("2MiB", accept_host_crash_risk=True).close()
... except obmm.ObmmError as error:                # no huge pages are free
...     assert error.operation == "EXPORT_PID"
>>> device.close()                                 # regions first, then the node
>>> region.closed, device.closed
(True, True)
"""

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from obmm.driver.backend import Backend
from obmm.driver.modelled import fabrics_are_read_by
from obmm.driver.topology import Controller
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
from obmm.handle import Handle, HandleFlag, eid
from obmm.mapping.mapping import Mapping
from obmm.mapping.ownership import Right
from obmm.region.attached import AttachedRegion
from obmm.region.device import Device
from obmm.region.exported import ExportedRegion
from obmm.region.imported import ImportedRegion
from obmm.region.opening import attach, open
from obmm.windows.provider import ExplicitWindow, Window, WindowProvider
from obmm.windows.static import StaticWindows

if TYPE_CHECKING:
    from obmm import bench as bench
    from obmm import blocks as blocks
    from obmm import emulator as emulator
    from obmm import errors as errors
    from obmm import exchange as exchange
    from obmm import files as files
    from obmm import integrations as integrations
    from obmm import nn as nn
    from obmm import prefetch as prefetch
    from obmm import rows as rows
    from obmm import sdk as sdk
    from obmm import urma as urma
    from obmm.exchange import Lease, Peer, Server, connect, serve
    from obmm.exchange import RemoteTable as RemoteTable

__version__ = "0.1.0"

logging.getLogger("obmm").addHandler(logging.NullHandler())  # silent until a program configures logging


def _modelled(text: str) -> Any:
    return import_module("obmm.emulator.profile").Profile.from_text(text)


fabrics_are_read_by(_modelled)  # the driver's room knows no profiles: they are of a second kernel

# What most programs need only one of is loaded at first use.
_LAZY = dict.fromkeys(("Lease", "Peer", "RemoteTable", "Server", "connect", "serve"), "obmm.exchange")
_ROOMS = (
    "bench",
    "blocks",
    "emulator",
    "errors",
    "exchange",
    "files",
    "integrations",
    "nn",
    "prefetch",
    "rows",
    "sdk",
    "urma",
)


if not TYPE_CHECKING:  # for checkers only the names above exist

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            try:
                return import_module(f"obmm.{name}")
            except ImportError as error:  # what looks through a module expects the other one: help(), hasattr(), Tab
                raise AttributeError(str(error)) from error
        if name in _LAZY:
            return getattr(import_module(_LAZY[name]), name)
        raise AttributeError(f"module 'obmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What users need: the names of `__all__`, and the rooms that have a door of their own.

    Without torch `obmm.nn` is not among them: what completes names or prints help asks for each of these.
    """
    return sorted({*__all__, *_ROOMS} - ({"nn"} if find_spec("torch") is None else set()))


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
