# SPDX-License-Identifier: Apache-2.0
"""Topology files: what they say, and what wrong ones are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from obmm.emulator.model import Fabric
from obmm.emulator.topology import GIB, MIB, TIB, Topology, TopologyError

DATA = Path(__file__).parent / "data"
HOST = '[[host]]\nname = "a"\n'
CONTROLLER = HOST + "[[host.controller]]\ncna = 0x40a\neid = 0x12\n"


def test_22_3_default_is_one_package_one_node_one_controller_one_cc_and_one_nc_window():
    topology = Topology.default(3)
    assert [spec.name for spec in topology.hosts] == ["a", "b", "c"]
    spec = topology.hosts[0]
    (controller,) = spec.controllers
    assert (len(spec.nodes), spec.memseg, spec.mempool_size) == (1, 2 * MIB, GIB)
    assert controller.cna
    assert any(controller.eid)
    assert [window.kind for window in controller.windows] == ["CC", "NC"]
    assert len({spec.controllers[0].cna for spec in topology.hosts}) == 3


def test_recorded_machines_are_topology_files():
    a, b = (Topology.load(DATA / f"transcript-{name}.toml").hosts[0] for name in "ab")
    assert [node.package for node in a.nodes] == [0, 0]
    assert [node.package for node in b.nodes] == [0, 0, 1, None]
    assert [controller.cna for controller in b.controllers] == [0x40A, 0x50B]
    assert (b.distance(2, 0), b.distance(3, 3)) == (40, 10)
    assert [window.backed for window in a.controllers[0].windows] == [True, True, True, False]
    Fabric(Topology((b,))).close()


def test_every_key_of_the_page_is_understood():
    import obmm.emulator.topology as module

    assert module.__doc__
    text = "\n".join(line[4:] for line in module.__doc__.splitlines() if line.startswith("    "))
    topology = Topology.loads(text)
    assert topology.hosts[0].controllers[0].windows[0].base == TIB
    assert topology.hosts[0].features == 0xF


def test_names_go_on_after_z():
    assert [spec.name for spec in Topology.default(28).hosts][-3:] == ["z", "aa", "ab"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one [[host]]"),
        ("[[host]]", "name is missing"),
        ("x = ", "not TOML"),
        ("host = 3", "write [[host]]"),
        ("hosts = 3\n" + HOST, "did you mean host?"),
        (HOST + HOST, "host name a is given twice"),
        (HOST + 'memsegs = "2MiB"', "did you mean memseg?"),
        (HOST + 'memseg = "3MiB"', "not a multiple of 0x200000"),
        (HOST + 'mempool_size = "1 GB"', "KiB, MiB, GiB or TiB"),
        (HOST + "mempool_size = -1", "64 bits"),
        (HOST + "mempool_size = true", "not a size"),
        (HOST + 'mempool_allocator = "slab"', "buddy_highmem, hugetlb_pmd, hugetlb_pud"),
        (HOST + "distances = [[0, 1]]", "[node, node, distance]"),
        (HOST + "distances = [[0, 1, 300]]", "between 10 and 255"),
        (HOST + "numa_remote = 1", "neither true nor false"),
        (HOST + "[[host.node]]\nid = 0\ncpus = 3", "not a list of CPU numbers"),
        (HOST + "[[host.node]]\nid = 0\n[[host.node]]\nid = 0", "node id 0x0 is given twice"),
        (HOST + '[[host.node]]\nid = "x"', "not an integer"),
        (CONTROLLER + "node = 5", "names node 5"),
        (HOST + "[[host.controller]]\ncna = 0\neid = 1", "between 0x1 and"),
        (HOST + '[[host.controller]]\ncna = 1\neid = "12"', "32 hex digits"),
        (HOST + "[[host.controller]]\ncna = 1\neid = 0", "EID 0"),
        (CONTROLLER + '[[host.controller.window]]\nkind = "CN"', "none of CC, NC"),
        (
            CONTROLLER + '[[host.controller.window]]\nkind = "CC"\nbase = "4GiB"\nsize = "1GiB"',
            "overlap at 0x100000000",
        ),
        (CONTROLLER + '[[host.controller.window]]\nkind = "CC"\nbase = "1TiB"\nsize = 0', "an empty window"),
        (CONTROLLER + CONTROLLER.replace('"a"', '"b"'), "controller CNA in the fabric 0x40a"),
        ("[fabric]\npoison_unit = 5\n" + HOST, "multiple of 4 KiB"),
    ],
)
def test_wrong_files_are_told_place_value_and_fix(text, message):
    with pytest.raises(TopologyError) as caught:
        Topology.loads(text, "lab.toml")
    assert message in str(caught.value)
