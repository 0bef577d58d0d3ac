# SPDX-License-Identifier: Apache-2.0
"""EXPORT: driver specification 6.1, rules X1 to X15, and section 7."""

from __future__ import annotations

import pytest

from ..driver import FAST, MIB, PMD, Driver, vendor
from ..machine import Machine


def test_X1_length_counts_entries_of_size(driver: Driver) -> None:
    assert driver.export(length=17).errno == "E2BIG"
    assert driver.export(length=PMD).errno == "E2BIG"
    assert driver.export(length=16).ok


def test_X1_before_X2(driver: Driver) -> None:
    assert driver.export(length=17, pxm_numa=-1).errno == "E2BIG"


@pytest.mark.parametrize("pxm_numa", [-1, 17, 0x7FFF_FFFF, -(1 << 31)])
def test_X2_pxm_numa_out_of_range(driver: Driver, pxm_numa: int) -> None:
    assert driver.export(pxm_numa=pxm_numa).errno == "EINVAL"


def test_X2_before_X3b(driver: Driver) -> None:
    assert driver.export([0] * 15 + [PMD], pxm_numa=-1).errno == "EINVAL"


@pytest.mark.parametrize("size", [1, 4096, PMD - 1, PMD + 4096, 3 * MIB])
def test_X3a_size_is_a_multiple_of_memseg(driver: Driver, size: int) -> None:
    assert driver.export(size).errno == "EINVAL"


def test_X3a_before_X3b_on_one_entry(driver: Driver) -> None:
    assert driver.export([0] * 15 + [3 * MIB]).errno == "EINVAL"


def test_X3b_before_X3a_on_a_later_entry(driver: Driver) -> None:
    sizes = [PMD] + [0] * 13 + [PMD, 3 * MIB]
    assert driver.export(sizes).errno == "ENODEV"


@pytest.mark.parametrize("node", [2, 7, 15])
def test_X3b_absent_node(driver: Driver, node: int) -> None:
    assert driver.export([0] * node + [PMD]).errno == "ENODEV"


def test_X3b_before_X7(driver: Driver) -> None:
    assert driver.export([0] * 15 + [PMD], flags=4).errno == "ENODEV"


def test_X3b_remote_node_has_no_pool(driver: Driver) -> None:
    node = driver.import_numa().numa_id
    assert driver.export([0] * node + [PMD]).errno == "ENODEV"


def test_X3c_total_overflows(driver: Driver) -> None:
    assert driver.export([(1 << 64) - PMD, PMD]).errno == "EOVERFLOW"


def test_X3c_before_X7(driver: Driver) -> None:
    assert driver.export([(1 << 64) - PMD, PMD], flags=4).errno == "EOVERFLOW"


@pytest.mark.parametrize("sizes", [[0], [0] * 16])
def test_X4_nothing_to_export(driver: Driver, sizes: list[int]) -> None:
    assert driver.export(sizes).errno == "EINVAL"


def test_X4_length_0(driver: Driver) -> None:
    assert driver.export(PMD, length=0).errno == "EINVAL"


def test_X5_memory_of_two_packages(driver_b: Driver) -> None:
    assert driver_b.export([PMD, 0, PMD]).errno == "EINVAL"


def test_X5_controller_on_another_package(driver_b: Driver) -> None:
    assert driver_b.export([0, 0, PMD], pxm_numa=0).errno == "EINVAL"
    assert driver_b.export([0, 0, PMD], pxm_numa=2, vendor_info=vendor(1)).ok


def test_X5_node_without_cpus(driver_b: Driver) -> None:
    assert driver_b.export([0, 0, 0, PMD], pxm_numa=2).errno == "EINVAL"


def test_X5_controller_node_without_cpus(driver_b: Driver) -> None:
    assert driver_b.export(PMD, pxm_numa=3).errno == "EINVAL"


def test_X5_two_nodes_of_one_package(driver_b: Driver) -> None:
    assert driver_b.export([PMD, 2 * PMD], pxm_numa=1).ok


def test_X5_absent_controller_node(driver: Driver) -> None:
    assert driver.export(pxm_numa=9).errno == "EINVAL"


def test_X5_before_X8(driver: Driver) -> None:
    assert driver.export(pxm_numa=9, priv_len=1, priv="bad").errno == "EINVAL"


@pytest.mark.parametrize("flags", [4, 5, 8, 1 << 31, 1 << 63])
def test_X7_unknown_flags(driver: Driver, flags: int) -> None:
    assert driver.export(flags=flags).errno == "EINVAL"


def test_X7_before_X8(driver: Driver) -> None:
    assert driver.export(flags=4, priv_len=1, priv="bad").errno == "EINVAL"


def test_X8_priv_too_long(driver: Driver) -> None:
    assert driver.export(priv_len=513, priv="00" * 513).errno == "EINVAL"
    assert driver.export(priv_len=512, priv="11" * 512).ok


@pytest.mark.parametrize("pointer", ["null", "bad", "kernel"])
def test_X8_priv_unreadable(driver: Driver, pointer: str) -> None:
    assert driver.export(priv_len=1, priv=pointer).errno == "EFAULT"


def test_X8_before_X9(driver: Driver) -> None:
    assert driver.export(priv_len=1, priv="bad", vendor_len=129).errno == "EFAULT"
    assert driver.export(priv_len=513, vendor_len=24, vendor_info="bad").errno == "EINVAL"


def test_X9_vendor_too_long(driver: Driver) -> None:
    assert driver.export(vendor_len=129, vendor_info="00" * 129).errno == "EINVAL"


@pytest.mark.parametrize("pointer", ["null", "bad", "kernel"])
def test_X9_vendor_unreadable(driver: Driver, pointer: str) -> None:
    assert driver.export(vendor_len=24, vendor_info=pointer).errno == "EFAULT"


def test_X9_before_X12(machine: Machine, driver: Driver) -> None:
    machine.stub("alloc_fail", 1)
    assert driver.export(64 * MIB, vendor_len=24, vendor_info="bad").errno == "EFAULT"


def test_X12_not_enough_memory(machine: Machine, driver: Driver) -> None:
    machine.stub("alloc_fail", 1)
    assert driver.export(64 * MIB).errno == "ENOMEM"


def test_X12_fast_takes_cleared_memory_only(driver: Driver) -> None:
    assert driver.export(1024 * MIB, flags=FAST).errno == "ENOMEM"


def test_X12_clearing_needs_the_cache_engine(machine: Machine, driver: Driver) -> None:
    machine.stub("flush_err", 95)
    assert driver.export(64 * MIB).errno == "ENOMEM"


def test_X12_before_X13(machine: Machine, driver: Driver) -> None:
    machine.stub("alloc_fail", 1)
    assert driver.export(64 * MIB, vendor_len=8, vendor_info="00" * 8).errno == "ENOMEM"


def test_X12_failure_frees_the_id(machine: Machine, driver: Driver) -> None:
    machine.stub("alloc_fail", 1)
    assert driver.export(64 * MIB).errno == "ENOMEM"
    machine.stub("reset")
    assert driver.export().mem_id == 1


@pytest.mark.parametrize("length", [1, 8, 23])
def test_X13_short_vendor_data(driver: Driver, length: int) -> None:
    assert driver.export(vendor_len=length, vendor_info="00" * length).errno == "EPERM"


@pytest.mark.parametrize("mask", [0, 1 << 1, 1 << 63])
def test_X13_vendor_mask_names_no_ummu(driver: Driver, mask: int) -> None:
    assert driver.export(vendor_info=vendor(mask=mask)).errno == "EPERM"


def test_X13_lowest_set_bit_of_the_mask_counts(driver: Driver) -> None:
    assert driver.export(vendor_info=vendor(mask=0b11)).ok


def test_X13_no_ummu(machine: Machine, driver: Driver) -> None:
    machine.stub("tdev_fail", 1)
    assert driver.export().errno == "EPERM"


def test_X13_tokens_exhausted(machine: Machine, driver: Driver) -> None:
    machine.stub("tid_max", 0)
    assert driver.export().tokenid == 0
    assert driver.export().errno == "EPERM"


def test_X13_before_X14(machine: Machine, driver: Driver) -> None:
    machine.stub("tdev_fail", 1)
    machine.stub("map_err", 12)
    assert driver.export().errno == "EPERM"


@pytest.mark.parametrize(("injected", "seen"), [(22, "EINVAL"), (12, "ENOMEM"), (5, "EIO"), (16, "EIO"), (28, "EIO")])
def test_X14_mapping_errors_that_reach_the_caller(machine: Machine, driver: Driver, injected: int, seen: str) -> None:
    machine.stub("map_err", injected)
    assert driver.export().errno == seen


def test_X14_failure_frees_token_and_id(machine: Machine, driver: Driver) -> None:
    machine.stub("map_err", 12)
    assert driver.export().errno == "ENOMEM"
    machine.stub("reset")
    created = driver.export()
    assert (created.mem_id, created.tokenid) == (1, 0)


def test_6_1_sizes_behind_length_are_ignored(driver: Driver) -> None:
    assert driver.export([PMD, 0, 0, 0, 0, 12345], length=1).ok


def test_6_1_memory_reads_as_zero(driver: Driver) -> None:
    _, fd = driver.exported(4 * PMD)
    mapping = driver.mapped(fd, 4 * PMD)
    assert driver.do("fill_check", map=mapping, byte=0).all_equal


def test_6_1_memory_of_a_removed_region_is_zero_in_the_next(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.store(mapping, 64, 0x5A5A)
    driver.munmap(mapping)
    driver.close(fd)
    assert driver.unexport(mem_id).ok
    _, fd = driver.exported()
    assert driver.do("fill_check", map=driver.mapped(fd), byte=0).all_equal


def test_6_1_segments_of_node_0_come_first(driver: Driver) -> None:
    mem_id = driver.export([PMD, 2 * PMD]).mem_id
    assert driver.text(f"/sys/devices/obmm/obmm_shmdev{mem_id}/export_info/node_mem_size") == "0x200000,0x400000\n"


@pytest.mark.parametrize("flags", ["O_RDWR", "O_RDWR|O_SYNC"])
def test_6_1_pool_exports_open_cacheable_and_not(driver: Driver, flags: str) -> None:
    assert driver.open(driver.export().mem_id, flags).ok


@pytest.mark.parametrize("flags", [0, 1, 2, 3])
def test_6_9_allowed_flags_of_export(driver: Driver, flags: int) -> None:
    assert driver.export(flags=flags).ok


def test_7_lowest_free_id_shared_by_exports_and_imports(driver: Driver) -> None:
    assert driver.export().mem_id == 1
    assert driver.import_().mem_id == 2
    assert driver.export().mem_id == 3
    assert driver.unimport(2).ok
    assert driver.export().mem_id == 2


def test_7_lowest_free_token_and_equal_uba(driver: Driver) -> None:
    first, second = driver.export(), driver.export()
    assert (first.tokenid, second.tokenid) == (0, 1)
    assert first.uba == second.uba
    assert driver.unexport(first.mem_id).ok
    assert driver.export().tokenid == 0


def test_7_two_ummus_have_tokens_of_their_own(driver_b: Driver) -> None:
    assert driver_b.export(PMD).tokenid == 0
    assert driver_b.export([0, 0, PMD], pxm_numa=2, vendor_info=vendor(1)).tokenid == 0


@pytest.mark.parametrize(
    ("size", "uba"),
    [(PMD, 0xFFFF_FFE0_0000), (2 * PMD, 0xFFFF_FFC0_0000), (3 * PMD, 0xFFFF_FF80_0000), (5 * PMD, 0xFFFF_FF00_0000)],
)
def test_7_uba_is_top_down_with_natural_alignment(driver: Driver, size: int, uba: int) -> None:
    assert driver.export(size).uba == uba
