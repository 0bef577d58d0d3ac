# SPDX-License-Identifier: Apache-2.0
"""Sequences that are known to crash hosts, or to corrupt data, are refused with the reason
(driver specification 6, 9.4 and 25)."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import obmm
from obmm import MappingBusyError, ObmmArgumentError, ObmmError, OwnershipError, emulator
from obmm.cli.main import main
from obmm.driver import topology
from obmm.driver.abi import CacheOp, MemAccess

MIB = 1 << 20


@pytest.fixture(scope="module")
def running():
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture
def fabric(running):
    yield running
    for node in running.nodes:
        running.inject(node, "reset")


@pytest.fixture
def a(fabric):
    with obmm.open(fabric.device("a")) as device:
        yield device


@pytest.fixture
def b(fabric, a):
    with obmm.open(fabric.device("b")) as device:
        yield device


def huge_pages() -> int:
    path = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    return int(path.read_text()) if path.exists() else 0


@pytest.fixture
def user_memory(a):
    """Makes such a region; other programs of the machine may have the huge pages."""

    def make(**options):
        try:
            return a.export_user_memory(MIB, accept_host_crash_risk=True, **options)
        except ObmmError as error:
            if error.errno == errno.ENOMEM and "huge pages" in str(error):
                pytest.skip("no free huge page of 2 MiB (vm.nr_hugepages)")
            raise

    return make


# --- removal ----------------------------------------------------------------------------------------------------------


def test_6_5_a_second_removal_after_ENOTRECOVERABLE_never_reaches_the_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with emulator.start(nodes=1) as fabric:
        device = obmm.open(fabric.device())
        region = device.export_region(MIB, label="stuck")
        fabric.inject(0, "ummu-free-error", value="EIO")
        fabric.inject(0, "ummu-map-error", value="EIO")
        with pytest.raises(ObmmError) as caught:
            region.close()
        assert caught.value.errno == errno.ENOTRECOVERABLE
        fabric.inject(0, "reset")
        for _ in range(2):
            with pytest.raises(ObmmArgumentError, match="known to crash hosts") as caught:
                region.close()
            assert caught.value.errno == errno.ENOTRECOVERABLE
        # nor from another process
        code = "import sys, obmm\nobmm.open(sys.argv[1]).driver.unexport(int(sys.argv[2]))"
        other = subprocess.run(
            [sys.executable, "-c", code, fabric.device(), str(region.mem_id)], capture_output=True, text=True
        )
        assert "known to crash hosts" in other.stderr
        assert len(fabric.status()["nodes"]["a"]["regions"]) == 1
        device.close(force=True)  # leaves it there


def test_6_5_nor_does_gc_remove_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    code = """
import sys, obmm
from obmm import emulator
device = obmm.open(sys.argv[1])
region = device.export_region(1 << 20)
print(flush=True); input()
try: region.close()
except obmm.ObmmError as error: print(error.errno, flush=True)
import os; os._exit(0)
"""
    with emulator.start(nodes=1) as fabric:
        child = subprocess.Popen(
            [sys.executable, "-c", code, fabric.device()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        child.stdout.readline()
        fabric.inject(0, "ummu-free-error", value="EIO")
        fabric.inject(0, "ummu-map-error", value="EIO")
        assert child.communicate("\n")[0].strip() == str(errno.ENOTRECOVERABLE)
        fabric.inject(0, "reset")
        result = CliRunner().invoke(
            main, ["gc", "--yes", "--exports", "--force", "--json", "--device", fabric.device()]
        )
        assert result.exit_code == 1
        (row,) = json.loads(result.stdout)["regions"]
        assert "known to crash hosts" in row["error"]
        assert len(fabric.status()["nodes"]["a"]["regions"]) == 1


def test_6_5_what_was_written_is_written_back_before_UNIMPORT_drops_it(a, b, fabric):
    with a.export_region(MIB) as region, b.import_region(region.handle()) as imported:
        mapping = imported.map("rw")
        fabric.inject("b", "flush-error", value="ETIMEDOUT")
        with pytest.raises(ObmmError) as caught:
            mapping.close()
        assert caught.value.errno == errno.ETIMEDOUT
        assert not mapping.closed
        assert mapping.load("u1", 0) == 0
        fabric.inject("b", "reset")
        mapping.close()
        forced = imported.map("rw")
        fabric.inject("b", "flush-error", value="ETIMEDOUT")
        forced.close(force=True)
        assert forced.closed
        fabric.inject("b", "reset")


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [-1, -(1 << 31), 16])
def test_X2_a_negative_pxm_numa_crashed_kernels(a, monkeypatch, node):
    bad = (dataclasses.replace(a.controllers[0], numa=node),)
    monkeypatch.setattr(topology, "controllers", lambda root: bad)
    with pytest.raises(ObmmArgumentError, match="X2"):
        a.export_region(MIB)
    with pytest.raises(ObmmArgumentError, match="X2"):
        a.export_user_memory(MIB, accept_host_crash_risk=True)


@pytest.mark.parametrize("consent", [False, 1, "yes", None])
def test_6_2_user_memory_needs_the_explicit_consent(a, consent):
    with pytest.raises(ObmmArgumentError, match="crashes the host"):
        a.export_user_memory(2 * MIB, accept_host_crash_risk=consent)


def test_6_2_user_memory_is_copied_and_never_handed_out(user_memory, fabric):
    with user_memory(label="mine") as region:
        assert region.length == 2 * MIB
        assert region.write(5, b"hello") == 5
        assert region.read(5, 5) == b"hello"
        attributes = fabric.root("a") / f"sys/devices/obmm/obmm_shmdev{region.mem_id}/export_info/memory_from_user"
        assert attributes.read_text() == "1\n"
        for refused in (region.map, lambda: region.map_bytes("r", 0, 1)):
            with pytest.raises(ObmmArgumentError, match="crashes the host"):
                refused()
        with pytest.raises((TypeError, ObmmArgumentError)):
            memoryview(region)
        with pytest.raises(ObmmArgumentError, match="outside"):
            region.read(region.nbytes, 1)
    with pytest.raises(obmm.ClosedError):
        region.read(0, 1)


def test_6_2_pages_are_given_back_with_the_region(user_memory):
    user_memory().close()
    free = huge_pages()
    for _ in range(3):
        user_memory().close()
    assert huge_pages() >= free


def test_P13_ordinary_pages_are_refused_by_the_driver_with_the_reason(a):
    memory = ctypes.create_string_buffer(b"x" * (4 * MIB))  # pages that are there: what is not is another rule's
    address = (ctypes.addressof(memory) + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
    with pytest.raises(ObmmError, match="hugetlb") as caught:
        a.driver.export_user_memory(
            address, 2 * MIB, pid=0, pxm_numa=0, deid=bytes(16), vendor_info=a.controllers[0].vendor_info(), priv=b""
        )
    assert caught.value.errno == errno.EOPNOTSUPP


# --- mappings ---------------------------------------------------------------------------------------------------------


def test_Q11_noncacheable_after_cacheable_on_one_region(a):
    with a.export_region(MIB) as region:
        region.map("rw", cache="nc").close()
        region.map("rw", cache="cc").close()
        with pytest.raises(ObmmArgumentError, match="Q11"):
            region.map("rw", cache="nc")
        region.map("rw", cache="cc").close()


def test_Q11_writing_the_header_leaves_the_choice(a):
    for cache in ("cc", "nc"):
        with a.export_region(MIB) as region:
            region.map("rw", cache=cache).close()


def test_Q12_ownership_of_a_noncacheable_mapping_is_never_changed(a):
    with a.export_region(MIB) as region, region.map("rw", cache="nc") as mapping:
        for change in (lambda: mapping.acquire("r"), mapping.release, lambda: mapping.acquire("w", -4096, 4096)):
            with pytest.raises(ObmmArgumentError, match="O2"):
                change()


def test_Q13_a_failed_first_mapping_never_changes_the_granularity(a, fabric):
    with a.export_region(16 * MIB, pmd=True, header=False) as region:
        fabric.inject("a", "remap-error", value="ENOMEM")
        with pytest.raises(ObmmError):
            region.map("rw")
        fabric.inject("a", "reset")
        for start, stop in ((0, None), (0, 100), (5 * MIB, 5 * MIB + 1)):
            with region.map("rw", start, stop) as mapping:
                assert mapping.address % (2 * MIB) == 0
                assert mapping.granularity == 2 * MIB


@pytest.mark.parametrize("access", ["x", "rx", "rwx"])
def test_Q14_executable_mappings_do_not_exist(a, access):
    with a.export_region(MIB) as region, pytest.raises(ObmmArgumentError, match="access="):
        region.map(access)


def test_Q14_no_mapping_is_executable(a):
    with a.export_region(MIB) as region, region.map("rw") as mapping:
        line = next(
            line
            for line in Path("/proc/self/maps").read_text().splitlines()
            if int(line.split("-")[0], 16) <= mapping.address < int(line.split("-")[1].split()[0], 16)
        )
        assert line.split()[1] == "rw-s"


def test_Q23_only_normal_memory_and_known_rights_reach_UPDATE_RANGE(a):
    with a.export_region(MIB) as region, region.map("rw") as mapping:
        for right in ("x", "rx", "device", "", "rw"):
            with pytest.raises(ObmmArgumentError, match="O7"):
                mapping.acquire(right)
        for keep in ("w", "x", ""):
            with pytest.raises(ObmmArgumentError, match="O7"):
                mapping.release(keep=keep)


def test_Q26_the_write_right_of_a_mapping_made_for_reading_is_never_raised(a):
    with a.export_region(MIB) as region, region.map("r") as reader, region.map("rw"):
        with pytest.raises(ObmmArgumentError, match="O6"):
            reader.acquire("w")
        with pytest.raises(OwnershipError):
            reader.store("u1", 0, 1)


def test_Q29_mappings_offer_neither_remapping_nor_protection_nor_advice(a):
    with a.export_region(MIB) as region, region.map("rw") as mapping:
        for name in ("resize", "remap", "mremap", "mprotect", "madvise", "flush"):
            assert not hasattr(mapping, name)


def test_J48_ownership_beyond_the_mapping_was_a_null_pointer(a):
    with a.export_region(4 * MIB) as region, region.map("none", 0, MIB) as mapping:
        for start, stop in ((0, 2 * MIB), (-8192, 4096), (MIB, MIB)):
            with pytest.raises(ObmmArgumentError, match=r"O4/O9|O5"):
                mapping.acquire("r", start, stop)


def test_J49_mappings_are_shared(a):
    with a.export_region(MIB) as region, region.map("rw") as one, region.map("r") as two:
        one.store("<u4", 8, 77)
        one.release()
        two.refresh()
        assert two.load("<u4", 8) == 77


def test_J52_a_region_with_users_is_not_removed(a):
    with a.export_region(MIB) as region:
        mapping = region.map("rw")
        view = mapping.view()
        with pytest.raises(MappingBusyError):
            region.close()
        del view


def test_unknown_flags_are_never_passed(a):
    with pytest.raises(TypeError):
        a.export_region(MIB, flags=4)
    with pytest.raises(TypeError):
        a.import_region(None, flags=8)


def test_the_driver_is_only_ever_told_what_the_object_knows(a):
    """UPDATE_RANGE goes through the mapping's own descriptor, with the mapping's own addresses."""
    with a.export_region(MIB) as region, region.map("rw") as mapping:
        seen = []
        original = a.driver.update_range
        a.driver.update_range = lambda fd, start, end, access, op: (
            seen.append((start, end, access, op)) or original(fd, start, end, access, op)
        )
        mapping.release(0, 4096 * 4)
        base = mapping.address - mapping.start
        assert seen == [(base, base + 4096 * 4, MemAccess.NO_ACCESS, CacheOp.INFER)]
        del a.driver.update_range


def test_a_forked_child_cannot_remove_what_the_parent_uses(a):
    with a.export_region(MIB) as region:
        pid = os.fork()
        if pid == 0:
            try:
                region.close()
                a.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        region.map().close()
