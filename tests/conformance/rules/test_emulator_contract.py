# SPDX-License-Identifier: Apache-2.0
"""The emulator's own contract: driver specification 22.3, on the default topology."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from obmm import emulator
from obmm.emulator.model.calls import KernelError
from obmm.emulator.model.fabric import Fabric
from obmm.emulator.topology import GIB, MIB, Topology

from ..driver import CC, PMD, Driver, Reply
from ..machine import Machine
from ..replay.native_process import Nursery
from ..replay.native_system import build_probe
from ..replay.port import Account


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


class TwoNodes:
    """A running fabric and one process on each node."""

    world_operations: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        self.fabric = emulator.start(nodes=2)
        self._nursery = Nursery()
        probe = str(build_probe(folder))
        self._processes = [
            self._nursery.spawn({"probe": probe, "table": {"socket": self.fabric.socket, "node": node}})
            for node in self.fabric.nodes
        ]
        self.a, self.b = (Driver(self, process) for process in self._processes)  # type: ignore[arg-type]

    def account(self) -> Account:
        return Account()

    def augment(self, process: object, op: str, given: object, result: dict[str, Any]) -> dict[str, Any]:
        return result

    def import_of(self, exported: Reply, length: int = PMD, cache: str = "cc") -> Reply:
        """Node b's import of node a's region, after the decoder was programmed."""
        owner, local = (host.controllers[0] for host in Topology.default(2).hosts)
        address = self.fabric.program_window(
            "b",
            owner_cna=owner.cna,
            owner_eid=owner.eid,
            tokenid=exported.tokenid,
            uba=exported.uba,
            length=length,
            cache=cache,  # type: ignore[arg-type]
        )
        return self.b.import_(address, length, scna=local.cna, dcna=owner.cna)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self._nursery.close()
        self.fabric.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    nodes = TwoNodes(tmp_path)
    yield nodes
    nodes.close()


def test_22_3_rule_7_exporter_gone_under_a_live_importer(nodes: TwoNodes) -> None:
    """UNEXPORT succeeds; the importer's next access is a hardware error."""
    exported = nodes.a.export()
    fd = nodes.a.open(exported.mem_id).handle
    ours = nodes.a.mapped(fd)
    imported = nodes.import_of(exported)
    theirs = nodes.b.mapped(nodes.b.open(imported.mem_id).handle)
    nodes.a.store(ours, 64, 0xBEEF)
    assert nodes.b.load(theirs, 64).value == 0xBEEF
    nodes.a.munmap(ours)
    nodes.a.close(fd)
    assert nodes.a.unexport(exported.mem_id).ok
    assert nodes.b.load(theirs, 64).signal == "SIGBUS"


def test_22_3_rule_7_importer_still_removes_its_region(nodes: TwoNodes) -> None:
    exported = nodes.a.export()
    imported = nodes.import_of(exported)
    assert nodes.a.unexport(exported.mem_id).ok
    assert nodes.b.unimport(imported.mem_id).ok


def test_22_3_rule_6_next_export_is_not_seen_through_an_old_window(nodes: TwoNodes) -> None:
    """Token and uba are reused at once; a mapping of the old region must not show the new one's memory."""
    exported = nodes.a.export()
    imported = nodes.import_of(exported)
    old = nodes.b.mapped(nodes.b.open(imported.mem_id).handle)
    assert nodes.a.unexport(exported.mem_id).ok
    again = nodes.a.export()
    assert (again.tokenid, again.uba) == (exported.tokenid, exported.uba)
    fd = nodes.a.open(again.mem_id).handle
    nodes.a.store(nodes.a.mapped(fd), 0, 0x5EC12E7)
    assert nodes.b.load(old).signal == "SIGBUS"
