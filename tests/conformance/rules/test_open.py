# SPDX-License-Identifier: Apache-2.0
"""open of the device nodes: driver specification 2 and 9.1, in its order OPEN1 to OPEN4."""

from __future__ import annotations

import pytest

from ..driver import CC, NC, Driver
from ..machine import Machine


def test_OPEN1_no_such_region(driver: Driver) -> None:
    assert driver.open(1).errno == "ENOENT"
    mem_id = driver.export().mem_id
    assert driver.unexport(mem_id).ok
    assert driver.open(mem_id).errno == "ENOENT"


def test_OPEN1_permission(machine: Machine, driver: Driver) -> None:
    """Nodes are root's, mode 0600."""
    mem_id = driver.export().mem_id
    user = machine.process("user")
    if not user.do("setuid", uid=1000).ok:
        pytest.skip("only root can become another user")
    assert user.open("/dev/obmm", "O_RDONLY").errno == "EACCES"
    assert user.open(mem_id, "O_RDONLY").errno == "EACCES"


def test_OPEN2_cacheable_open_of_an_nc_import(driver: Driver) -> None:
    assert driver.open(driver.import_(NC).mem_id, "O_RDONLY").errno == "EPERM"


@pytest.mark.parametrize("flags", ["O_RDWR|O_SYNC", "O_RDWR|O_DSYNC", "O_RDONLY|O_DSYNC"])
def test_OPEN3_noncacheable_open_of_a_cc_import(driver: Driver, flags: str) -> None:
    """O_DSYNC alone selects the non-cacheable mode as well."""
    assert driver.open(driver.import_(CC).mem_id, flags).errno == "EPERM"


@pytest.mark.parametrize("flags", ["O_RDWR|O_SYNC", "O_RDONLY|O_DSYNC"])
def test_OPEN3_o_dsync_opens_an_nc_import(driver: Driver, flags: str) -> None:
    assert driver.open(driver.import_(NC).mem_id, flags).ok


@pytest.mark.parametrize("flags", ["O_RDWR", "O_RDWR|O_SYNC", "O_RDONLY"])
def test_OPEN2_OPEN3_export_of_a_process_never_opens(driver: Driver, flags: str) -> None:
    driver.do("writefile", path="/proc/sys/vm/nr_hugepages", text="24")
    mem_id = driver.export_pid(driver.hugemap()).mem_id
    assert driver.open(mem_id, flags).errno == "EPERM"


def test_OPEN4_region_being_destroyed(machine: Machine, driver: Driver) -> None:
    """EAGAIN, and the capability is tested first."""
    mem_id = driver.import_().mem_id
    other = machine.process("other")
    machine.stub("flush_sleep", 600)
    driver.process.start("ioctl UNIMPORT", {"args": {"mem_id": mem_id}})
    try:
        # until the other process is inside its call; a query holds no descriptor that would make the region busy
        assert any(other.pa_of(mem_id).errno == "ENOENT" for _ in range(100_000))
        assert other.open(mem_id).errno == "EAGAIN"
        assert other.open(mem_id, "O_RDWR|O_SYNC").errno == "EPERM"
        assert other.pa_of(mem_id).errno == "ENOENT"
        assert other.unimport(mem_id).errno == "EBUSY"
        assert other.import_().errno == "EEXIST"
    finally:
        driver.process.join()
    machine.stub("reset")


@pytest.mark.parametrize("flags", ["O_RDONLY", "O_WRONLY", "O_RDWR"])
@pytest.mark.parametrize("sync", ["", "|O_SYNC"])
def test_9_1_all_modes_open(driver: Driver, flags: str, sync: str) -> None:
    assert driver.open(driver.export().mem_id, flags + sync).ok


def test_9_1_any_number_of_opens(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    assert all(driver.open(mem_id).ok for _ in range(50))


def test_9_1_allow_mmap_is_not_looked_at(driver: Driver) -> None:
    assert driver.open(driver.export(flags=0).mem_id).ok


def test_9_1_o_direct(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    assert driver.open(mem_id, "O_RDWR|O_DIRECT").errno == "EINVAL"
    assert driver.unexport(mem_id).ok


def test_9_2_other_ioctls_on_a_region_node(driver: Driver) -> None:
    _, fd = driver.exported()
    for command in ("EXPORT", "IMPORT", "UNEXPORT", "ADDR_QUERY"):
        assert driver.ioctl(command, fd=fd).errno == "ENOTTY"
    assert driver.raw(0xC0185800, fd=fd).errno == "ENOTTY"
    assert driver.raw(0x5800, fd=fd).errno == "ENOTTY"


def test_4_update_range_on_the_control_node(driver: Driver) -> None:
    fd = driver.open("/dev/obmm").handle
    assert driver.ioctl("UPDATE_RANGE", fd=fd, start=0, end=4096, mem_state=1, cache_ops=0).errno == "ENOTTY"
