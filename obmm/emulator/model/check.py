# SPDX-License-Identifier: Apache-2.0
"""What must hold between any two calls, whatever clients did."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from .ownership import OwnershipTable
from .preimport import Preimport
from .region import ExportRegion, ImportRegion, Region
from .vma import Vma

if TYPE_CHECKING:
    from .host import Host


def check_host(host: Host) -> None:
    """Raise AssertionError with the broken invariant of `host`. What sleeping calls hold is left out."""
    mappings: dict[Region, list[Vma]] = defaultdict(list)
    for process in host.processes.values():
        end = 0
        for vma in process.vmas:
            assert end <= vma.start < vma.end, f"pieces of process {process.pid} overlap at {vma.start:#x}"
            end = vma.end
            assert vma.region.mem_id in host.regions, f"process {process.pid} maps removed region {vma.region.mem_id}"
            mappings[vma.region].append(vma)
    _check_files(host, mappings)
    for mem_id, region in host.regions.items():
        assert region.mem_id == mem_id, f"region {region.mem_id} is listed as {mem_id}"
        if not region.mutex.held:
            _check_region(region, mappings[region])
        if not region.destroying:
            _check_place(host, region)
    if not host.busy_calls and not any(region.destroying for region in host.regions.values()):
        _check_ranges(host)
        _check_pools(host)


def _check_files(host: Host, mappings: dict[Region, list[Vma]]) -> None:
    """No busy region without a live holder."""
    holders = Counter(file.region for file in host.files)
    users = Counter(vma.file for pieces in mappings.values() for vma in pieces)
    for region in host.regions.values():
        assert region.opens == holders[region], f"region {region.mem_id}: {region.opens} opens, {holders[region]} files"
    for file in host.files:
        if file.region is not None and file.region.mutex.held:
            continue
        expected = users[file] + (not file.closed)
        assert file.users == expected, f"{file.path}: {file.users} users, expected {expected}"
    for file in users:
        assert file in host.files, f"a mapping holds a closed file of {file.path}"


def _check_region(region: Region, pieces: list[Vma]) -> None:
    """Mode, granularity, and counters equal to the sum over the mappings."""
    name = f"region {region.mem_id}"
    assert region.mapping_count == len(pieces), f"{name}: counts {region.mapping_count} pieces, has {len(pieces)}"
    modes = {vma.mode for vma in pieces}
    assert modes == ({region.mapping_mode} if region.mapping_mode else set()), f"{name}: mode {region.mapping_mode}"
    assert not pieces or region.granularity is not None, f"{name}: mapped without a granularity"
    if region.ownership is None:
        assert "CC" not in modes, f"{name}: cacheable mapping without a table"
        return
    expected = OwnershipTable(region.ownership.units)
    for vma in pieces:
        if vma.cacheable:
            first = vma.offset // region.unit
            expected.change(first, first + (vma.end - vma.start) // region.unit, 0, vma.rights)
    assert region.ownership.runs() == expected.runs(), f"{name}: counters differ from the sum over the mappings"


def _check_place(host: Host, region: Region) -> None:
    """Physical place, token, window range."""
    name = f"region {region.mem_id}"
    found = host.physical.find(region.physical_address(0))
    assert found is not None, f"{name}: its first page has no owner"
    if isinstance(region, ImportRegion):
        held = host.imports.at(region.pa)
        owner = region.preimport or region
        assert held is not None, f"{name}: its window range is free"
        assert held.owner is owner, f"{name}: its window range belongs to somebody else"
    elif isinstance(region, ExportRegion):
        assert found[0] is region or region.from_user, f"{name}: region {found[0].mem_id} has its memory"
        assert region.ummu is not None, f"{name}: no UMMU"
        holder = region.ummu.exports.get(region.tokenid, region)  # no holder after a failed roll-back (U6)
        assert holder is region, f"{name}: token {region.tokenid} is not its own"
        assert region.size == sum(region.node_sizes), f"{name}: sizes per node do not add up"


def _check_ranges(host: Host) -> None:
    """Window ranges are disjoint, and each has a live owner."""
    end = 0
    users: Counter[Preimport] = Counter()
    for region in host.regions.values():
        if isinstance(region, ImportRegion) and region.preimport is not None:
            users[region.preimport] += 1
    for held in host.imports:
        assert end <= held.start < held.end, f"window ranges overlap at {held.start:#x}"
        end = held.end
        if isinstance(held.owner, Preimport):
            assert held.owner in host.preimports, f"range {held.start:#x}: its preimport is gone"
            assert held.owner.users == users[held.owner], f"preimport {held.start:#x}: {held.owner.users} users"
        else:
            assert isinstance(held.owner, ImportRegion), f"range {held.start:#x}: its owner is not a region"
            assert host.regions.get(held.owner.mem_id) is held.owner, f"range {held.start:#x}: its region is gone"


def _check_pools(host: Host) -> None:
    """Pool sums and tokens."""
    used: Counter[int] = Counter()
    for region in host.regions.values():
        if isinstance(region, ExportRegion):
            if region.from_user:
                assert region.pinned is not None, f"region {region.mem_id}: its pages are not pinned"
                continue
            for node, size in enumerate(region.node_sizes):
                used[node] += size
    for node, pool in host.pools.items():
        counters = pool.counters()
        free = counters["available_cleared"] + counters["available_uncleared"]
        assert counters["used"] == used[node], f"pool {node}: {counters['used']:#x} used, regions have {used[node]:#x}"
        assert counters["total"] == free + counters["used"], f"pool {node}: total is not free + used"
    for ummu in host.ummus.values():
        for tokenid, region in ummu.exports.items():
            assert host.regions.get(region.mem_id) is region, f"token {tokenid} belongs to a removed region"
