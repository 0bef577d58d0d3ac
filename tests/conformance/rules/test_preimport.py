# SPDX-License-Identifier: Apache-2.0
"""DECLARE_PREIMPORT and UNDECLARE_PREIMPORT: driver specification 6.6 and 6.7, rules R2 to R15 and V1 to V7."""

from __future__ import annotations

import pytest

from ..driver import BLOCK, CC, CC_END, CNA_B, NC, PMD, Driver
from ..machine import Machine


@pytest.mark.parametrize("length", [PMD, BLOCK - PMD, BLOCK + PMD, BLOCK + 4096, 1])
def test_R2_length_is_a_multiple_of_the_memory_block(driver: Driver, length: int) -> None:
    assert driver.declare(CC, length).errno == "EINVAL"


def test_R2_before_R7(driver: Driver) -> None:
    assert driver.declare(CC, PMD, scna=1).errno == "EINVAL"


@pytest.mark.parametrize("pa", [CC + PMD, CC + 1, CC + BLOCK // 2])
def test_R3_pa_is_a_multiple_of_the_memory_block(driver: Driver, pa: int) -> None:
    assert driver.declare(pa).errno == "EINVAL"


def test_R3_before_R7(driver: Driver) -> None:
    assert driver.declare(CC + PMD, scna=1).errno == "EINVAL"


def test_R4_range_wraps(driver: Driver) -> None:
    assert driver.declare((1 << 64) - BLOCK, 2 * BLOCK).errno == "EINVAL"


def test_R4_before_R7(driver: Driver) -> None:
    assert driver.declare((1 << 64) - BLOCK, 2 * BLOCK, scna=1).errno == "EINVAL"


def test_R5_length_0(driver: Driver) -> None:
    assert driver.declare(CC, 0).errno == "EINVAL"


def test_R5_before_R7(driver: Driver) -> None:
    assert driver.declare(CC, 0, scna=1).errno == "EINVAL"


@pytest.mark.parametrize("flags", [1, 2, 4, 1 << 32])
def test_R6_flags(driver: Driver, flags: int) -> None:
    assert driver.declare(flags=flags).errno == "EINVAL"


def test_R6_before_R7(driver: Driver) -> None:
    assert driver.declare(flags=1, scna=1).errno == "EINVAL"


@pytest.mark.parametrize("scna", [0, 1, 0xFFFF_FFFF])
def test_R7_scna_unknown(driver: Driver, scna: int) -> None:
    assert driver.declare(scna=scna).errno == "ENODEV"


def test_R7_before_R8(driver: Driver) -> None:
    assert driver.declare(scna=1, base_dist=5).errno == "ENODEV"


def test_R7_before_R9(driver: Driver) -> None:
    assert driver.declare(0, scna=1).errno == "ENODEV"


@pytest.mark.parametrize("base_dist", range(1, 11))
def test_R8_base_dist_1_to_10(driver: Driver, base_dist: int) -> None:
    assert driver.declare(base_dist=base_dist).errno == "EINVAL"


def test_R8_before_R10(driver: Driver) -> None:
    assert driver.import_().ok
    assert driver.declare(base_dist=5).errno == "EINVAL"


def test_R9_pa_0(driver: Driver) -> None:
    assert driver.declare(0).errno == "EINVAL"


def test_R9_before_R13(driver: Driver) -> None:
    """Both are EINVAL: address 0 is in no window either."""
    assert driver.declare(0, base_dist=0).errno == "EINVAL"


@pytest.mark.parametrize(("pa", "length"), [(CC, BLOCK), (CC, 2 * BLOCK), (CC + BLOCK, BLOCK)])
def test_R10_overlap_with_a_preimport(driver: Driver, pa: int, length: int) -> None:
    assert driver.declare(CC, 2 * BLOCK).ok
    assert driver.declare(pa, length).errno == "EEXIST"


def test_R10_overlap_with_an_import(driver: Driver) -> None:
    assert driver.import_(CC + PMD).ok
    assert driver.declare().errno == "EEXIST"


def test_R10_before_R13(driver: Driver) -> None:
    assert driver.import_(NC).ok
    assert driver.declare(NC).errno == "EEXIST"


def test_R12_foreign_resource(machine: Machine, driver: Driver) -> None:
    machine.stub("blocker", CC + BLOCK - PMD, 2 * PMD)
    assert driver.declare().errno == "EBUSY"


def test_R12_before_R13(machine: Machine, driver: Driver) -> None:
    machine.stub("blocker", NC + BLOCK - PMD, 2 * PMD)
    assert driver.declare(NC).errno == "EBUSY"


@pytest.mark.parametrize(("pa", "length"), [(NC, BLOCK), (CC_END - BLOCK, 2 * BLOCK), (0x1000_0000, BLOCK)])
def test_R13_not_in_a_cc_window(driver: Driver, pa: int, length: int) -> None:
    assert driver.declare(pa, length).errno == "EINVAL"


def test_R13_window_of_another_controller(driver_b: Driver) -> None:
    assert driver_b.declare(CC, scna=CNA_B).errno == "EINVAL"


def test_R13_before_R14(driver: Driver) -> None:
    assert driver.declare(NC, numa_id=0).errno == "EINVAL"


@pytest.mark.parametrize("node", [0, 1, 9, -2])
def test_R14_local_or_unknown_node(driver: Driver, node: int) -> None:
    assert driver.declare(numa_id=node).errno == "EPERM"


@pytest.mark.parametrize("injected", [1, 12, 16])
def test_R14_every_hotplug_error_is_eperm(machine: Machine, driver: Driver, injected: int) -> None:
    machine.stub("add_err", injected)
    assert driver.declare().errno == "EPERM"
    machine.stub("reset")
    assert driver.declare().ok


def test_R14_before_R15(machine: Machine, driver: Driver) -> None:
    machine.stub("add_err", 12)
    machine.stub("dist_err", 22)
    assert driver.declare(base_dist=20).errno == "EPERM"


@pytest.mark.parametrize(("injected", "seen"), [(22, "EINVAL"), (19, "ENODEV"), (12, "ENOMEM")])
def test_R15_distance_failure_takes_the_memory_back(machine: Machine, driver: Driver, injected: int, seen: str) -> None:
    machine.stub("dist_err", injected)
    reply = driver.declare(base_dist=20)
    assert reply.errno == seen
    assert [call["call"] for call in reply.numa] == ["add_memory_remote", "set_distance", "remove_memory_remote"]
    machine.stub("reset")
    assert driver.declare().ok


def test_6_6_no_region_and_no_node(driver: Driver) -> None:
    assert driver.declare().ok
    assert not [name for name in driver.names("/sys/devices/obmm") if name.startswith("obmm_shmdev")]
    assert driver.export().mem_id == 1


def test_6_6_priv_is_not_even_looked_at(driver: Driver) -> None:
    assert driver.declare(priv_len=60000, priv="bad").ok


def test_6_6_existing_node_grows(driver: Driver) -> None:
    node = driver.declare(CC).numa_id
    assert driver.declare(CC + BLOCK, numa_id=node).numa_id == node


def test_6_6_each_preimport_pins_the_module(machine: Machine, driver: Driver) -> None:
    assert driver.declare().ok
    assert machine.world("rmmod").get("errno") == "EAGAIN"
    assert driver.undeclare().ok
    assert machine.world("rmmod")["ret"] == 0


@pytest.mark.parametrize("flags", [1, 2, 1 << 63])
def test_V1_flags(driver: Driver, flags: int) -> None:
    assert driver.declare().ok
    assert driver.undeclare(flags=flags).errno == "EINVAL"


def test_V1_before_V2(driver: Driver) -> None:
    assert driver.undeclare(flags=1).errno == "EINVAL"


@pytest.mark.parametrize("pa", [CC, CC + BLOCK, 0, (1 << 64) - BLOCK])
def test_V2_pa_in_no_known_range(driver: Driver, pa: int) -> None:
    assert driver.undeclare(pa).errno == "EFAULT"


def test_V3_plain_import(driver: Driver) -> None:
    assert driver.import_(CC, BLOCK).ok
    assert driver.undeclare().errno == "EINVAL"


@pytest.mark.parametrize(
    ("pa", "length"), [(CC, BLOCK), (CC, 3 * BLOCK), (CC + BLOCK, BLOCK), (CC + PMD, 2 * BLOCK), (CC, 0)]
)
def test_V5_not_exactly_the_declared_range(driver: Driver, pa: int, length: int) -> None:
    assert driver.declare(CC, 2 * BLOCK).ok
    assert driver.undeclare(pa, length).errno == "EINVAL"


def test_V5_before_V6(driver: Driver) -> None:
    assert driver.declare(CC, 2 * BLOCK).ok
    assert driver.import_preimport(CC).ok
    assert driver.undeclare(CC, BLOCK).errno == "EINVAL"


def test_V6_an_import_uses_it(driver: Driver) -> None:
    assert driver.declare().ok
    mem_id = driver.import_preimport().mem_id
    assert driver.undeclare().errno == "EBUSY"
    assert driver.unimport(mem_id).ok
    assert driver.undeclare().ok


def test_V6_before_V7(machine: Machine, driver: Driver) -> None:
    assert driver.declare().ok
    assert driver.import_preimport().ok
    machine.stub("remove_err", 22)
    assert driver.undeclare().errno == "EBUSY"


@pytest.mark.parametrize(("injected", "seen"), [(16, "EBUSY"), (22, "EINVAL"), (4, "EINTR")])
def test_V7_memory_removal_fails(machine: Machine, driver: Driver, injected: int, seen: str) -> None:
    assert driver.declare().ok
    machine.stub("remove_err", injected)
    assert driver.undeclare().errno == seen
    machine.stub("reset")
    assert driver.undeclare().ok


def test_6_7_only_pa_length_and_flags_are_read(driver: Driver) -> None:
    assert driver.declare().ok
    assert driver.undeclare(scna=1, dcna=2, numa_id=0, base_dist=5, seid=7, priv_len=9, priv="bad").ok


def test_11_2_preimport_info(driver: Driver) -> None:
    """Header line, then the newest first; pa_end is inclusive."""
    assert driver.declare(CC, BLOCK).ok
    assert driver.declare(CC + BLOCK, 2 * BLOCK, deid="00" * 8 + "01" + "00" * 7, dcna=0x1234).ok
    header, newest, oldest = driver.text("/proc/obmm/preimport_info").splitlines()
    assert header.split() == ["pa_start", "-", "pa_end", ":", "dcna", "scna", "deid", "seid", "nid"]
    assert newest.split() == [
        "a8000000",
        "-",
        "b7ffffff",
        ":",
        "0x1234",
        "0x40a",
        "0x0000000000000001:0x0000000000000000",
        "0x0000000000000000:0x0000000000000012",
        "3",
    ]
    assert oldest.startswith("a0000000         - a7ffffff         : 0x77     0x40a    ")
