# SPDX-License-Identifier: Apache-2.0
"""UNEXPORT and UNIMPORT: driver specification 6.3 and 6.5, rules U1 to U6 and the steps of UNIMPORT."""

from __future__ import annotations

import pytest

from ..driver import BLOCK, CC, GIB, HOLE, NC, PMD, Driver
from ..machine import Machine

BOTH = pytest.mark.parametrize("command", ["UNEXPORT", "UNIMPORT"])


@BOTH
@pytest.mark.parametrize("mem_id", [0, 1 << 20, (1 << 20) + 1, 1 << 32, (1 << 64) - 1])
def test_U1_id_out_of_range(driver: Driver, command: str, mem_id: int) -> None:
    assert driver.ioctl(command, mem_id=mem_id).errno == "ENOENT"


@BOTH
def test_U1_before_U2(driver: Driver, command: str) -> None:
    assert driver.ioctl(command, mem_id=0, flags=1).errno == "ENOENT"


@BOTH
@pytest.mark.parametrize("flags", [1, 2, 1 << 32, (1 << 64) - 1])
def test_U2_flags(driver: Driver, command: str, flags: int) -> None:
    mem_id = driver.export().mem_id
    assert driver.ioctl(command, mem_id=mem_id, flags=flags).errno == "EINVAL"


@BOTH
def test_U2_before_U3(driver: Driver, command: str) -> None:
    assert driver.ioctl(command, mem_id=77, flags=1).errno == "EINVAL"


@BOTH
@pytest.mark.parametrize("mem_id", [1, 77, (1 << 20) - 1])
def test_U3_no_such_region(driver: Driver, command: str, mem_id: int) -> None:
    assert driver.ioctl(command, mem_id=mem_id).errno == "ENOENT"


def test_U3_removed_twice(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    assert driver.unexport(mem_id).ok
    assert driver.unexport(mem_id).errno == "ENOENT"


def test_U4_open_descriptor(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    assert driver.unexport(mem_id).errno == "EBUSY"
    driver.close(fd)
    assert driver.unexport(mem_id).ok


def test_U4_mapping_holds_its_file(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.close(fd)
    assert driver.unexport(mem_id).errno == "EBUSY"
    driver.munmap(mapping)
    assert driver.unexport(mem_id).ok


def test_U4_last_piece_of_a_mapping(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.close(fd)
    driver.munmap(mapping, 4096, PMD - 4096)
    assert driver.unexport(mem_id).errno == "EBUSY"
    driver.munmap(mapping, 0, 4096)
    assert driver.unexport(mem_id).ok


def test_U4_dup_shares_the_open_file(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    driver.do("dup", fd=fd, new="copy")
    driver.close(fd)
    assert driver.unexport(mem_id).errno == "EBUSY"
    driver.close("copy")
    assert driver.unexport(mem_id).ok


def test_U4_another_process(machine: Machine, driver: Driver) -> None:
    mem_id = driver.export().mem_id
    other = machine.process("other")
    assert other.open(mem_id).ok
    assert driver.unexport(mem_id).errno == "EBUSY"
    machine.kill(other)
    assert driver.unexport(mem_id).ok


def test_U4_path_descriptor_does_not_count(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    assert driver.open(mem_id, "O_PATH").ok
    assert driver.unexport(mem_id).ok


def test_U4_before_U5(driver: Driver) -> None:
    mem_id, _ = driver.exported()
    assert driver.unimport(mem_id).errno == "EBUSY"


def test_U5_wrong_type(driver: Driver) -> None:
    assert driver.unimport(driver.export().mem_id).errno == "EINVAL"
    assert driver.unexport(driver.import_().mem_id).errno == "EINVAL"


@pytest.mark.parametrize(("injected", "seen"), [(5, "EIO"), (22, "EINVAL")])
def test_U6_teardown_failure_leaves_the_region(machine: Machine, driver: Driver, injected: int, seen: str) -> None:
    mem_id = driver.export().mem_id
    machine.stub("tdev_free_err", injected)
    assert driver.unexport(mem_id).errno == seen
    machine.stub("reset")
    assert driver.open(mem_id).ok


def test_U6_failed_roll_back(machine: Machine, driver: Driver) -> None:
    mem_id = driver.export().mem_id
    machine.stub("tdev_free_err", 5)
    machine.stub("map_err", 12)
    assert driver.unexport(mem_id).errno == "ENOTRECOVERABLE"
    machine.stub("reset")


def test_6_3_export_leaves_with_live_importers(driver: Driver) -> None:
    """The exporter's kernel never knows who imported."""
    mem_id = driver.export().mem_id
    driver.import_()
    assert driver.unexport(mem_id).ok


def test_6_5_step_2_numa_memory_is_removed_first(machine: Machine, driver: Driver) -> None:
    created = driver.import_numa()
    reply = driver.unimport(created.mem_id)
    assert reply.ok
    assert [call["call"] for call in reply.numa] == ["remove_memory_remote"]


@pytest.mark.parametrize(("injected", "seen"), [(16, "EBUSY"), (4, "EINTR"), (22, "EINVAL")])
def test_6_5_step_2_removal_failure_leaves_the_region(
    machine: Machine, driver: Driver, injected: int, seen: str
) -> None:
    created = driver.import_numa()
    machine.stub("remove_err", injected)
    reply = driver.unimport(created.mem_id)
    assert reply.errno == seen
    assert reply.flush == ()
    machine.stub("reset")
    assert driver.unimport(created.mem_id).ok


def test_6_5_step_2_before_step_3(machine: Machine, driver: Driver) -> None:
    created = driver.import_numa()
    machine.stub("remove_err", 16)
    machine.stub("flush_err", 5)
    assert driver.unimport(created.mem_id).errno == "EBUSY"
    machine.stub("reset")


def test_6_5_step_3_invalidates_the_whole_range(driver: Driver) -> None:
    mem_id = driver.import_(CC, 2 * PMD).mem_id
    assert driver.unimport(mem_id).flush == (("INVAL", CC, 2 * PMD),)


def test_6_5_step_3_non_cacheable_imports_too(driver: Driver) -> None:
    mem_id = driver.import_(NC).mem_id
    assert driver.unimport(mem_id).flush == (("INVAL", NC, PMD),)


@pytest.mark.parametrize(("injected", "seen"), [(95, "EOPNOTSUPP"), (22, "EINVAL"), (5, "EIO")])
def test_6_5_step_3_failure_leaves_the_region(machine: Machine, driver: Driver, injected: int, seen: str) -> None:
    mem_id, fd = driver.imported()
    driver.close(fd)
    machine.stub("flush_err", injected)
    assert driver.unimport(mem_id).errno == seen
    machine.stub("reset")
    assert driver.open(mem_id).ok
    assert driver.import_().errno == "EEXIST"


def test_6_5_step_3_failure_puts_numa_memory_back(machine: Machine, driver: Driver) -> None:
    created = driver.import_numa()
    machine.stub("flush_err", 5)
    reply = driver.unimport(created.mem_id)
    assert reply.errno == "EIO"
    assert [call["call"] for call in reply.numa][:2] == ["remove_memory_remote", "add_memory_remote"]
    machine.stub("reset")
    assert driver.unimport(created.mem_id).ok


def test_6_5_step_4_range_and_id_are_free_again(driver: Driver) -> None:
    assert driver.unimport(driver.import_().mem_id).ok
    assert driver.import_().mem_id == 1


def test_6_5_step_4_blocks_go_back_to_the_preimport(driver: Driver) -> None:
    assert driver.declare(CC, 2 * BLOCK).ok
    created = driver.import_preimport(CC + BLOCK)
    assert driver.unimport(created.mem_id).ok
    assert driver.import_preimport(CC + BLOCK).ok


def test_6_5_write_queue_is_not_drained(machine: Machine, driver: Driver) -> None:
    mem_id = driver.import_().mem_id
    machine.stub("drain_state", 0)
    assert driver.unimport(mem_id).ok


def test_9_8_flushes_are_cut_in_chunks_of_1_gib(machine: Machine, driver: Driver) -> None:
    mem_id = driver.import_(HOLE, 2 * GIB + PMD).mem_id
    machine.port.account()
    driver.process.perform("ioctl UNIMPORT", {"args": {"mem_id": mem_id}})
    flushes = machine.port.account().flush
    assert [(entry["pa"], entry["length"]) for entry in flushes] == [
        (HOLE, GIB),
        (HOLE + GIB, GIB),
        (HOLE + 2 * GIB, PMD),
    ]


def test_6_5_not_recoverable_preimport_import(machine: Machine, driver: Driver) -> None:
    """The region stays, its node still opens, and it can never be removed."""
    assert driver.declare().ok
    mem_id = driver.import_preimport().mem_id
    machine.stub("flush_err", 5)
    machine.stub("add_err", 12)
    assert driver.unimport(mem_id).errno == "ENOTRECOVERABLE"
    machine.stub("reset")
    assert driver.open(mem_id).ok
    assert driver.import_preimport().errno == "EEXIST"
