# SPDX-License-Identifier: Apache-2.0
"""The SDK path: shared memory through openEuler's ubs-mem SDK, ``libubsm_sdk.so`` (SDK specification)."""

from obmm.sdk.abi import FaultKind, Flag
from obmm.sdk.calls import Calls
from obmm.sdk.codes import Code
from obmm.sdk.errors import SdkArgumentError, SdkError, SdkLibraryError
from obmm.sdk.faults import FaultEvent, FaultEvents
from obmm.sdk.lease import Lease
from obmm.sdk.library import Library, load
from obmm.sdk.object_memory import ObjectMemory
from obmm.sdk.records import (
    Counters,
    Host,
    HostGroup,
    Location,
    NumaMemory,
    ObjectEntry,
    ObjectUnits,
    Provider,
    RegionHost,
)
from obmm.sdk.session import Session, connect
from obmm.sdk.shared_object import SharedObject

__all__ = [
    "Calls",
    "Code",
    "Counters",
    "FaultEvent",
    "FaultEvents",
    "FaultKind",
    "Flag",
    "Host",
    "HostGroup",
    "Lease",
    "Library",
    "Location",
    "NumaMemory",
    "ObjectEntry",
    "ObjectMemory",
    "ObjectUnits",
    "Provider",
    "RegionHost",
    "SdkArgumentError",
    "SdkError",
    "SdkLibraryError",
    "Session",
    "SharedObject",
    "connect",
    "load",
]
