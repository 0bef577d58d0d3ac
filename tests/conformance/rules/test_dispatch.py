# SPDX-License-Identifier: Apache-2.0
"""Dispatch on /dev/obmm: driver specification 6, rules D1 to D5, and section 4."""

from __future__ import annotations

import pytest

from ..driver import CC, PMD, Driver
from ..machine import Machine
from ..replay.commands import COMMANDS

CONTROL = [name for name in COMMANDS if name != "UPDATE_RANGE"]
COPIED_BACK = ["EXPORT", "IMPORT", "ADDR_QUERY", "EXPORT_PID", "DECLARE_PREIMPORT"]
PARAMETERS = "mempool_size=16M mempool_refill_timeout=500"


def reload_with_features(machine: Machine, mask: int) -> None:
    machine.world("rmmod")
    machine.world("feature", value=mask)
    assert machine.world("insmod", params=PARAMETERS)["ret"] == 0


@pytest.mark.parametrize("command", CONTROL)
def test_D1_closed_gate_answers_every_command_before_its_argument(
    machine: Machine, driver: Driver, command: str
) -> None:
    reload_with_features(machine, 0)
    assert driver.ioctl(command).errno == "EOPNOTSUPP"
    assert driver.ioctl(command, ptr="null").errno == "EOPNOTSUPP"


def test_D1_before_D2_closed_gate_answers_unknown_numbers(machine: Machine, driver: Driver) -> None:
    reload_with_features(machine, 0)
    assert driver.raw(0x7800).errno == "EOPNOTSUPP"
    assert driver.raw(0xC0E17800, ptr="bad").errno == "EOPNOTSUPP"


def test_D1_gate_is_read_once_at_module_load(machine: Machine, driver: Driver) -> None:
    machine.world("feature", value=0)
    assert driver.export().ok


@pytest.mark.parametrize("bit", range(4))
def test_D1_one_memory_feature_opens_the_gate(machine: Machine, driver: Driver, bit: int) -> None:
    reload_with_features(machine, 1 << bit)
    assert driver.export().ok


def test_D1_other_features_do_not_open_the_gate(machine: Machine, driver: Driver) -> None:
    reload_with_features(machine, 0xFFFF_FFFF_FFFF_FFF0)
    assert driver.export().errno == "EOPNOTSUPP"


@pytest.mark.parametrize(
    "request_number",
    [0x7800, 0x7807, 0xC0E17800, 0x40E07800, 0xC0607800, 0xC0E07808, 0x40387808, 0xC1D87809, 0x5401, 0x40185800, 0],
    ids=hex,
)
@pytest.mark.parametrize("ptr", [None, "bad"])
def test_D2_unknown_number_or_size(driver: Driver, request_number: int, ptr: str | None) -> None:
    assert driver.raw(request_number, ptr=ptr).errno == "ENOTTY"


def test_D2_generic_numbers_never_reach_the_driver(machine: Machine, driver: Driver) -> None:
    reload_with_features(machine, 0)
    fd = driver.open("/dev/obmm").handle
    for request in (0x5451, 0x5450):  # FIOCLEX, FIONCLEX
        assert driver.raw(request, fd=fd).ok


@pytest.mark.parametrize("command", CONTROL)
@pytest.mark.parametrize("ptr", ["null", "bad", "partial"])
def test_D3_argument_not_fully_readable(driver: Driver, command: str, ptr: str) -> None:
    assert driver.ioctl(command, ptr=ptr).errno == "EFAULT"


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("EXPORT", {"size": [PMD], "length": 1}),
        ("IMPORT", {"addr": CC, "length": PMD, "flags": 1, "scna": 0x40A}),
    ],
)
def test_D5_region_stays_when_the_result_cannot_be_copied_back(
    driver: Driver, command: str, args: dict[str, int]
) -> None:
    assert driver.ioctl(command, ptr="readonly", **args).errno == "EFAULT"
    assert driver.text("/sys/devices/obmm/obmm_shmdev1/size") == "0x200000\n"
    assert driver.ioctl(f"UN{command}", mem_id=1).ok


def test_D5_preimport_stays_when_the_result_cannot_be_copied_back(driver: Driver) -> None:
    assert driver.ioctl("DECLARE_PREIMPORT", ptr="readonly", pa=CC, length=128 << 20, scna=0x40A).errno == "EFAULT"
    assert driver.declare().errno == "EEXIST"
    assert driver.undeclare().ok


def test_D5_commands_without_result_write_nothing_back(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    assert driver.ioctl("UNEXPORT", ptr="readonly", mem_id=mem_id).ok


@pytest.mark.parametrize("flags", ["O_RDONLY", "O_WRONLY", "O_RDWR"])
def test_section_2_any_descriptor_mode_is_enough_for_every_command(driver: Driver, flags: str) -> None:
    fd = driver.open("/dev/obmm", flags).handle
    created = driver.ioctl("EXPORT", fd=fd, size=[PMD], length=1)
    assert created.ok
    assert driver.ioctl("UNEXPORT", fd=fd, mem_id=created.mem_id).ok


def test_section_2_control_node_cannot_be_mapped(driver: Driver) -> None:
    fd = driver.open("/dev/obmm").handle
    assert driver.mmap(fd, 4096, "NONE").errno == "ENODEV"


def test_section_6_zero_length_never_dereferences_the_pointer(driver: Driver) -> None:
    assert driver.export(priv="bad", priv_len=0).ok
    assert driver.import_(priv="bad", priv_len=0).ok


def test_section_6_failure_leaves_the_struct_untouched(driver: Driver) -> None:
    """`Driver.do` compares the bytes after every failed call."""
    assert driver.export(flags=4, mem_id=99, uba=98, tokenid=97).errno == "EINVAL"
    assert driver.import_(flags=3, mem_id=99).errno == "EINVAL"


@pytest.mark.parametrize("command", COPIED_BACK)
def test_section_4_request_numbers_carry_the_struct_size(command: str) -> None:
    entry = COMMANDS[command]
    assert entry.request >> 16 & 0x3FFF == entry.size
    assert entry.request >> 30 == 3
