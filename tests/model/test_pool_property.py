# SPDX-License-Identifier: Apache-2.0
"""Memory of a node, whatever is asked of it: an answer of the driver, and not a segment lost."""

from __future__ import annotations

import errno
import struct

from hypothesis import given
from hypothesis import strategies as st

from obmm.emulator.model import Fabric, KernelError, structs
from obmm.emulator.topology import HostSpec, Node, Topology

from .harness import PMD, Client

SEGMENTS = 12
ALLOW_MMAP, FAST = structs.EXPORT_ALLOW_MMAP, structs.EXPORT_FAST


def export(client: Client, counts: tuple[int, int], flags: int = ALLOW_MMAP) -> int:
    raw = struct.pack("<QQ", *(count * PMD for count in counts)).ljust(structs.EXPORT.size, b"\0")
    raw = client.ioctl(client.control, structs.CMD_EXPORT, structs.EXPORT.store(raw, length=2, flags=flags))
    return int(structs.EXPORT.unpack(raw).mem_id)


@st.composite
def asks(draw: st.DrawFn) -> tuple[str, int]:
    kind = draw(st.sampled_from(["export", "export", "fast", "two nodes", "unexport", "low memory"]))
    return kind, draw(st.integers(1, SEGMENTS + 2))


@given(st.integers(0, SEGMENTS), st.booleans(), st.lists(asks(), max_size=25))
def test_X12_an_export_fits_or_is_ENOMEM_and_no_segment_is_ever_lost(pooled, scattered, steps):
    nodes = (Node(0, memory=SEGMENTS * PMD), Node(1, memory=SEGMENTS * PMD))
    spec = HostSpec("a", nodes, discontiguous=scattered, mempool_size=2 * pooled * PMD)
    host = Fabric(Topology((spec,))).hosts["a"]
    client = Client(host)
    regions: dict[int, tuple[int, int]] = {}

    def used(node: int) -> int:
        return sum(counts[node] for counts in regions.values())

    for kind, count in steps:
        if kind == "unexport":
            if regions:
                client.unexport(regions.popitem()[0])
        elif kind == "low memory":
            host.pools[0].low_memory()
        else:
            counts = (count, count if kind == "two nodes" else 0)
            fits = all(counts[node] <= SEGMENTS - used(node) for node in (0, 1))
            try:
                mem_id = export(client, counts, ALLOW_MMAP | FAST if kind == "fast" else ALLOW_MMAP)
            except KernelError as error:
                assert (error.errno, error.rule) == (errno.ENOMEM, "X12")
                assert kind == "fast" or not fits
            else:
                assert fits
                regions[mem_id] = counts
        for node in (0, 1):
            assert host.dram.available(node) == SEGMENTS - used(node)
            counters = host.pools[node].counters()
            assert counters["used"] == used(node) * PMD
            assert 0 <= counters["total"] <= SEGMENTS * PMD
    for mem_id in regions:
        client.unexport(mem_id)
    export(client, (SEGMENTS, SEGMENTS))  # all of it is there again
