# SPDX-License-Identifier: Apache-2.0
"""The emulator's own contract: driver specification 22.3, on the default topology."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from obmm.emulator.model.calls import KernelError
from obmm.emulator.model.fabric import Fabric
from obmm.emulator.topology import GIB, MIB, Topology

from ..driver import CC, PMD, Driver
from ..machine import Machine


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    fabric = Fabric(Topology.default(2))
    yield fabric
    fabric.close()


def test_22_3_rule_3_default_topology() -> None:
    """One package, one node, one controller, one CC and one NC window above DRAM, memseg 2 MiB, pool 1 GiB."""
    (host,) = Topology.default(1).hosts
    (node,) = host.nodes
    (controller,) = host.controllers
    assert (node.id, node.package) == (0, 0)
    assert controller.cna != 0
    assert any(controller.eid)
    assert sorted(window.kind for window in controller.windows) == ["CC", "NC"]
    assert (host.memseg, host.mempool_size) == (2 * MIB, GIB)


def test_22_3_rule_3_hosts_differ_in_cna_and_eid() -> None:
    first, second = (host.controllers[0] for host in Topology.default(2).hosts)
    assert first.cna != second.cna
    assert first.eid != second.eid


def test_22_3_rule_2_program_gives_an_aligned_address_in_a_window(fabric: Fabric) -> None:
    host = fabric.hosts["b"]
    owner = fabric.topology.hosts[0].controllers[0]
    (window,) = [w for w in host.spec.controllers[0].windows if w.kind == "CC"]
    address = host.program(owner.cna, 0, 0xFFFF_FFE0_0000, PMD, "CC")
    assert address % PMD == 0
    assert window.base <= address
    assert address + PMD <= window.base + window.size


def test_22_3_rule_2_program_refuses_what_overlaps(fabric: Fabric) -> None:
    host = fabric.hosts["b"]
    address = host.program(0x40A, 0, 0xFFFF_FFE0_0000, PMD, "CC")
    with pytest.raises(KernelError, match="EEXIST"):
        host.program(0x40A, 0, 0xFFFF_FFE0_0000, PMD, "CC", address=address)


def test_22_3_rule_2_import_never_looks_at_the_decoder(driver: Driver) -> None:
    """An unprogrammed range fails only on access."""
    _, fd = driver.imported(0x50_0000_0000)
    assert driver.load(driver.mapped(fd)).signal == "SIGBUS"


def test_22_3_rule_4_lowest_free_numbers(driver: Driver) -> None:
    first = driver.export()
    assert (first.mem_id, first.tokenid) == (1, 0)


def test_22_3_rule_5_export_memory_is_not_contiguous(driver: Driver) -> None:
    """By default, so that wrong assumptions show."""
    mem_id = driver.export(8 * PMD).mem_id
    bases = [driver.pa_of(mem_id, offset).pa for offset in range(0, 8 * PMD, PMD)]
    assert any(later - earlier != PMD for earlier, later in itertools.pairwise(bases))


def test_22_3_rule_6_memory_of_a_removed_region_is_unreachable(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    pa = driver.pa_of(mem_id).pa
    assert driver.unexport(mem_id).ok
    assert driver.id_of(pa).errno == "ENOENT"


def test_22_3_rule_8_regions_survive_and_descriptors_go(machine: Machine, driver: Driver) -> None:
    other = machine.process("other")
    mem_id, fd = other.exported()
    other.mapped(fd)
    machine.kill(other)
    assert driver.unexport(mem_id).ok


@pytest.mark.parametrize(
    ("stub", "call", "errno"),
    [
        (("tdev_fail", 1), "export", "EPERM"),
        (("alloc_fail", 1), "big_export", "ENOMEM"),
        (("flush_err", 95), "big_export", "ENOMEM"),
        (("flush_err", 95), "release", "EOPNOTSUPP"),
        (("numa_remote", 0), "numa", "EPERM"),
    ],
)
def test_22_3_rule_9_switchable_refusals(
    machine: Machine, driver: Driver, stub: tuple[str, int], call: str, errno: str
) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd)
    calls = {
        "export": driver.export,
        "big_export": lambda: driver.export(64 * MIB),
        "release": lambda: driver.own(fd, mapping, 0xD),
        "numa": driver.import_numa,
    }
    machine.stub(*stub)
    assert calls[call]().errno == errno
    machine.stub("reset")


def test_22_3_rule_9_missing_module(machine: Machine, driver: Driver) -> None:
    machine.world("rmmod")
    assert driver.open("/dev/obmm").errno == "ENOENT"


def test_22_3_rule_10_capability_comes_from_the_window(driver: Driver) -> None:
    mem_id = driver.import_(CC).mem_id
    assert driver.open(mem_id, "O_RDWR|O_SYNC").errno == "EPERM"


def test_22_3_rule_11_a_hole_in_the_callers_mappings(driver: Driver) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.munmap(mapping, 4096, 4096)
    assert driver.own(fd, mapping, 0x1).errno == "EFAULT"


def test_22_3_rule_11_the_mode_of_the_ioctls_descriptor(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    assert driver.own(driver.open(mem_id, "O_RDONLY").handle, mapping, 0x9).errno == "EPERM"
