# SPDX-License-Identifier: Apache-2.0
"""Regions: the unit of memory that the driver manages (driver specification 0.2, 22.1)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from ..topology import PAGE, PMD

if TYPE_CHECKING:
    from .memory import Memory
    from .mutex import Mutex
    from .ownership import OwnershipTable
    from .preimport import Preimport
    from .process import Process
    from .ummu import Ummu


class Region:
    """What exports and imports have in common."""

    __slots__ = (
        "allow_mmap",
        "cacheable",
        "destroying",
        "granularity",
        "mapping_count",
        "mapping_mode",
        "mem_id",
        "mode",
        "mutex",
        "noncacheable",
        "opens",
        "owner",
        "ownership",
        "priv",
        "size",
    )

    kind: Literal["export", "import"]

    def __init__(self, size: int, priv: bytes, allow_mmap: bool, mutex: Mutex) -> None:
        self.mem_id = 0
        self.size = size
        self.priv = priv
        self.allow_mmap = allow_mmap
        self.cacheable = False
        self.noncacheable = False
        self.destroying = False
        self.opens = 0
        self.mapping_mode: Literal["CC", "NC"] | None = None
        self.mapping_count = 0
        self.granularity: int | None = None
        self.ownership: OwnershipTable | None = None
        self.mutex = mutex
        self.mode = 0o600
        self.owner = (0, 0)

    @property
    def busy(self) -> bool:
        """Open files (mappings hold theirs) or a removal in progress (rule U4)."""
        return self.opens > 0 or self.destroying

    @property
    def unit(self) -> int:
        """Bytes that one ownership counter stands for."""
        return PMD if self.granularity == PMD else PAGE

    def physical(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Physically contiguous pieces of [offset, offset + length): (offset, pa, length)."""
        raise NotImplementedError

    def physical_address(self, offset: int) -> int:
        """The physical address behind `offset`."""
        for _, pa, _ in self.physical(offset, 1):
            return pa
        raise AssertionError


class ExportRegion(Region):
    """Memory of this host that others may import."""

    __slots__ = (
        "deid",
        "from_user",
        "memory",
        "node_sizes",
        "pinned",
        "segments",
        "starts",
        "tokenid",
        "uba",
        "ummu",
        "vendor",
    )

    kind = "export"

    def __init__(
        self,
        *,
        size: int,
        priv: bytes,
        vendor: bytes,
        deid: bytes,
        allow_mmap: bool,
        from_user: bool,
        mutex: Mutex,
    ) -> None:
        super().__init__(size, priv, allow_mmap, mutex)
        self.vendor = vendor
        self.deid = deid
        self.from_user = from_user
        self.cacheable = self.noncacheable = not from_user
        self.node_sizes: tuple[int, ...] = ()
        self.memory: Memory | None = None
        self.segments: list[tuple[int, int]] = []
        self.starts: list[int] = []
        self.pinned: Process | None = None
        """Whose memory it is, for EXPORT_PID."""
        self.ummu: Ummu | None = None
        self.tokenid = 0
        self.uba = 0

    def place(self, segments: list[tuple[int, int]]) -> None:
        """Fix the physical layout: (pa, length) pieces in the order of offsets."""
        self.segments = segments
        self.starts = []
        offset = 0
        for _, length in segments:
            self.starts.append(offset)
            offset += length

    def physical(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        index = bisect_right(self.starts, offset) - 1
        end = offset + length
        while offset < end:
            start = self.starts[index]
            pa, size = self.segments[index]
            part = min(end, start + size) - offset
            yield offset, pa + offset - start, part
            offset += part
            index += 1


class ImportRegion(Region):
    """Another host's memory seen through a local window."""

    __slots__ = (
        "base_dist",
        "broken",
        "controller_node",
        "dcna",
        "deid",
        "numa_id",
        "numa_remote",
        "pa",
        "preimport",
        "scna",
        "seid",
    )

    kind = "import"

    def __init__(
        self,
        *,
        size: int,
        priv: bytes,
        pa: int,
        scna: int,
        dcna: int,
        seid: bytes,
        deid: bytes,
        numa_remote: bool,
        base_dist: int,
        mutex: Mutex,
    ) -> None:
        super().__init__(size, priv, not numa_remote, mutex)
        self.pa = pa
        self.scna = scna
        self.dcna = dcna
        self.seid = seid
        self.deid = deid
        self.numa_remote = numa_remote
        self.base_dist = base_dist
        self.numa_id = -1
        self.controller_node = 0
        self.broken = False
        """A roll-back failed: the region can never be removed again (6.5)."""
        self.preimport: Preimport | None = None

    def physical(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        yield offset, self.pa + offset, length
