# SPDX-License-Identifier: Apache-2.0
"""Lifetimes, the module, its parameters, the pool, sysfs: driver specification 8, 10, 11, 12, 22.4."""

from __future__ import annotations

import pytest

from ..driver import BLOCK, CC, FAST, MIB, NC, PMD, Driver, vendor
from ..machine import Machine

PARAMETERS = "mempool_size=16M mempool_refill_timeout=500"
SYSFS = "/sys/devices/obmm/obmm_shmdev"
MODULE = "/sys/module/obmm/parameters"


def settled(machine: Machine, nid: int, **counters: int) -> dict[str, int]:
    """The pool's counters once they have these values."""
    result = machine.world("pool_wait", nid=nid, **counters)
    assert result["ret"] == 0, result
    return dict(result["out"])


def test_8_not_tied_to_the_descriptor(driver: Driver) -> None:
    fd = driver.open("/dev/obmm").handle
    mem_id = driver.ioctl("EXPORT", fd=fd, size=[PMD], length=1).mem_id
    driver.close(fd)
    assert driver.pa_of(mem_id).ok


def test_8_not_tied_to_the_process(machine: Machine, driver: Driver) -> None:
    other = machine.process("other")
    mem_id = other.export().mem_id
    machine.kill(other)
    assert driver.unexport(mem_id).ok


def test_8_anybody_removes(machine: Machine, driver: Driver) -> None:
    mem_id = driver.export().mem_id
    assert machine.process("other").unexport(mem_id).ok


def test_8_removed_id_is_reused_at_once(driver: Driver) -> None:
    for _ in range(3):
        created = driver.export()
        assert created.mem_id == 1
        assert driver.unexport(1).ok


@pytest.mark.parametrize("what", ["export", "import", "preimport", "descriptor"])
def test_8_module_in_use(machine: Machine, driver: Driver, what: str) -> None:
    undo = {
        "export": lambda: driver.unexport(1),
        "import": lambda: driver.unimport(1),
        "preimport": driver.undeclare,
        "descriptor": lambda: driver.close(opened.handle),
    }
    make = {
        "export": driver.export,
        "import": driver.import_,
        "preimport": driver.declare,
        "descriptor": lambda: driver.open("/dev/obmm"),
    }
    opened = make[what]()
    assert opened.ok
    assert machine.world("rmmod").get("errno") == "EAGAIN"
    assert undo[what]().ok
    assert machine.world("rmmod")["ret"] == 0


def test_8_module_unloaded(machine: Machine, driver: Driver) -> None:
    machine.world("rmmod")
    assert driver.open("/dev/obmm").errno == "ENOENT"
    assert driver.do("listdir", path="/sys/devices/obmm").errno == "ENOENT"
    machine.world("insmod", params=PARAMETERS)
    assert driver.export().mem_id == 1


@pytest.mark.parametrize(
    ("params", "errno"),
    [
        ("mempool_allocator=foo", "EINVAL"),
        ("mem_allocator_granu=3M", "EINVAL"),
        ("mem_allocator_granu=1M", "EINVAL"),
        ("mem_allocator_granu=4M", None),
    ],
)
def test_12_module_parameters(machine: Machine, params: str, errno: str | None) -> None:
    machine.world("rmmod")
    assert machine.world("insmod", params=f"mempool_size=16M {params}").get("errno") == errno


def test_12_defaults(machine: Machine, driver: Driver) -> None:
    machine.world("rmmod")
    machine.world("insmod", params="")
    values = {name: driver.text(f"{MODULE}/{name}") for name in driver.names(MODULE)}
    assert values == {
        "mem_allocator_granu": "2M\n",
        "mempool_allocator": "buddy_highmem\n",
        "mempool_refill_timeout": "30000\n",
        "mempool_size": "1G\n",
        "skip_cache_maintain": "N\n",
    }


def test_10_memseg_is_the_unit_of_exports(machine: Machine, driver: Driver) -> None:
    machine.world("rmmod")
    assert machine.world("insmod", params="mempool_size=16M mem_allocator_granu=4M")["ret"] == 0
    assert driver.export(2 * MIB).errno == "EINVAL"
    assert driver.export(4 * MIB).ok


def test_9_8_skip_cache_maintain(machine: Machine, driver: Driver) -> None:
    machine.world("rmmod")
    machine.world("insmod", params="mempool_size=16M skip_cache_maintain=Y")
    machine.stub("flush_err", 5)
    _, fd = driver.imported()
    mapping = driver.mapped(fd)
    reply = driver.own(fd, mapping, 0xD)
    assert reply.ok
    assert reply.flush == (("DRAIN", 0x40A),)
    machine.stub("drain_state", 0)
    assert driver.own(fd, mapping, 0xD, 2).errno == "ETIMEDOUT"
    machine.stub("reset")


def test_10_pool_fills_each_node_to_its_share(machine: Machine) -> None:
    for nid in (0, 1):
        assert settled(machine, nid, cleared=8 * MIB, uncleared=0) == {
            "total": 8 * MIB,
            "used": 0,
            "available_cleared": 8 * MIB,
            "available_uncleared": 0,
        }


def test_10_pool_is_no_cap(machine: Machine, driver: Driver) -> None:
    assert driver.export(64 * MIB).ok


def test_22_4_fast_export_moves_cleared_to_used(machine: Machine, driver: Driver) -> None:
    settled(machine, 0, cleared=8 * MIB, uncleared=0)
    assert driver.export(4 * MIB, flags=FAST).ok
    assert machine.world("pool", nid=0)["out"]["used"] == 4 * MIB
    after = settled(machine, 0, cleared=8 * MIB, total=12 * MIB)
    assert after["used"] == 4 * MIB


def test_22_4_unexport_shrinks_total_and_used_together(machine: Machine, driver: Driver) -> None:
    settled(machine, 0, cleared=8 * MIB)
    mem_id = driver.export(4 * MIB, flags=FAST).mem_id
    settled(machine, 0, cleared=8 * MIB, total=12 * MIB)
    assert driver.unexport(mem_id).ok
    counters = machine.world("pool", nid=0)["out"]
    assert (counters["total"], counters["used"]) == (8 * MIB, 0)


def test_22_4_failed_export_leaves_used_unchanged(machine: Machine, driver: Driver) -> None:
    settled(machine, 0, cleared=8 * MIB)
    machine.stub("alloc_fail", 1)
    assert driver.export(64 * MIB).errno == "ENOMEM"
    counters = machine.world("pool", nid=0)["out"]
    assert counters["used"] == 0
    assert counters["total"] == counters["available_cleared"] + counters["available_uncleared"]


def test_22_4_total_is_the_sum(machine: Machine, driver: Driver) -> None:
    settled(machine, 0, cleared=8 * MIB)
    driver.export(2 * MIB)
    counters = machine.world("pool", nid=0)["out"]
    parts = ("used", "available_cleared", "available_uncleared")
    assert counters["total"] == sum(counters[name] for name in parts)


def test_10_threads_of_the_pool(machine: Machine) -> None:
    assert machine.world("threads")["out"]["names"] == [
        "clearing-obmm-0",
        "clearing-obmm-1",
        "pooling-obmm-0",
        "pooling-obmm-1",
    ]


def test_2_regions_raise_no_uevents(machine: Machine, driver: Driver) -> None:
    machine.world("uevent_listen")
    assert driver.unexport(driver.export().mem_id).ok
    assert machine.world("uevent_get")["out"]["events"] == []


def test_11_1_export_attributes(driver: Driver) -> None:
    deid = "00000000000000ff0000000000000080"
    created = driver.export([PMD, 2 * PMD], priv_len=3, priv="010203", deid=deid)
    base = f"{SYSFS}{created.mem_id}"
    assert driver.text(f"{base}/size") == "0x600000\n"
    assert driver.text(f"{base}/type") == "export\n"
    assert driver.text(f"{base}/priv_len") == "3\n"
    assert driver.text(f"{base}/allow_mmap") == "1\n"
    assert driver.text(f"{base}/export_info/node_mem_size") == "0x200000,0x400000\n"
    assert driver.text(f"{base}/export_info/uba") == f"{created.uba:#x}\n"
    assert driver.text(f"{base}/export_info/tokenid") == "0x0\n"
    assert driver.text(f"{base}/export_info/memory_from_user") == "0\n"
    assert driver.text(f"{base}/export_info/deid") == "0x8000000000000000:0xff00000000000000\n"
    priv = driver.do("readfile", path=f"{base}/priv", binary=True)
    assert (priv.length, priv.hex_stripped) == (512, "010203")


def test_11_1_mmap_import_attributes(driver: Driver) -> None:
    base = f"{SYSFS}{driver.import_(CC + PMD, 2 * PMD, dcna=0x1234).mem_id}"
    assert driver.text(f"{base}/type") == "import\n"
    assert driver.text(f"{base}/import_info/pa") == "0xa0200000\n"
    assert driver.text(f"{base}/import_info/scna") == "0x40a\n"
    assert driver.text(f"{base}/import_info/dcna") == "0x1234\n"
    assert driver.text(f"{base}/import_info/seid") == "0x0:0x12\n"
    assert driver.text(f"{base}/import_info/deid") == "0x0:0x34\n"
    assert driver.do("readfile", path=f"{base}/import_info/numa_id").errno == "ENOENT"
    assert driver.do("readfile", path=f"{base}/import_info/tokenid").errno == "ENOENT"
    assert driver.names(f"{base}/import_info") == ["dcna", "deid", "pa", "scna", "seid"]


def test_11_1_numa_import_attributes(driver: Driver) -> None:
    base = f"{SYSFS}{driver.import_numa().mem_id}"
    assert driver.text(f"{base}/import_info/numa_id") == "2\n"
    assert driver.text(f"{base}/import_info/preimport") == "0\n"
    assert driver.text(f"{base}/allow_mmap") == "0\n"


def test_11_1_preimport_import_attributes(driver: Driver) -> None:
    driver.declare()
    base = f"{SYSFS}{driver.import_preimport().mem_id}"
    assert driver.text(f"{base}/import_info/preimport") == "1\n"


def test_11_1_zero_entries_below_the_highest_node(driver: Driver) -> None:
    base = f"{SYSFS}{driver.export([0, PMD]).mem_id}"
    assert driver.text(f"{base}/export_info/node_mem_size") == "0x0,0x200000\n"


def test_11_1_attributes_go_with_the_region(driver: Driver) -> None:
    mem_id = driver.export().mem_id
    assert f"obmm_shmdev{mem_id}" in driver.names("/sys/devices/obmm")
    driver.unexport(mem_id)
    assert driver.names("/sys/devices/obmm") == ["module", "power", "uevent"]


def test_11_2_iomem(driver: Driver) -> None:
    driver.import_(CC)
    driver.import_numa(CC + BLOCK)
    driver.declare(CC + 2 * BLOCK)
    driver.import_preimport(CC + 2 * BLOCK)
    assert driver.text("/proc/iomem") == (
        "a0000000-a01fffff : DIRECT_IMPORT_UBMEM\n"
        "  a0000000-a01fffff : MEMID_1\n"
        "a8000000-afffffff : DIRECT_IMPORT_UBMEM\n"
        "  a8000000-afffffff : System RAM (Remote)\n"
        "    a8000000-afffffff : MEMID_2\n"
        "b0000000-b7ffffff : PREIMPORT_UBMEM\n"
        "  b0000000-b7ffffff : System RAM (Remote)\n"
        "    b0000000-b7ffffff : MEMID_3\n"
    )


def test_11_2_mempool_directories(driver: Driver) -> None:
    assert driver.names("/sys/kernel/obmm_mempool") == ["obmm-0", "obmm-1"]


def test_11_2_mempool_files_are_the_counters(machine: Machine, driver: Driver) -> None:
    settled(machine, 0, cleared=8 * MIB, uncleared=0)
    base = "/sys/kernel/obmm_mempool/obmm-0"
    assert driver.text(f"{base}/total") == "0x800000\n"
    assert driver.text(f"{base}/used") == "0x0\n"
    assert driver.text(f"{base}/available_cleared") == "0x800000\n"
    assert driver.text(f"{base}/available_uncleared") == "0x0\n"


def test_13_controllers_in_sysfs(driver_b: Driver) -> None:
    """The files that libobmm reads, in its formats."""
    found = {}
    for entry in driver_b.names("/sys/devices"):
        if entry.startswith("ub_bus_controller"):
            (entity,) = [
                name
                for name in driver_b.names(f"/sys/devices/{entry}")
                if len(name) == 5 and "ubc" in driver_b.names(f"/sys/devices/{entry}/{name}")
            ]
            base = f"/sys/devices/{entry}/{entity}"
            found[driver_b.text(f"{base}/primary_cna")] = (
                driver_b.text(f"{base}/ummu_map"),
                driver_b.text(f"{base}/numa"),
                int(driver_b.text(f"{base}/eid")) > 0,
            )
    assert found == {"0x040a\n": ("0x00\n", "0x00\n", True), "0x050b\n": ("0x01\n", "0x02\n", True)}


def test_15_numa_remote_needs_the_boot_parameter(machine: Machine, driver: Driver) -> None:
    machine.stub("numa_remote", 0)
    assert driver.declare().errno == "EPERM"


def test_18_logical_ummu_takes_empty_vendor_data(driver: Driver) -> None:
    assert driver.export(vendor_len=0).ok
    assert driver.export(vendor_info=vendor(on_chip=0)).ok


def test_14_capability_comes_from_the_window(driver: Driver) -> None:
    assert driver.open(driver.import_(CC).mem_id).ok
    assert driver.open(driver.import_(NC).mem_id).errno == "EPERM"


def test_10_low_memory_gives_the_free_part_back(machine: Machine, driver: Driver) -> None:
    """Reason 2, ordinary reclaim, for the buddy allocator; exports keep theirs, and the refill pauses."""
    settled(machine, 0, cleared=8 * MIB, uncleared=0)
    driver.export(2 * MIB, flags=FAST)
    machine.stub("lowmem", 0, 2)
    counters = machine.world("pool", nid=0)["out"]
    assert counters == {"total": 2 * MIB, "used": 2 * MIB, "available_cleared": 0, "available_uncleared": 0}
    assert machine.world("pool", nid=1)["out"]["total"] == 8 * MIB
    settled(machine, 0, cleared=8 * MIB)


def test_10_low_memory_of_huge_pages_is_not_the_buddy_allocators(machine: Machine) -> None:
    settled(machine, 0, cleared=8 * MIB, uncleared=0)
    machine.stub("lowmem", 0, 3)
    assert machine.world("pool", nid=0)["out"]["total"] == 8 * MIB


def test_10_fast_after_low_memory(machine: Machine, driver: Driver) -> None:
    settled(machine, 0, cleared=8 * MIB, uncleared=0)
    machine.stub("lowmem", 0, 2)
    assert driver.export(flags=FAST).errno == "ENOMEM"
    assert driver.export().ok, "slow exports allocate"


def test_10_clearing_failure_leaves_the_pool_uncleared(machine: Machine, driver: Driver) -> None:
    machine.stub("kt_flush_err", 5)
    machine.world("rmmod")
    machine.world("insmod", params=PARAMETERS)
    settled(machine, 0, total=8 * MIB, uncleared=8 * MIB)
    assert driver.export(flags=FAST).errno == "ENOMEM"
    assert driver.export().ok, "cleared inside the call"


def test_10_fast_takes_what_is_cleared_on_each_node(machine: Machine, driver: Driver) -> None:
    settled(machine, 0, cleared=8 * MIB, uncleared=0)
    settled(machine, 1, cleared=8 * MIB, uncleared=0)
    assert driver.export([8 * MIB, 8 * MIB], flags=FAST).ok
    assert driver.export([8 * MIB, 10 * MIB], flags=FAST).errno == "ENOMEM"


@pytest.mark.parametrize(
    ("params", "percent", "errno"),
    [
        ("mempool_allocator=hugetlb_pmd", 100, None),
        ("mempool_allocator=hugetlb_pmd", 50, "EINVAL"),
        ("mempool_allocator=hugetlb_pmd mem_allocator_granu=4M", 100, "EINVAL"),
        ("mempool_allocator=hugetlb_pud mem_allocator_granu=2M", 100, "EINVAL"),
        ("mempool_allocator=hugetlb_pud mem_allocator_granu=1G", 100, None),
        ("mem_allocator_granu=4194304", 100, None),
        ("mem_allocator_granu=0", 100, "EINVAL"),
        ("skip_cache_maintain=perhaps", 100, "EINVAL"),
    ],
)
def test_12_allocators(machine: Machine, params: str, percent: int, errno: str | None) -> None:
    machine.world("rmmod")
    machine.world("contig_percent", value=percent)
    assert machine.world("insmod", params=f"mempool_size=16M {params}").get("errno") == errno


@pytest.mark.parametrize(("allocator", "text"), [("hugetlb_pmd", "2M\n"), ("hugetlb_pud", "1G\n")])
def test_12_default_memseg_of_the_hugetlb_allocators(
    machine: Machine, driver: Driver, allocator: str, text: str
) -> None:
    machine.world("rmmod")
    machine.world("insmod", params=f"mempool_size=16M mempool_allocator={allocator}")
    assert driver.text(f"{MODULE}/mem_allocator_granu") == text
