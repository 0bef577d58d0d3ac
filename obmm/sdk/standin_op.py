# SPDX-License-Identifier: Apache-2.0
"""Requests to the stand-in's cluster, as far as faults can be injected into them (``native/sdk_standin/wire.h``)."""

from __future__ import annotations

from enum import IntEnum


class Op(IntEnum):
    """What the library asks the cluster for; the numbers are those of the real requests where these are known (12.2)."""

    STILL_LEASES = 4
    GROUPS = 5
    RESOLVE = 6
    CREATE = 7
    CREATE_AT = 8
    MAP = 9
    UNMAP = 10
    DELETE = 11
    STILL_OBJECTS = 13
    REGION_CREATE = 15
    REGION_LOOKUP = 16
    REGION_DESTROY = 17
    WRITE_LOCK = 18
    READ_LOCK = 19
    UNLOCK = 20
    CLUSTER = 21
    LIST = 24
    LOOKUP = 25
    SLOT = 30
    LEASE = 40
    LEASE_AT = 41
    LEASE_FREE = 42
