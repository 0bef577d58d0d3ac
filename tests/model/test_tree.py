# SPDX-License-Identifier: Apache-2.0
"""sysfs, procfs and parameters: texts, and what a watcher is told."""

from __future__ import annotations

import errno
import stat
import struct
from pathlib import Path

import pytest

from obmm.emulator.model import Fabric, structs
from obmm.emulator.topology import Topology

from .harness import MIB, PMD, Client, fabric, refusal


class Copy:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}

    def write(self, path: str, data: bytes, mode: int) -> None:
        self.files[path] = data, mode

    def remove(self, path: str) -> None:
        self.files = {p: file for p, file in self.files.items() if p != path and not p.startswith(path + "/")}


@pytest.fixture
def client():
    made = Fabric(Topology.load(Path(__file__).parent / "data" / "transcript-b.toml"))
    yield Client(made.hosts["a"])
    made.close()


def text(client: Client, path: str) -> str:
    return client.host.tree.read(path).decode()


def assert_copy_is_true(client: Client, copy: Copy) -> None:
    assert {path: (make(), mode) for path, (make, mode) in client.host.tree.files()} == copy.files


def test_watcher_keeps_an_exact_copy_through_every_change(client):
    copy = Copy()
    client.host.tree.watch(copy)
    assert_copy_is_true(client, copy)
    mem_id = client.export().mem_id
    assert_copy_is_true(client, copy)
    client.host.chmod(f"/dev/obmm_shmdev{mem_id}", 0o644)
    assert copy.files[f"/dev/obmm_shmdev{mem_id}"] == (f"511:{mem_id}\n".encode(), stat.S_IFCHR | 0o644)
    client.import_(0xA0000000)
    raw = structs.PREIMPORT.store(bytes(80), pa=0xA8000000, length=128 * MIB, scna=0x40A, numa_id=-1)
    client.ioctl(client.control, structs.CMD_DECLARE_PREIMPORT, raw)
    assert_copy_is_true(client, copy)
    client.ioctl(client.control, structs.CMD_UNDECLARE_PREIMPORT, raw)
    client.unexport(mem_id)
    client.unimport(2)
    assert_copy_is_true(client, copy)
    client.control.release()
    client.host.rmmod()
    assert_copy_is_true(client, copy)
    assert not [path for path in copy.files if "obmm" in path]
    client.host.insmod("mempool_size=8M")
    assert_copy_is_true(client, copy)


def test_11_1_export_attributes(client):
    raw = struct.pack("<QQ", PMD, 2 * PMD).ljust(structs.EXPORT.size, b"\0")
    raw = structs.EXPORT.store(raw, length=2, flags=1)
    raw = raw[:172] + bytes(range(1, 17)) + raw[188:]
    client.ioctl(client.control, structs.CMD_EXPORT, raw)
    folder = "/sys/devices/obmm/obmm_shmdev1"
    assert text(client, f"{folder}/size") == "0x600000\n"
    assert text(client, f"{folder}/type") == "export\n"
    assert text(client, f"{folder}/export_info/node_mem_size") == "0x200000,0x400000\n"
    assert text(client, f"{folder}/export_info/uba") == "0xffffff800000\n"
    assert text(client, f"{folder}/export_info/tokenid") == "0x0\n"
    assert text(client, f"{folder}/export_info/memory_from_user") == "0\n"
    assert text(client, f"{folder}/export_info/deid") == "0x100f0e0d0c0b0a09:0x807060504030201\n"
    assert client.host.tree.read(f"{folder}/priv") == bytes(512)
    assert client.host.tree.list("/sys/devices/obmm") == ["module", "obmm_shmdev1", "power", "uevent"]
    assert refusal(lambda: client.host.tree.read(f"{folder}/size", uid=1000)).errno == errno.EACCES
    assert refusal(lambda: client.host.tree.read(f"{folder}/import_info/pa")).errno == errno.ENOENT
    assert client.host.tree.mode(folder) == stat.S_IFDIR | 0o755
    assert client.host.tree.mode(f"{folder}/size") == 0o400


def test_2_every_device_is_found_by_its_numbers(client):
    client.export()
    tree = client.host.tree
    for numbers, device in (("10:122", "virtual/misc/obmm"), ("511:1", "obmm/obmm_shmdev1")):
        assert text(client, f"/sys/dev/char/{numbers}") == f"../../devices/{device}"
        assert text(client, f"/sys/devices/{device}/dev") == f"{numbers}\n"
        assert stat.S_ISLNK(tree.mode(f"/sys/dev/char/{numbers}"))
    assert text(client, "/sys/class/misc/obmm") == "../../devices/virtual/misc/obmm"
    assert text(client, "/sys/devices/obmm/module") == "../../module/obmm"


def test_2_a_device_without_bus_and_class_tells_no_properties(client):
    """So udev rules never run for region nodes; the control node has a class."""
    client.export()
    assert text(client, "/sys/devices/obmm/obmm_shmdev1/uevent") == ""
    assert text(client, "/sys/devices/obmm/uevent") == ""
    assert text(client, "/sys/devices/virtual/misc/obmm/uevent") == "MAJOR=10\nMINOR=122\nDEVNAME=obmm\n"


ATTRIBUTES = {
    "size": 0o400,
    "type": 0o400,
    "priv_len": 0o400,
    "priv": 0o400,
    "allow_mmap": 0o400,
    "dev": 0o444,
    "uevent": 0o644,
    "power/control": 0o644,
}
EXPORT_INFO = ("node_mem_size", "uba", "tokenid", "memory_from_user", "deid")
IMPORT_INFO = ("pa", "scna", "dcna", "seid", "deid")


@pytest.mark.parametrize(("kind", "info"), [("export", EXPORT_INFO), ("import", IMPORT_INFO)])
def test_11_1_a_region_has_these_attributes_with_these_modes_and_no_others(client, kind, info):
    client.export() if kind == "export" else client.import_(0xA0000000)
    folder = "/sys/devices/obmm/obmm_shmdev1/"
    found = {path.removeprefix(folder): mode for path, (_, mode) in client.host.tree.files() if path.startswith(folder)}
    assert found == ATTRIBUTES | {f"{kind}_info/{name}": 0o400 for name in info}


def test_13_1_controllers_as_discovery_reads_them(client):
    folder = "/sys/devices/ub_bus_controller1/00002"
    assert text(client, f"{folder}/primary_cna") == "0x050b\n"
    assert text(client, f"{folder}/eid") == f"{0x50B}\n"
    assert text(client, f"{folder}/ummu_map") == "0x01\n"
    assert text(client, f"{folder}/numa") == "0x02\n"
    assert client.host.tree.list(folder) == ["eid", "numa", "primary_cna", "ubc", "ummu_map"]


def test_11_2_feature_file_exists_when_the_firmware_reports(client):
    assert refusal(lambda: client.host.tree.read("/sys/bus/ub/ub_feature")).errno == errno.ENOENT
    copy = Copy()
    client.host.tree.watch(copy)
    client.host.features = 0x5
    assert copy.files["/sys/bus/ub/ub_feature"][0].splitlines()[0] == b"0x5"
    client.host.features = None
    assert_copy_is_true(client, copy)


def test_10_pool_counters_move_with_time_and_refresh_reports_it():
    now = [100.0]
    made = Fabric(Topology.default(1), clock=lambda: now[0])
    client, copy = Client(made.hosts["a"]), Copy()
    client.host.tree.watch(copy)
    client.export(64 * MIB, flags=3)
    path = "/sys/kernel/obmm_mempool/obmm-0/available_cleared"
    assert copy.files[path][0] == f"{960 * MIB:#x}\n".encode()
    wait = client.host.tree.refresh()
    assert 0 < wait <= 1
    now[0] += wait
    assert client.host.tree.refresh() is None
    assert copy.files[path][0] == f"{1024 * MIB:#x}\n".encode()
    made.close()


def test_10_failed_allocation_pauses_the_refill():
    now = [0.0]
    made = Fabric(Topology.default(1), clock=lambda: now[0])
    client = Client(made.hosts["a"])
    assert refusal(lambda: client.export(2 << 30, flags=3)).errno == errno.ENOMEM
    assert client.host.pool_counters(0)["total"] == 0
    now[0] += 29.9
    assert client.host.pool_counters(0)["total"] == 0
    now[0] += 0.2
    assert client.host.pool_counters(0)["available_cleared"] == 1 << 30
    made.close()


def test_10_clearing_thread_retries_after_ten_seconds():
    now = [0.0]
    made = Fabric(Topology.default(1), clock=lambda: now[0])
    client = Client(made.hosts["a"])
    client.host.faults.clearing_error = 95
    client.export(PMD)
    now[0] += 1
    assert client.host.pool_counters(0)["available_uncleared"] == PMD
    client.host.faults.reset()
    now[0] += 5
    assert client.host.pool_counters(0)["available_uncleared"] == PMD
    now[0] += 5
    assert client.host.pool_counters(0)["available_uncleared"] == 0
    made.close()


def test_12_parameters_show_what_was_given():
    made = fabric(1)
    client = Client(made.hosts["a"])
    assert text(client, "/sys/module/obmm/parameters/mempool_size") == "1G\n"
    assert text(client, "/sys/module/obmm/parameters/mem_allocator_granu") == "2M\n"
    assert text(client, "/sys/module/obmm/parameters/skip_cache_maintain") == "N\n"
    made.close()
