# SPDX-License-Identifier: Apache-2.0
"""ADDR_QUERY: driver specification 6.8."""

from __future__ import annotations

import pytest

from ..driver import BLOCK, CC, PMD, Driver
from ..machine import Machine


@pytest.mark.parametrize("key", [2, 3, 0xFFFF_FFFF])
def test_Q_other_key_type(driver: Driver, key: int) -> None:
    assert driver.ioctl("ADDR_QUERY", key_type=key, mem_id=1).errno == "EINVAL"


@pytest.mark.parametrize("mem_id", [0, 1 << 20, (1 << 64) - 1, 1])
def test_Q_by_id_unknown(driver: Driver, mem_id: int) -> None:
    assert driver.pa_of(mem_id).errno == "ENOENT"


def test_Q_by_id_offset_past_the_end(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    assert driver.pa_of(mem_id, PMD - 1).ok
    assert driver.pa_of(mem_id, PMD).errno == "EINVAL"
    assert driver.pa_of(mem_id, (1 << 64) - 1).errno == "EINVAL"


def test_Q_by_id_unknown_before_offset(driver: Driver) -> None:
    assert driver.pa_of(9, 1 << 60).errno == "ENOENT"


@pytest.mark.parametrize("pa", [0, 1, CC, (1 << 64) - 1])
def test_Q_by_pa_in_no_region(driver: Driver, pa: int) -> None:
    driver.export()
    assert driver.id_of(pa).errno == "ENOENT"


@pytest.mark.parametrize("offset", [0, 5, PMD - 1, PMD, 3 * PMD - 1])
def test_Q_round_trip_of_an_export(driver: Driver, offset: int) -> None:
    """Any byte address works, segment by segment."""
    mem_id = driver.export([PMD, 2 * PMD]).mem_id
    found = driver.id_of(driver.pa_of(mem_id, offset).pa)
    assert (found.mem_id, found.offset) == (mem_id, offset)


def test_Q_import_is_linear(driver: Driver) -> None:
    mem_id = driver.import_(CC, 2 * PMD).mem_id
    assert driver.pa_of(mem_id, PMD + 7).pa == CC + PMD + 7
    assert driver.id_of(CC + PMD + 7).offset == PMD + 7


def test_Q_numa_and_open_regions_too(driver: Driver) -> None:
    mem_id = driver.import_numa(CC, BLOCK).mem_id
    assert driver.open(mem_id).ok
    assert driver.pa_of(mem_id, 4096).pa == CC + 4096


def test_Q_key_fields_come_back_unchanged(driver: Driver) -> None:
    mem_id = driver.import_(CC, 2 * PMD).mem_id
    by_id, by_pa = driver.pa_of(mem_id, 123), driver.id_of(CC + 123)
    assert (by_id.mem_id, by_id.offset) == (mem_id, 123)
    assert by_pa.pa == CC + 123


def test_Q_removed_region_is_unknown(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    pa = driver.pa_of(mem_id).pa
    assert driver.unexport(mem_id).ok
    assert driver.pa_of(mem_id).errno == "ENOENT"
    assert driver.id_of(pa).errno == "ENOENT"


def test_7_export_segments_are_memseg_aligned_and_disjoint(driver: Driver) -> None:
    mem_id = driver.export(8 * PMD).mem_id
    bases = [driver.pa_of(mem_id, offset).pa for offset in range(0, 8 * PMD, PMD)]
    assert all(base % PMD == 0 for base in bases)
    assert len(set(bases)) == 8


def test_Q_newest_region_first_on_shared_memory(machine: Machine, driver: Driver) -> None:
    """The same huge page exported twice."""
    driver.do("writefile", path="/proc/sys/vm/nr_hugepages", text="24")
    mapping = driver.hugemap()
    first, second = driver.export_pid(mapping), driver.export_pid(mapping)
    pa = driver.pa_of(first.mem_id).pa
    assert driver.id_of(pa).mem_id == second.mem_id
    assert driver.unexport(second.mem_id).ok
    assert driver.id_of(pa).mem_id == first.mem_id
