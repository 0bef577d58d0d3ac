# SPDX-License-Identifier: Apache-2.0
"""Another node's memory through openEuler's OBMM driver: export, import, plain loads and stores."""

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

__version__ = "0.1.0"

__all__ = [
    "ClosedError",
    "DeviceNotFoundError",
    "Handle",
    "HandleFlag",
    "MappingBusyError",
    "ObmmArgumentError",
    "ObmmError",
    "OwnershipError",
    "RemoteMemoryError",
    "StaleHandleError",
    "__version__",
    "eid",
]
