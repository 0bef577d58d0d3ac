# SPDX-License-Identifier: Apache-2.0
"""Loading the module: parameters as the kernel parses them, and what stands in the way (2, 8, 12)."""

from __future__ import annotations

import errno

import pytest

from obmm.emulator.model import Fabric
from obmm.emulator.topology import GIB, MIB, HostSpec, Node, Topology

from .harness import Client, fabric, refusal


@pytest.fixture
def host():
    made = fabric(1)
    made.hosts["a"].rmmod()
    yield made.hosts["a"]
    made.close()


@pytest.mark.parametrize(
    "params",
    [
        "mempool_allocator=slab",
        "mem_allocator_granu=1M",
        "mem_allocator_granu=6M",
        "mem_allocator_granu=2Mx",
        "mem_allocator_granu=0",
        "mem_allocator_granu=08",
        "mempool_allocator=hugetlb_pmd mem_allocator_granu=4M",
        "mempool_allocator=hugetlb_pud mem_allocator_granu=2M",
        "skip_cache_maintain=maybe",
        "mempool_refill_timeout=soon",
        "mempool_refill_timeout",
        "mempool_refill_timeout=",
        "mempool_refill_timeout=1_000",
        "mempool_refill_timeout=0b11",
        "mempool_refill_timeout=0o17",
        'mempool_refill_timeout=" 5"',
        "mempool_refill_timeout=--5",
        "mempool_size",
        "skip_cache_maintain=",
        "skip_cache_maintain=o",
    ],
)
def test_12_wrong_parameter_is_einval_and_leaves_the_module_out(host, params):
    assert refusal(lambda: host.insmod(params)).errno == errno.EINVAL
    assert not host.loaded
    host.insmod("")


@pytest.mark.parametrize(
    ("params", "memseg", "shown"),
    [
        ("", 2 * MIB, "2M"),
        ("mem_allocator_granu=0x400000", 4 * MIB, "0x400000"),
        ("mem_allocator_granu=2048K", 2 * MIB, "2048K"),
        ("mem_allocator_granu=010000000", 2 * MIB, "010000000"),
        ("mempool_allocator=hugetlb_pud", GIB, "1G"),
        ("nosuch=1", 2 * MIB, "2M"),
    ],
)
def test_12_memseg_is_what_the_parameter_says(host, params, memseg, shown):
    host.insmod(params)
    assert host.module.memseg == memseg
    assert host.tree.read("/sys/module/obmm/parameters/mem_allocator_granu").decode() == shown + "\n"


def test_12_hugetlb_pmd_needs_the_whole_contiguous_pool(host):
    host.contiguous_percent = 50
    assert refusal(lambda: host.insmod("mempool_allocator=hugetlb_pmd")).errno == errno.EINVAL
    host.contiguous_percent = 100
    host.insmod("mempool_allocator=hugetlb_pmd")


def test_D1_gate_is_read_when_the_module_loads(host):
    host.features = 0x10
    host.insmod("")
    client = Client(host)
    assert refusal(client.export).errno == errno.EOPNOTSUPP
    host.features = 0x1
    assert refusal(client.export).errno == errno.EOPNOTSUPP
    client.control.release()
    host.rmmod()
    host.insmod("")
    Client(host).export()


def test_8_module_in_use_cannot_be_removed_nor_loaded_twice(host):
    assert refusal(host.rmmod).errno == errno.ENOENT
    host.insmod("mempool_size=16M")
    assert refusal(lambda: host.insmod("")).errno == errno.EEXIST
    client = Client(host)
    assert refusal(host.rmmod).errno == errno.EAGAIN
    mem_id = client.export().mem_id
    client.control.release()
    assert refusal(host.rmmod).errno == errno.EAGAIN
    client = Client(host)
    client.unexport(mem_id)
    client.control.release()
    host.rmmod()


def test_2_module_needs_a_local_node_below_16():
    for nodes, expected in (((Node(0, online=False),), errno.EINVAL), ((Node(16),), errno.EOPNOTSUPP)):
        topology = Topology((HostSpec("a", nodes),))
        assert refusal(lambda topology=topology: Fabric(topology)).errno == expected


def test_22_3_contiguous_memory_on_request():
    made = Fabric(Topology((HostSpec("a", discontiguous=False),)))
    client = Client(made.hosts["a"])
    mem_id = client.export(4 * 2 * MIB, vendor_len=0).mem_id
    assert client.query(mem_id, 6 * MIB) == client.query(mem_id) + 6 * MIB
    client.unexport(mem_id)
    made.check()
    made.close()
