# SPDX-License-Identifier: Apache-2.0
"""IMPORT: driver specification 6.4, rules I2 to I25, and section 15."""

from __future__ import annotations

import pytest

from ..driver import (
    BLOCK,
    CC,
    CC_B,
    CC_END,
    CC_NEXT,
    CNA,
    CNA_B,
    MIB,
    NC,
    NC_B,
    NUMA_REMOTE,
    PMD,
    PREIMPORT,
    Driver,
)
from ..machine import Machine


@pytest.mark.parametrize("flags", [8, 9, 0xC, 1 << 31, 1 << 32, 1 << 63])
def test_I2_unknown_flags(driver: Driver, flags: int) -> None:
    assert driver.import_(flags=flags).errno == "EINVAL"


def test_I2_before_I5(driver: Driver) -> None:
    assert driver.import_(flags=9, priv_len=1, priv="bad").errno == "EINVAL"


@pytest.mark.parametrize("flags", [0, 5, 7])
def test_I3_exactly_one_kind(driver: Driver, flags: int) -> None:
    assert driver.import_(CC, BLOCK, flags).errno == "EINVAL"


def test_I3_before_I5(driver: Driver) -> None:
    assert driver.import_(flags=5, priv_len=1, priv="bad").errno == "EINVAL"


@pytest.mark.parametrize("flags", [2, 3])
def test_I4_preimport_is_numa_only(driver: Driver, flags: int) -> None:
    assert driver.declare().ok
    assert driver.import_(CC, BLOCK, flags).errno == "EINVAL"


def test_I4_before_I5(driver: Driver) -> None:
    assert driver.import_(flags=3, priv_len=1, priv="bad").errno == "EINVAL"


def test_I5_priv_too_long(driver: Driver) -> None:
    assert driver.import_(priv_len=513, priv="00" * 513).errno == "EINVAL"
    assert driver.import_(priv_len=512, priv="22" * 512).ok


@pytest.mark.parametrize("pointer", ["null", "bad", "kernel"])
def test_I5_priv_unreadable(driver: Driver, pointer: str) -> None:
    assert driver.import_(priv_len=4, priv=pointer).errno == "EFAULT"


def test_I5_before_I6(driver: Driver) -> None:
    assert driver.import_(CC, 0, priv_len=1, priv="bad").errno == "EFAULT"


def test_I6_length_0(driver: Driver) -> None:
    assert driver.import_(CC, 0).errno == "EINVAL"


def test_I6_before_I12(driver: Driver) -> None:
    assert driver.import_(CC, 0, scna=1).errno == "EINVAL"


@pytest.mark.parametrize(("addr", "length"), [(CC + 4096, PMD), (CC, PMD + 4096), (CC + MIB, PMD), (CC, MIB)])
def test_I7_multiples_of_2_mib(driver: Driver, addr: int, length: int) -> None:
    assert driver.import_(addr, length).errno == "EINVAL"


def test_I7_before_I12(driver: Driver) -> None:
    assert driver.import_(CC + 4096, scna=1).errno == "EINVAL"


def test_I8_addr_0(driver: Driver) -> None:
    assert driver.import_(0).errno == "EINVAL"


def test_I8_before_I12(driver: Driver) -> None:
    assert driver.import_(0, scna=1).errno == "EINVAL"


@pytest.mark.parametrize("length", [PMD, 2 * PMD, (1 << 64) - PMD])
def test_I9_range_wraps(driver: Driver, length: int) -> None:
    """Including exactly to zero."""
    assert driver.import_((1 << 64) - PMD, length).errno == "EINVAL"


def test_I9_before_I12(driver: Driver) -> None:
    assert driver.import_((1 << 64) - PMD, PMD, scna=1).errno == "EINVAL"


@pytest.mark.parametrize("base_dist", range(1, 11))
def test_I10_base_dist_1_to_10(driver: Driver, base_dist: int) -> None:
    assert driver.import_numa(base_dist=base_dist).errno == "EINVAL"


@pytest.mark.parametrize("base_dist", [0, 11, 100, 255])
def test_I10_other_base_dists(driver: Driver, base_dist: int) -> None:
    assert driver.import_numa(base_dist=base_dist).ok


def test_I10_not_for_mmap_imports(driver: Driver) -> None:
    assert driver.import_(base_dist=5).ok


def test_I10_not_for_preimport_imports(driver: Driver) -> None:
    assert driver.declare().ok
    assert driver.import_preimport(base_dist=5).ok


def test_I10_before_I12(driver: Driver) -> None:
    assert driver.import_numa(base_dist=5, scna=1).errno == "EINVAL"


@pytest.mark.parametrize("scna", [0, 1, 0x40B, 0xFFFF_FFFF])
def test_I12_scna_is_no_local_controller(driver: Driver, scna: int) -> None:
    assert driver.import_(scna=scna).errno == "ENODEV"


def test_I12_before_I13(driver: Driver) -> None:
    assert driver.import_().ok
    assert driver.import_(scna=1).errno == "ENODEV"


def test_I12_before_I14(driver: Driver) -> None:
    assert driver.import_(0x1000_0000, scna=1).errno == "ENODEV"


@pytest.mark.parametrize(
    ("addr", "length"),
    [(CC, 2 * PMD), (CC + PMD, PMD), (CC, PMD), (CC - PMD, 2 * PMD), (CC - PMD, 4 * PMD)],
)
def test_I13_overlap_with_a_live_import(driver: Driver, addr: int, length: int) -> None:
    assert driver.import_(CC, 2 * PMD).ok
    assert driver.import_(addr, length).errno == "EEXIST"


def test_I13_neighbours_do_not_overlap(driver: Driver) -> None:
    assert driver.import_(CC + PMD).ok
    assert driver.import_(CC).ok
    assert driver.import_(CC + 2 * PMD).ok


def test_I13_overlap_with_a_preimport(driver: Driver) -> None:
    assert driver.declare(CC, BLOCK).ok
    assert driver.import_(CC + PMD).errno == "EEXIST"


def test_I13_before_I14(driver: Driver) -> None:
    assert driver.import_(CC, PMD).ok
    assert driver.import_(CC - PMD, 2 * PMD).errno == "EEXIST"


@pytest.mark.parametrize(
    ("addr", "length"),
    [
        (0x1000_0000, PMD),
        (CC - PMD, PMD),
        (CC - PMD, 2 * PMD),
        (CC_END - PMD, 2 * PMD),
        (NC - PMD, 2 * PMD),
        (NC + 256 * MIB - PMD, 2 * PMD),
        (0xFFFF_FFE0_0000, PMD),
    ],
)
def test_I14_not_in_one_window(driver: Driver, addr: int, length: int) -> None:
    """Two adjacent CC windows are two windows."""
    assert driver.import_(addr, length).errno == "EINVAL"


@pytest.mark.parametrize(("addr", "length"), [(CC, 512 * MIB), (CC_END - PMD, PMD), (CC_NEXT, PMD), (NC, 256 * MIB)])
def test_I14_up_to_the_borders(driver: Driver, addr: int, length: int) -> None:
    assert driver.import_(addr, length).ok


@pytest.mark.parametrize(
    ("scna", "addr", "ok"),
    [(CNA, CC, True), (CNA_B, CC, False), (CNA, CC_B, False), (CNA_B, CC_B, True), (CNA_B, NC_B, True)],
)
def test_I14_windows_belong_to_the_controller(driver_b: Driver, scna: int, addr: int, ok: bool) -> None:
    assert driver_b.import_(addr, scna=scna).errno == (None if ok else "EINVAL")


def test_I14_before_I15(machine: Machine, driver: Driver) -> None:
    machine.stub("blocker", 0x1000_0000 + PMD, 2 * PMD)
    assert driver.import_(0x1000_0000, 2 * PMD).errno == "EINVAL"


def test_I15_partial_overlap_with_a_foreign_resource(machine: Machine, driver: Driver) -> None:
    machine.stub("blocker", CC + PMD, 2 * PMD)
    assert driver.import_(CC, 2 * PMD).errno == "EBUSY"


@pytest.mark.parametrize(("start", "length"), [(CC, 2 * PMD), (CC, 4 * PMD)])
def test_I15_containing_or_equal_resource_is_no_conflict(
    machine: Machine, driver: Driver, start: int, length: int
) -> None:
    machine.stub("blocker", start, length)
    assert driver.import_(CC, 2 * PMD).ok


def test_I16_no_preimport_declared(driver: Driver) -> None:
    assert driver.import_preimport().errno == "EFAULT"


def test_I12_before_I16(driver: Driver) -> None:
    assert driver.import_preimport(scna=1).errno == "ENODEV"


def test_I17_address_of_a_plain_import(driver: Driver) -> None:
    assert driver.import_(CC, BLOCK).ok
    assert driver.import_preimport().errno == "EINVAL"


@pytest.mark.parametrize(
    "changed",
    [{"dcna": 0x78}, {"seid": 0x13}, {"deid": 0x35}, {"deid": "34" + "00" * 14 + "01"}],
    ids=lambda changed: next(iter(changed)),
)
def test_I19_data_path_differs(driver: Driver, changed: dict[str, object]) -> None:
    assert driver.declare().ok
    assert driver.import_preimport(**changed).errno == "EINVAL"


def test_I19_other_controller(driver_b: Driver) -> None:
    assert driver_b.declare().ok
    assert driver_b.import_preimport(scna=CNA_B).errno == "EINVAL"


def test_I20_range_runs_past(driver: Driver) -> None:
    assert driver.declare(CC, BLOCK).ok
    assert driver.import_preimport(CC, 2 * BLOCK).errno == "EINVAL"


def test_I20_before_I21(driver: Driver) -> None:
    assert driver.declare(CC, BLOCK).ok
    assert driver.import_preimport(CC, BLOCK).ok
    assert driver.import_preimport(CC, 2 * BLOCK).errno == "EINVAL"


def test_I21_block_already_used(driver: Driver) -> None:
    assert driver.declare(CC, 2 * BLOCK).ok
    assert driver.import_preimport(CC, BLOCK).ok
    assert driver.import_preimport(CC, 2 * BLOCK).errno == "EEXIST"
    assert driver.import_preimport(CC + BLOCK, BLOCK).ok


def test_I22_numa_import_in_an_nc_window(driver: Driver) -> None:
    assert driver.import_numa(NC).errno == "EINVAL"


def test_I22_before_I23(machine: Machine, driver: Driver) -> None:
    machine.stub("numa_remote", 0)
    assert driver.import_numa(NC).errno == "EINVAL"


@pytest.mark.parametrize(("addr", "length"), [(CC + PMD, BLOCK), (CC, BLOCK + PMD), (CC, PMD)])
def test_I23_memory_block_alignment(driver: Driver, addr: int, length: int) -> None:
    assert driver.import_numa(addr, length).errno == "EPERM"


@pytest.mark.parametrize("node", [0, 1, 9, -2])
def test_I23_local_or_unknown_node(driver: Driver, node: int) -> None:
    assert driver.import_numa(numa_id=node).errno == "EPERM"


def test_I23_kernel_without_remote_numa(machine: Machine, driver: Driver) -> None:
    machine.stub("numa_remote", 0)
    assert driver.import_numa().errno == "EPERM"
    assert driver.import_().ok


@pytest.mark.parametrize("injected", [1, 12, 16, 17])
def test_I23_every_hotplug_error_is_eperm(machine: Machine, driver: Driver, injected: int) -> None:
    machine.stub("add_err", injected)
    assert driver.import_numa().errno == "EPERM"
    machine.stub("reset")
    assert driver.import_numa().mem_id == 1


@pytest.mark.parametrize(("injected", "seen"), [(22, "EINVAL"), (19, "ENODEV"), (12, "ENOMEM")])
def test_I24_distance_failure_takes_the_memory_back(machine: Machine, driver: Driver, injected: int, seen: str) -> None:
    machine.stub("dist_err", injected)
    reply = driver.import_numa(base_dist=20)
    assert reply.errno == seen
    assert [call["call"] for call in reply.numa] == ["add_memory_remote", "set_distance", "remove_memory_remote"]


def test_I25_foreign_resource_strictly_inside(machine: Machine, driver: Driver) -> None:
    machine.stub("blocker", CC + PMD, PMD)
    assert driver.import_(CC, 3 * PMD).errno == "EBUSY"
    machine.stub("reset")
    assert driver.import_(CC, 3 * PMD).mem_id == 1


def test_6_4_cc_window_opens_without_o_sync_only(driver: Driver) -> None:
    mem_id = driver.import_(CC).mem_id
    assert driver.open(mem_id).ok
    assert driver.open(mem_id, "O_RDWR|O_SYNC").errno == "EPERM"


def test_6_4_nc_window_opens_with_o_sync_only(driver: Driver) -> None:
    mem_id = driver.import_(NC).mem_id
    assert driver.open(mem_id).errno == "EPERM"
    assert driver.open(mem_id, "O_RDWR|O_SYNC").ok


def test_6_4_mmap_import_gives_numa_id_minus_1(driver: Driver) -> None:
    assert driver.import_(numa_id=5, base_dist=3).numa_id == -1


def test_6_4_preimport_node_replaces_the_argument(driver: Driver) -> None:
    node = driver.declare().numa_id
    assert driver.import_preimport(numa_id=7).numa_id == node


def test_6_4_numa_import_has_a_node_that_cannot_be_mapped(driver: Driver) -> None:
    mem_id = driver.import_numa().mem_id
    opened = driver.open(mem_id)
    assert opened.ok
    assert driver.mmap(opened.handle).errno == "EPERM"


@pytest.mark.parametrize("flags", [1, 4])
def test_6_9_allowed_flags_of_import(driver: Driver, flags: int) -> None:
    assert driver.import_(CC, BLOCK, flags).ok


def test_6_9_preimport_flags_of_import(driver: Driver) -> None:
    assert driver.declare().ok
    assert driver.import_(CC, BLOCK, NUMA_REMOTE | PREIMPORT).ok


def test_15_lowest_free_remote_node(driver: Driver) -> None:
    first, second = driver.import_numa(CC), driver.import_numa(CC + BLOCK)
    assert (first.numa_id, second.numa_id) == (2, 3)
    assert driver.unimport(first.mem_id).ok
    assert driver.import_numa(CC).numa_id == 2


def test_15_existing_node_grows(driver: Driver) -> None:
    node = driver.import_numa(CC).numa_id
    assert driver.import_numa(CC + BLOCK, numa_id=node).numa_id == node


def test_15_base_dist_0_sets_no_distance(driver: Driver) -> None:
    assert [call["call"] for call in driver.import_numa(base_dist=0).numa] == ["add_memory_remote"]


@pytest.mark.parametrize("base_dist", [11, 60, 250, 255])
def test_15_distances_follow_the_controller_node(driver_b: Driver, base_dist: int) -> None:
    """min(255, base_dist + distance(L, n) - distance(L, L)); L = node of scna; topology B's table."""
    (distances,) = [
        {int(node): int(value) for node, value in call["distances"].items()}
        for call in driver_b.import_numa(base_dist=base_dist).numa
        if call["call"] == "set_distance"
    ]
    table = {0: 10, 1: 12, 2: 40, 3: 50}
    assert distances == {node: min(255, base_dist + far - 10) for node, far in table.items()}
