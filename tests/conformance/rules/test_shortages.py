# SPDX-License-Identifier: Apache-2.0
"""Rules that need a kernel short of memory or of ids: injected, because nothing else reaches them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..driver import BLOCK, CC, PMD, Driver, Reply
from ..machine import Machine


def huge(driver: Driver) -> str:
    driver.do("writefile", path="/proc/sys/vm/nr_hugepages", text="24")
    return driver.hugemap()


def test_X6_no_memory_for_the_region(machine: Machine, driver: Driver) -> None:
    machine.fault("no-memory", 1)
    assert driver.export().errno == "ENOMEM"


def test_X5_before_X6(machine: Machine, driver: Driver) -> None:
    machine.fault("no-memory", 1)
    assert driver.export(pxm_numa=9).errno == "EINVAL"


def test_X6_before_X7(machine: Machine, driver: Driver) -> None:
    machine.fault("no-memory", 1)
    assert driver.export(flags=4).errno == "ENOMEM"


def test_X10_no_free_id(machine: Machine, driver: Driver) -> None:
    machine.fault("no-ids", 1)
    assert driver.export().errno == "ENOSPC"


def test_X9_before_X10(machine: Machine, driver: Driver) -> None:
    machine.fault("no-ids", 1)
    assert driver.export(vendor_len=24, vendor_info="bad").errno == "EFAULT"


def test_X10_before_X12(machine: Machine, driver: Driver) -> None:
    machine.fault("no-ids", 1)
    machine.stub("alloc_fail", 1)
    assert driver.export(32 * PMD).errno == "ENOSPC"


def test_P6_no_memory_for_the_region(machine: Machine, driver: Driver) -> None:
    mapping = huge(driver)
    machine.fault("no-memory", 1)
    assert driver.export_pid(mapping).errno == "ENOMEM"


def test_P5_before_P6(machine: Machine, driver: Driver) -> None:
    machine.fault("no-memory", 1)
    assert driver.export_pid(None, 4096, va=0).errno == "EINVAL"


def test_P8_no_free_id(machine: Machine, driver: Driver) -> None:
    mapping = huge(driver)
    machine.fault("no-ids", 1)
    assert driver.export_pid(mapping).errno == "ENOSPC"


def test_P8_before_P9(machine: Machine, driver: Driver) -> None:
    machine.fault("no-ids", 1)
    assert driver.export_pid(None, va=0, pid=-1).errno == "ENOSPC"


def test_I1_no_memory(machine: Machine, driver: Driver) -> None:
    machine.fault("no-memory", 1)
    assert driver.import_().errno == "ENOMEM"


def test_I1_before_I2(machine: Machine, driver: Driver) -> None:
    machine.fault("no-memory", 1)
    assert driver.import_(flags=8).errno == "ENOMEM"


def test_I11_no_free_id(machine: Machine, driver: Driver) -> None:
    machine.fault("no-ids", 1)
    assert driver.import_().errno == "ENOSPC"


def test_I10_before_I11(machine: Machine, driver: Driver) -> None:
    machine.fault("no-ids", 1)
    assert driver.import_numa(base_dist=5).errno == "EINVAL"


def test_I11_before_I12(machine: Machine, driver: Driver) -> None:
    machine.fault("no-ids", 1)
    assert driver.import_(scna=1).errno == "ENOSPC"


def test_R11_no_memory(machine: Machine, driver: Driver) -> None:
    machine.fault("no-memory", 1)
    assert driver.declare().errno == "ENOMEM"


def test_R10_before_R11(machine: Machine, driver: Driver) -> None:
    assert driver.import_().ok
    machine.fault("no-memory", 1)
    assert driver.declare().errno == "EEXIST"


@pytest.fixture
def declaring(machine: Machine, driver: Driver) -> Driver:
    """A second process while DECLARE_PREIMPORT of the first waits for the memory's hot-plug."""
    other = machine.process("other")
    machine.stub("add_sleep", 1500)
    args = {"pa": CC, "length": BLOCK, "scna": 0x40A, "dcna": 0x77, "seid": 0x12, "deid": 0x34}
    driver.process.start("ioctl DECLARE_PREIMPORT", {"args": args})
    # EFAULT (V2) until the range is known
    for _ in range(100_000):
        if other.undeclare().errno == "EAGAIN":
            break
    machine.stub("add_sleep", 0)
    return other


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda d: d.undeclare(), id="V4"),
        pytest.param(lambda d: d.undeclare(CC, 2 * BLOCK), id="V4 before V5"),
        pytest.param(lambda d: d.import_preimport(), id="I18"),
        pytest.param(lambda d: d.import_preimport(dcna=1), id="I18 before I19"),
    ],
)
def test_I18_V4_preimport_being_created(driver: Driver, declaring: Driver, call: Callable[[Driver], Reply]) -> None:
    assert call(declaring).errno == "EAGAIN"
    assert driver.process.join()["ret"] == 0
    assert call(declaring).errno != "EAGAIN"


def test_V1_before_V4(driver: Driver, declaring: Driver) -> None:
    assert declaring.undeclare(flags=1).errno == "EINVAL"
    assert driver.process.join()["ret"] == 0


def test_I13_range_of_a_preimport_being_created(driver: Driver, declaring: Driver) -> None:
    assert declaring.import_().errno == "EEXIST"
    assert declaring.declare().errno == "EEXIST"
    assert driver.process.join()["ret"] == 0
