# SPDX-License-Identifier: Apache-2.0
"""What sysfs says about the local controllers, and what goes into an export or import (driver specification 13, 18, 19)."""

from __future__ import annotations

import os
import struct
import warnings
from pathlib import Path

import pytest

from obmm import emulator
from obmm.driver import placement, topology

FILES = {"ubc": "0x1", "eid": "18", "primary_cna": "0x040a", "ummu_map": "0x03", "numa": "0x01"}


def controller(root: Path, name: str = "ub_bus_controller0", entity: str = "00001", **files: str | None) -> Path:
    folder = root / "sys/devices" / name / entity
    folder.mkdir(parents=True)
    for file, text in (FILES | files).items():
        if text is not None:
            (folder / file).write_text(f"{text}\n")
    return folder


def test_every_field_in_the_text_format_of_the_driver(tmp_path):
    controller(tmp_path)
    (found,) = topology.controllers(str(tmp_path))
    assert (found.index, found.cna, found.ummu, found.numa) == (0, 0x40A, 3, 1)
    assert found.eid == (18).to_bytes(4, "little") + bytes(12)


def test_vendor_info_is_V1_with_the_mask_of_the_ummu_on_chip(tmp_path):
    controller(tmp_path, ummu_map="0x05")
    (found,) = topology.controllers(str(tmp_path))
    version, mask, on_chip = struct.unpack("<I4xQB7x", found.vendor_info())
    assert (version, mask, on_chip, len(found.vendor_info())) == (0, 1 << 5, 1, 24)


@pytest.mark.parametrize(("text", "value"), [("0x12", 0x12), ("18", 18), ("022", 18), ("0", 0), ("0x00000012", 0x12)])
def test_numbers_are_read_with_the_base_that_they_show(tmp_path, text, value):
    controller(tmp_path, primary_cna=text)
    assert topology.controllers(str(tmp_path))[0].cna == value


def test_a_controller_behind_a_symbolic_link(tmp_path):
    controller(tmp_path, "real")
    (tmp_path / "sys/devices/ub_bus_controller3").symlink_to(tmp_path / "sys/devices/real")
    (found,) = topology.controllers(str(tmp_path))
    assert found.index == 3


def test_the_first_entity_with_a_file_ubc_counts(tmp_path):
    controller(tmp_path, entity="00001", ubc=None, primary_cna="0x1")
    controller(tmp_path, entity="00002", primary_cna="0x2")
    controller(tmp_path, entity="00003", primary_cna="0x3")
    controller(tmp_path, entity="power", primary_cna="0x4")
    assert [c.cna for c in topology.controllers(str(tmp_path))] == [2]


def test_controllers_in_order_of_their_number(tmp_path):
    for number in (7, 0, 2):
        controller(tmp_path, f"ub_bus_controller{number}", primary_cna=f"{number + 1:#x}")
    (tmp_path / "sys/devices/ub_bus_controllers").mkdir()
    assert [c.index for c in topology.controllers(str(tmp_path))] == [0, 2, 7]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("eid", "x"),
        ("primary_cna", ""),
        ("ummu_map", "0x40"),
        ("numa", "-1"),
        ("eid", "-5"),
        ("primary_cna", "0x1ffffffff"),
    ],
)
def test_an_unreadable_number_names_its_file(tmp_path, file, text):
    folder = controller(tmp_path, **{file: text})
    with pytest.raises(ValueError, match=str(folder / file)):
        topology.controllers(str(tmp_path))


def test_a_missing_file_is_named(tmp_path):
    folder = controller(tmp_path, eid=None)
    with pytest.raises(FileNotFoundError, match=str(folder / "eid")):
        topology.controllers(str(tmp_path))


def test_I12_a_controller_without_a_numa_node_is_told_as_such(tmp_path):
    controller(tmp_path, numa=None)
    assert topology.controllers(str(tmp_path))[0].numa == -1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2M", 2 << 20),
        ("4M", 4 << 20),
        ("1G", 1 << 30),
        ("0x400000", 4 << 20),
        ("4194304", 4 << 20),
        ("(null)", 2 << 20),
    ],
)
def test_granule_from_the_parameter(tmp_path, text, size):
    folder = tmp_path / "sys/module/obmm/parameters"
    folder.mkdir(parents=True)
    (folder / "mem_allocator_granu").write_text(f"{text}\n")
    assert topology.granule(str(tmp_path)) == size


def test_granule_without_the_parameter_is_the_least_there_is(tmp_path):
    assert topology.granule(str(tmp_path)) == 2 << 20


def attribute(fabric: emulator.Fabric, mem_id: int, name: str) -> str:
    return (fabric.root("a") / f"sys/devices/obmm/obmm_shmdev{mem_id}" / name).read_text().strip()


def test_an_export_carries_its_controllers_eid_and_vendor_data(a, fabric):
    with a.export_region(1 << 20) as region:
        assert attribute(fabric, region.mem_id, "export_info/deid") == "0x0:0x12"
        assert region.handle().owner_cna == a.controllers[0].cna
        assert region.handle().owner_eid == a.controllers[0].eid
        assert region.handle().pxm_numa == a.controllers[0].numa


def test_an_import_names_the_local_controller_as_source_and_the_owner_as_destination(a, b, fabric):
    with a.export_region(1 << 20) as region, b.import_region(region.handle()) as imported:
        folder = fabric.root("b") / f"sys/devices/obmm/obmm_shmdev{imported.mem_id}/import_info"
        texts = {name: (folder / name).read_text().strip() for name in ("scna", "dcna", "seid", "deid")}
        (mine,), (owner,) = b.controllers, a.controllers
        assert int(texts["scna"], 16) == mine.cna
        assert int(texts["dcna"], 16) == owner.cna
        assert texts["seid"] == f"0x0:{int.from_bytes(mine.eid, 'little'):#x}"
        assert texts["deid"] == f"0x0:{int.from_bytes(owner.eid, 'little'):#x}"


# --- where memory lies ------------------------------------------------------------------------------------------------


def numa(root: Path, node: int, cpus: str, distances: str) -> None:
    folder = root / f"sys/devices/system/node/node{node}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(cpus + "\n")
    (folder / "distance").write_text(distances + "\n")


@pytest.fixture
def two_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(placement, "_warned", set())
    numa(tmp_path, 0, "0-3", "10 21")
    numa(tmp_path, 1, "4-7", "21 10")
    return str(tmp_path)


def test_memory_on_another_socket_is_warned_about_once(two_sockets):
    with pytest.warns(RuntimeWarning, match=r"NUMA node 1.*runs on node 0 \(distance 21"):
        placement.warn_if_far(1, "the region", two_sockets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placement.warn_if_far(1, "the region", two_sockets)


def test_near_memory_and_unknown_nodes_are_silent(two_sockets, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placement.warn_if_far(0, "the region", two_sockets)
        placement.warn_if_far(9, "the region", two_sockets)
        placement.warn_if_far(1, "the region", str(tmp_path / "none"))
