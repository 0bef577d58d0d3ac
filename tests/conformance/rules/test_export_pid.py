# SPDX-License-Identifier: Apache-2.0
"""EXPORT_PID: driver specification 6.2, rules P1 to P17."""

from __future__ import annotations

import pytest

from ..driver import ALLOW_MMAP, FAST, PAGE, PMD, Driver
from ..machine import Machine


@pytest.fixture
def huge(driver: Driver) -> str:
    """Two huge pages of the process."""
    driver.do("writefile", path="/proc/sys/vm/nr_hugepages", text="24")
    return driver.hugemap(2 * PMD)


@pytest.mark.parametrize("flags", [4, 8, 1 << 32])
def test_P1_unknown_flags(driver: Driver, huge: str, flags: int) -> None:
    assert driver.export_pid(huge, flags=flags).errno == "EINVAL"


def test_P1_before_P9(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, flags=4, pid=-1).errno == "EINVAL"


@pytest.mark.parametrize("flags", [ALLOW_MMAP, ALLOW_MMAP | FAST])
def test_P2_allow_mmap(driver: Driver, huge: str, flags: int) -> None:
    assert driver.export_pid(huge, flags=flags).errno == "EINVAL"


def test_P2_before_P7(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, flags=ALLOW_MMAP, priv_len=1, priv="bad").errno == "EINVAL"


def test_P3_fast(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, flags=FAST).errno == "EINVAL"


def test_P3_before_P7(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, flags=FAST, priv_len=1, priv="bad").errno == "EINVAL"


def test_P4_length_0(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, 0).errno == "EINVAL"


def test_P4_before_P7(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, 0, priv_len=1, priv="bad").errno == "EINVAL"


@pytest.mark.parametrize("length", [1, PAGE, PMD - 1, PMD + PAGE])
def test_P5_length_is_a_multiple_of_pmd(driver: Driver, huge: str, length: int) -> None:
    assert driver.export_pid(huge, length).errno == "EINVAL"


def test_P5_before_P7(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, PAGE, priv_len=1, priv="bad").errno == "EINVAL"


def test_P7_priv_and_vendor(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, priv_len=513, priv="00" * 513).errno == "EINVAL"
    assert driver.export_pid(huge, priv_len=1, priv="bad").errno == "EFAULT"
    assert driver.export_pid(huge, vendor_len=129, vendor_info="00" * 129).errno == "EINVAL"
    assert driver.export_pid(huge, vendor_len=24, vendor_info="bad").errno == "EFAULT"


def test_P7_priv_before_vendor(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, priv_len=513, vendor_len=1, vendor_info="bad").errno == "EINVAL"


def test_P7_before_P9(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, priv_len=1, priv="bad", pid=-1).errno == "EFAULT"


@pytest.mark.parametrize("pid", [-1, -(1 << 31), 2**31 - 1, 4194304])
def test_P9_no_such_process(driver: Driver, huge: str, pid: int) -> None:
    assert driver.export_pid(huge, pid=pid).errno == "ESRCH"


def test_P9_before_P11(driver: Driver) -> None:
    assert driver.export_pid(None, va=0, pid=-1).errno == "ESRCH"


def test_P9_own_pid_is_the_same_as_0(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, pid="self").ok


def test_P9_another_process(machine: Machine, driver: Driver) -> None:
    """No permission check on the target."""
    other = machine.process("other")
    other.do("writefile", path="/proc/sys/vm/nr_hugepages", text="24")
    place = other.process.perform("where", {"map": other.hugemap()})
    assert driver.export_pid(None, va=place["address"], pid=other.pid).ok


def test_P9_a_process_that_never_used_the_driver(machine: Machine, driver: Driver) -> None:
    """It is found, and judged by its pages: ordinary ones."""
    other = machine.process("other")
    assert other.process.perform("hugemap", {"map": "own", "length": PMD, "huge": False}) == {"ret": 0}
    place = other.process.perform("where", {"map": "own"})
    assert driver.export_pid(None, va=place["address"], pid=other.pid).errno == "EOPNOTSUPP"
    assert driver.export_pid(None, va=0, pid=other.pid).errno == "EFAULT"


@pytest.mark.parametrize("va", [0, 4096, 0xFFFF_0000_0000_0000])
def test_P11_nothing_there(driver: Driver, va: int) -> None:
    assert driver.export_pid(None, va=va).errno == "EFAULT"


def test_P11_pinned_for_write(driver: Driver, huge: str) -> None:
    assert driver.do("mprotect", map=huge, prot="R", off=0, length=PMD).ok
    assert driver.export_pid(huge).errno == "EFAULT"


def test_P11_before_P13(driver: Driver) -> None:
    assert driver.export_pid(None, va=0, pxm_numa=-1).errno == "EFAULT"


def test_P12_only_a_part_is_there(driver: Driver, huge: str) -> None:
    assert driver.munmap(huge, PMD, PMD).ok
    assert driver.export_pid(huge, 2 * PMD).errno == "ENOMEM"


def test_P13_ordinary_memory(driver: Driver) -> None:
    assert driver.export_pid(driver.hugemap(huge=False)).errno == "EOPNOTSUPP"


@pytest.mark.parametrize("pxm_numa", [-1, 17, 2**31 - 1])
def test_P13_pxm_numa_out_of_range(driver: Driver, huge: str, pxm_numa: int) -> None:
    assert driver.export_pid(huge, pxm_numa=pxm_numa).errno == "EOPNOTSUPP"


def test_P13_before_P16(machine: Machine, driver: Driver) -> None:
    mapping = driver.hugemap(huge=False)
    machine.stub("flush_err", 5)
    assert driver.export_pid(mapping).errno == "EOPNOTSUPP"


@pytest.mark.parametrize(("injected", "seen"), [(95, "EOPNOTSUPP"), (5, "EIO")])
def test_P16_cache_flush_fails(machine: Machine, driver: Driver, huge: str, injected: int, seen: str) -> None:
    machine.stub("flush_err", injected)
    assert driver.export_pid(huge).errno == seen
    machine.stub("reset")
    assert driver.export_pid(huge).mem_id == 1


def test_P16_linear_mapping_fails(machine: Machine, driver: Driver, huge: str) -> None:
    machine.stub("lin_err", 12)
    assert driver.export_pid(huge).errno == "ENOMEM"


def test_P16_before_P17(machine: Machine, driver: Driver, huge: str) -> None:
    machine.stub("flush_err", 5)
    assert driver.export_pid(huge, vendor_len=8, vendor_info="00" * 8).errno == "EIO"


def test_P17_no_ummu(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, vendor_len=8, vendor_info="00" * 8).errno == "EPERM"


def test_P17_mapping_fails(machine: Machine, driver: Driver, huge: str) -> None:
    machine.stub("map_err", 12)
    assert driver.export_pid(huge).errno == "ENOMEM"


def test_6_2_pages_stay_pinned_until_unexport(driver: Driver, huge: str) -> None:
    assert driver.do("vmpin").VmPin_kB == 0
    mem_id = driver.export_pid(huge, 2 * PMD).mem_id
    assert driver.do("vmpin").VmPin_kB == 4096
    assert driver.unexport(mem_id).ok
    assert driver.do("vmpin").VmPin_kB == 0


def test_6_2_region_survives_its_process(machine: Machine, driver: Driver) -> None:
    other = machine.process("other")
    other.do("writefile", path="/proc/sys/vm/nr_hugepages", text="24")
    mem_id = other.export_pid(other.hugemap()).mem_id
    machine.kill(other)
    assert driver.pa_of(mem_id).ok
    assert driver.unexport(mem_id).ok


def test_6_2_content_is_not_cleared(driver: Driver, huge: str) -> None:
    driver.store(huge, 64, 0x77)
    mem_id = driver.export_pid(huge).mem_id
    assert driver.unexport(mem_id).ok
    assert driver.load(huge, 64).value == 0x77


def test_6_2_sysfs_says_so(driver: Driver, huge: str) -> None:
    mem_id = driver.export_pid(huge, 2 * PMD).mem_id
    base = f"/sys/devices/obmm/obmm_shmdev{mem_id}"
    assert driver.text(f"{base}/export_info/memory_from_user") == "1\n"
    assert driver.text(f"{base}/size") == "0x400000\n"
    assert driver.text(f"{base}/allow_mmap") == "0\n"


def test_6_2_whole_range_is_flushed(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, 2 * PMD).flush == (("WB_INVAL", 0, 2 * PMD),)


def test_6_9_allowed_flags_of_export_pid(driver: Driver, huge: str) -> None:
    assert driver.export_pid(huge, flags=0).ok
