# SPDX-License-Identifier: Apache-2.0
"""What SDK queries answer, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from obmm.sdk.abi import NO_PORT


@dataclass(frozen=True, slots=True)
class RegionHost:
    """The host `name` of a region.  With `affinity` it provides memory."""

    name: str
    affinity: bool = False


@dataclass(frozen=True, slots=True)
class HostGroup:
    """A region: hosts that may attach each other's memory.  `name` is empty in lookup_regions.

    `hosts` are its members.
    """

    hosts: tuple[RegionHost, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class NumaMemory:
    """Memory of NUMA node `numa_id`, socket `socket_id`, of host `slot_id`: `total`, `free`, `borrowed` and `lent` bytes.

    `lend_ratio` in percent.
    """

    slot_id: int
    socket_id: int
    numa_id: int
    lend_ratio: int
    total: int
    free: int
    borrowed: int
    lent: int


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the cluster: its `name`, and `numa`, the memory of its NUMA nodes."""

    name: str
    numa: tuple[NumaMemory, ...]


@dataclass(frozen=True, slots=True)
class Provider:
    """Who gives the memory of an object: a host, and optionally its `socket_id`, `numa_id` and `port_id`."""

    host: str
    socket_id: int = NO_PORT
    numa_id: int = NO_PORT
    port_id: int = NO_PORT


@dataclass(frozen=True, slots=True)
class Location:
    """Who lends the memory of a lease: host `slot_id`, and optionally its `socket_id`, `numa_id` and `port_id`."""

    slot_id: int
    socket_id: int = NO_PORT
    numa_id: int = NO_PORT
    port_id: int = NO_PORT


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """The shared object `name` of the cluster; `size` in bytes as asked for."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class ObjectUnits:
    """The units of object `name` of `size` bytes, attached on this node: unit i holds bytes [i * unit, (i + 1) * unit).

    `mem_ids` are this node's and die with the attachment (SDK specification 11).
    """

    name: str
    size: int
    unit: int
    mem_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counters:
    """What a stand-in has counted in this process: `round_trips` to its daemon, memory `system_calls` (12.1, 12.2).

    The difference of two is the cost of what happened between them.
    """

    round_trips: int
    system_calls: int

    def __sub__(self, earlier: Self) -> Self:
        return replace(
            self,
            round_trips=self.round_trips - earlier.round_trips,
            system_calls=self.system_calls - earlier.system_calls,
        )
