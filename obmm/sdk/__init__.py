# SPDX-License-Identifier: Apache-2.0
"""The SDK path: shared memory through openEuler's ubs-mem SDK, ``libubsm_sdk.so`` (SDK specification)."""

from obmm.sdk.abi import FaultKind, Flag
from obmm.sdk.calls import Calls
from obmm.sdk.codes import Code
from obmm.sdk.errors import SdkArgumentError, SdkError, SdkLibraryError
from obmm.sdk.library import Library, load
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

__all__ = [
    "Calls",
    "Code",
    "Counters",
    "FaultKind",
    "Flag",
    "Host",
    "HostGroup",
    "Library",
    "Location",
    "NumaMemory",
    "ObjectEntry",
    "ObjectUnits",
    "Provider",
    "RegionHost",
    "SdkArgumentError",
    "SdkError",
    "SdkLibraryError",
    "load",
]
