# SPDX-License-Identifier: Apache-2.0
"""mmap and munmap of regions: driver specification 9.3 and 9.5, rules M1 to M14."""

from __future__ import annotations

import pytest

from ..driver import BIT63, CC, INFER, NC, NONE, PAGE, PMD, READ, Driver
from ..machine import Machine


def test_M1_length_0(driver: Driver) -> None:
    _, fd = driver.exported()
    assert driver.mmap(fd, 0).errno == "EINVAL"


@pytest.mark.parametrize("offset", [1, 2048, 4095, PAGE + 1, BIT63 + 1])
def test_M1_offset_is_page_aligned(driver: Driver, offset: int) -> None:
    _, fd = driver.exported()
    assert driver.mmap(fd, PAGE, offset=offset).errno == "EINVAL"


def test_M1_before_M3(driver: Driver) -> None:
    _, fd = driver.exported(flags="O_WRONLY")
    assert driver.mmap(fd, PAGE, offset=1).errno == "EINVAL"


def test_M2_offset_and_length_overflow(driver: Driver) -> None:
    _, fd = driver.exported()
    assert driver.mmap(fd, 2 * PAGE, offset=(1 << 64) - PAGE).errno == "EOVERFLOW"


def test_M2_no_room_in_the_address_space(driver: Driver) -> None:
    _, fd = driver.exported()
    assert driver.mmap(fd, 1 << 50).errno == "ENOMEM"


@pytest.mark.parametrize(("flags", "prot"), [("O_RDONLY", "RW"), ("O_RDONLY", "W"), ("O_WRONLY", "R")])
def test_M3_protection_against_the_mode(driver: Driver, flags: str, prot: str) -> None:
    _, fd = driver.exported(flags=flags)
    assert driver.mmap(fd, PMD, prot).errno == "EACCES"


@pytest.mark.parametrize("prot", ["NONE", "R", "W", "RW"])
def test_M3_write_only_descriptor_maps_nothing(driver: Driver, prot: str) -> None:
    _, fd = driver.exported(flags="O_WRONLY")
    assert driver.mmap(fd, PMD, prot).errno == "EACCES"


def test_M3_before_M6(driver: Driver) -> None:
    mem_id = driver.export(flags=0).mem_id
    fd = driver.open(mem_id, "O_RDONLY").handle
    assert driver.mmap(fd, PMD, "RW").errno == "EACCES"


@pytest.mark.parametrize("prot", ["RX", "X"])
def test_M4_dev_mounted_noexec(machine: Machine, driver: Driver, prot: str) -> None:
    _, fd = driver.exported()
    machine.world("remount_dev", noexec=True)
    assert driver.mmap(fd, PMD, prot).errno == "EPERM"
    assert driver.mmap(fd, PMD, "RW").ok


def test_M4_before_M5(machine: Machine, driver: Driver) -> None:
    _, fd = driver.exported()
    machine.world("remount_dev", noexec=True)
    assert driver.mmap(fd, PMD, "RX", flags="PRIVATE").errno == "EPERM"


def test_M5_private_mapping(driver: Driver) -> None:
    _, fd = driver.exported()
    assert driver.mmap(fd, flags="PRIVATE").errno == "EINVAL"


def test_M5_before_M6(driver: Driver) -> None:
    fd = driver.open(driver.export(flags=0).mem_id).handle
    assert driver.mmap(fd, flags="PRIVATE").errno == "EINVAL"


def test_M5_private_on_a_read_only_descriptor_is_not_M3(driver: Driver) -> None:
    _, fd = driver.exported(flags="O_RDONLY")
    assert driver.mmap(fd, PMD, "RW", flags="PRIVATE").errno == "EINVAL"


def test_M6_plain_export(driver: Driver) -> None:
    fd = driver.open(driver.export(flags=0).mem_id).handle
    assert driver.mmap(fd).errno == "EPERM"


def test_M6_numa_import(driver: Driver) -> None:
    fd = driver.open(driver.import_numa().mem_id).handle
    assert driver.mmap(fd).errno == "EPERM"


def test_M6_before_M8(driver: Driver) -> None:
    fd = driver.open(driver.export(flags=0).mem_id).handle
    assert driver.mmap(fd, PAGE, offset=BIT63).errno == "EPERM"


@pytest.mark.parametrize("flags", ["O_RDONLY", "O_RDONLY|O_SYNC"])
def test_M7_read_only_descriptor_never_gives_a_writable_mapping(driver: Driver, flags: str) -> None:
    """M3 catches every way to reach M7 through mmap; what remains is that no write right appears."""
    _, fd = driver.exported(flags=flags)
    mapping = driver.mapped(fd, PMD, "R")
    assert driver.store(mapping).signal == "SIGSEGV"


@pytest.mark.parametrize("length", [PAGE, PMD - PAGE, PMD + PAGE])
def test_M8_block_mapping_has_whole_blocks(driver: Driver, length: int) -> None:
    _, fd = driver.exported(2 * PMD)
    assert driver.mmap(fd, length, offset=BIT63).errno == "EINVAL"


def test_M8_fixed_address_is_block_aligned(driver: Driver) -> None:
    _, fd = driver.exported()
    area = driver.reserve(4 * PMD)
    assert driver.mmap(fd, PMD, offset=BIT63, flags="SHARED|FIXED", at=(area, PAGE)).errno == "EINVAL"
    assert driver.mmap(fd, PMD, offset=BIT63, flags="SHARED|FIXED", at=(area, PMD)).ok


def test_M8_before_M10(driver: Driver) -> None:
    _, fd = driver.exported(2 * PMD)
    driver.mapped(fd, PAGE)
    assert driver.mmap(fd, PAGE, offset=BIT63).errno == "EINVAL"


@pytest.mark.parametrize("offset", [PAGE, PMD - PAGE, PMD + PAGE])
def test_M9_block_mapping_starts_at_a_block(driver: Driver, offset: int) -> None:
    _, fd = driver.exported(4 * PMD)
    assert driver.mmap(fd, PMD, offset=BIT63 + offset).errno == "EINVAL"


def test_M9_before_M10(driver: Driver) -> None:
    _, fd = driver.exported(4 * PMD)
    driver.mapped(fd, PAGE)
    assert driver.mmap(fd, PMD, offset=BIT63 + PAGE).errno == "EINVAL"


@pytest.mark.parametrize(("first", "second"), [(0, BIT63), (BIT63, 0)])
def test_M10_granularity_is_sticky(driver: Driver, first: int, second: int) -> None:
    """Even after every mapping is gone."""
    _, fd = driver.exported()
    mapping = driver.mapped(fd, PMD, offset=first)
    assert driver.mmap(fd, PMD, offset=second).errno == "EPERM"
    driver.munmap(mapping)
    assert driver.mmap(fd, PMD, offset=second).errno == "EPERM"
    assert driver.mmap(fd, PMD, offset=first).ok


def test_M10_across_processes(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    driver.mapped(fd, PAGE)
    other = machine.process("other")
    assert other.mmap(other.open(mem_id).handle, PMD, offset=BIT63).errno == "EPERM"


def test_M10_failed_first_mapping_decides_nothing(driver: Driver) -> None:
    _, fd = driver.exported()
    assert driver.mmap(fd, 2 * PMD).errno == "EINVAL"
    assert driver.mmap(fd, PMD, offset=BIT63).ok


def test_M10_is_per_region(driver: Driver) -> None:
    _, first = driver.exported()
    _, second = driver.exported()
    driver.mapped(first, PAGE)
    assert driver.mmap(second, PMD, offset=BIT63).ok


def test_M10_before_M11(driver: Driver) -> None:
    _, fd = driver.exported()
    driver.mapped(fd, PAGE)
    assert driver.mmap(fd, 2 * PMD, offset=BIT63).errno == "EPERM"


def test_M10_before_M12(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    driver.mapped(fd, PAGE)
    nc = driver.open(mem_id, "O_RDWR|O_SYNC").handle
    assert driver.mmap(nc, PMD, offset=BIT63).errno == "EPERM"


@pytest.mark.parametrize(
    ("offset", "length"),
    [(PMD, PAGE), (2 * PMD, PMD), (0, PMD + 1), (PMD - PAGE, 2 * PAGE), (BIT63 + PMD, PMD), (PAGE, PMD)],
)
def test_M11_past_the_end(driver: Driver, offset: int, length: int) -> None:
    _, fd = driver.exported(PMD)
    assert driver.mmap(fd, length, offset=offset).errno == "EINVAL"


def test_M11_length_is_rounded_up_to_pages(driver: Driver) -> None:
    _, fd = driver.exported(PMD)
    assert driver.mmap(fd, PMD - 1).ok
    assert driver.mmap(fd, 1, offset=PMD - PAGE).ok


def test_M11_before_M12(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    driver.mapped(fd)
    nc = driver.open(mem_id, "O_RDWR|O_SYNC").handle
    assert driver.mmap(nc, 2 * PMD).errno == "EINVAL"


@pytest.mark.parametrize(("first", "second"), [("O_RDWR", "O_RDWR|O_SYNC"), ("O_RDWR|O_SYNC", "O_RDWR")])
def test_M12_cacheable_and_not_exclude_each_other(driver: Driver, first: str, second: str) -> None:
    """While a mapping exists; not sticky."""
    mem_id, fd = driver.exported(flags=first)
    other = driver.open(mem_id, second).handle
    mapping = driver.mapped(fd)
    assert driver.mmap(other).errno == "EPERM"
    driver.munmap(mapping)
    assert driver.mmap(other).ok


def test_M12_across_processes(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    driver.mapped(fd, PAGE)
    other = machine.process("other")
    nc = other.open(mem_id, "O_RDWR|O_SYNC").handle
    assert other.mmap(nc, PAGE, offset=PAGE).errno == "EPERM"


def test_M12_the_last_mapping_frees_the_mode(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    first = driver.mapped(fd, PAGE)
    driver.mapped(fd, PAGE, offset=PAGE)
    nc = driver.open(mem_id, "O_RDWR|O_SYNC").handle
    driver.munmap(first)
    assert driver.mmap(nc).errno == "EPERM"


def test_M14_failing_page_tables_decide_nothing(machine: Machine, driver: Driver) -> None:
    """Q13: the emulator resets granularity and ownership table alike."""
    _, fd = driver.exported()
    machine.stub("remap_err", 12)
    assert driver.mmap(fd, PMD, offset=BIT63).errno == "ENOMEM"
    machine.stub("reset")
    assert driver.mmap(fd, PAGE).ok


@pytest.mark.parametrize("offset", [0, PAGE, PMD, 3 * PMD - PAGE])
def test_9_3_offset_is_a_byte_offset_into_the_region(driver: Driver, offset: int) -> None:
    _, fd = driver.exported(3 * PMD)
    whole = driver.mapped(fd, 3 * PMD)
    part = driver.mapped(fd, PAGE, "R", offset)
    driver.store(whole, offset + 8, 0xABCDEF)
    assert driver.load(part, 8).value == 0xABCDEF


def test_9_3_bit_63_with_an_offset(driver: Driver) -> None:
    _, fd = driver.exported(3 * PMD)
    whole = driver.mapped(fd, 3 * PMD, offset=BIT63)
    part = driver.mapped(fd, PMD, "R", BIT63 + 2 * PMD)
    driver.store(whole, 2 * PMD, 77)
    assert driver.load(part).value == 77


def test_9_3_kernel_picks_a_block_aligned_address(driver: Driver) -> None:
    _, fd = driver.exported(3 * PMD)
    for length in (PMD, 2 * PMD, PMD, 3 * PMD):
        assert driver.mmap(fd, length, offset=BIT63).aligned_2m


@pytest.mark.parametrize("prot", ["NONE", "R", "W", "RW", "RX"])
def test_9_3_protections(driver: Driver, prot: str) -> None:
    _, fd = driver.exported()
    assert driver.mmap(fd, PMD, prot).ok


def test_9_3_prot_write_alone_behaves_as_rw(driver: Driver) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd, PMD, "W")
    assert driver.store(mapping, 0, 5).ok
    assert driver.load(mapping).value == 5


def test_9_3_prot_none_is_the_start_state_of_a_reader(driver: Driver) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd, PMD, "NONE")
    assert driver.load(mapping).signal == "SIGSEGV"
    assert driver.own(fd, mapping, READ).ok
    assert driver.load(mapping).value == 0


def test_9_3_overlapping_mappings_share(driver: Driver) -> None:
    _, fd = driver.exported()
    one, two = driver.mapped(fd), driver.mapped(fd)
    driver.store(one, 128, 9)
    assert driver.load(two, 128).value == 9


def test_9_3_map_fixed_replaces_and_releases(driver: Driver) -> None:
    _, fd = driver.exported(2 * PMD)
    mapping = driver.mapped(fd, PMD)
    reply = driver.mmap(fd, PAGE, "R", PMD, flags="SHARED|FIXED", at=(mapping, 0))
    assert reply.ok
    assert reply.flush == (("WB_INVAL", 0, PAGE),)


def test_9_3_mmap_never_flushes(driver: Driver) -> None:
    _, fd = driver.exported()
    assert driver.mmap(fd).flush == ()
    assert driver.mmap(fd, PMD, "R").flush == ()


def test_9_4_fork_inherits_descriptors_but_no_mapping(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    child = machine.fork(driver)
    reply = child.load(mapping)
    assert (reply.signal, reply.code) == ("SIGSEGV", "SEGV_MAPERR")
    assert child.own(fd, mapping, READ).errno == "EFAULT"
    driver.munmap(mapping)
    driver.close(fd)
    assert driver.unexport(mem_id).errno == "EBUSY"
    machine.kill(child)
    assert driver.unexport(mem_id).ok


def test_9_4_parent_keeps_its_mapping_after_a_fork(machine: Machine, driver: Driver) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.store(mapping, 0, 3)
    child = machine.fork(driver)
    assert machine.kill(child) == ()
    assert driver.load(mapping).value == 3
    assert driver.own(fd, mapping, READ).flush == (("WB_ONLY", 0, PMD),)


def test_9_4_pieces_never_merge(driver: Driver) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd)
    assert driver.own(fd, mapping, READ, off=PAGE, length=PAGE).ok
    assert driver.own(fd, mapping, 0x9, off=PAGE, length=PAGE).ok
    assert driver.vmas(mapping) == [
        (0, PAGE, "rw-"),
        (PAGE, PAGE, "rw-"),
        (2 * PAGE, PMD - 2 * PAGE, "rw-"),
    ]


@pytest.mark.parametrize(("off", "length"), [(0, PAGE), (PAGE, PAGE), (PMD - PAGE, PAGE), (PAGE, PMD - 2 * PAGE)])
def test_9_5_part_of_a_page_mapping(driver: Driver, off: int, length: int) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd)
    assert driver.munmap(mapping, off, length).flush == (("WB_INVAL", off, length),)
    assert driver.load(mapping, off).code == "SEGV_MAPERR"
    if off:
        assert driver.load(mapping, 0).ok


@pytest.mark.parametrize(("off", "length"), [(PAGE, PAGE), (0, PAGE), (PMD, PAGE), (PMD - PAGE, PMD)])
def test_9_5_block_mapping_is_cut_at_blocks_only(driver: Driver, off: int, length: int) -> None:
    _, fd = driver.exported(3 * PMD)
    mapping = driver.mapped(fd, 3 * PMD, offset=BIT63)
    assert driver.munmap(mapping, off, length).errno == "EINVAL"
    assert driver.load(mapping, off).ok


def test_9_5_block_mapping_loses_a_block(driver: Driver) -> None:
    _, fd = driver.exported(3 * PMD)
    mapping = driver.mapped(fd, 3 * PMD, offset=BIT63)
    assert driver.munmap(mapping, PMD, PMD).flush == (("WB_INVAL", PMD, PMD),)
    assert driver.load(mapping, 0).ok
    assert driver.load(mapping, PMD).code == "SEGV_MAPERR"
    assert driver.load(mapping, 2 * PMD).ok


@pytest.mark.parametrize(("prot", "flush"), [("NONE", None), ("R", "INVAL"), ("RX", "INVAL"), ("RW", "WB_INVAL")])
def test_9_5_munmap_flushes_what_its_pages_imply(driver: Driver, prot: str, flush: str | None) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd, PMD, prot)
    assert driver.munmap(mapping).flush == (((flush, 0, PMD),) if flush else ())


def test_9_5_munmap_of_a_noncacheable_mapping_flushes_nothing(driver: Driver) -> None:
    _, fd = driver.exported(flags="O_RDWR|O_SYNC")
    assert driver.munmap(driver.mapped(fd)).flush == ()


def test_9_5_flush_errors_are_only_logged(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    machine.stub("flush_err", 5)
    assert driver.munmap(mapping).ok
    machine.stub("reset")
    driver.close(fd)
    assert driver.unexport(mem_id).ok


def test_9_5_killed_process_releases(machine: Machine, driver: Driver) -> None:
    mem_id = driver.export().mem_id
    other = machine.process("other")
    other.mapped(other.open(mem_id).handle)
    assert machine.kill(other) == (("WB_INVAL", 0, PMD),)
    assert driver.unexport(mem_id).ok


def test_9_5_second_mapping_keeps_the_cache(driver: Driver) -> None:
    _, fd = driver.exported()
    one = driver.mapped(fd, PMD, "R")
    driver.mapped(fd, PMD, "R")
    assert driver.munmap(one).flush == ()


def test_9_5_table_and_granularity_outlive_the_last_mapping(driver: Driver) -> None:
    _, fd = driver.exported()
    driver.munmap(driver.mapped(fd))
    mapping = driver.mapped(fd, PMD, "NONE")
    assert driver.own(fd, mapping, NONE, INFER).ok


def test_9_5_close_keeps_the_mapping(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.close(fd)
    assert driver.store(mapping, 0, 4).ok
    assert driver.own(driver.open(mem_id).handle, mapping, READ).ok


def test_9_9_address_not_mapped(driver: Driver) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.munmap(mapping)
    reply = driver.load(mapping)
    assert (reply.signal, reply.code) == ("SIGSEGV", "SEGV_MAPERR")


@pytest.mark.parametrize(("prot", "access"), [("NONE", "load"), ("NONE", "store"), ("R", "store"), ("RX", "store")])
def test_9_9_missing_right(driver: Driver, prot: str, access: str) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd, PMD, prot)
    reply = getattr(driver, access)(mapping)
    assert (reply.signal, reply.code) == ("SIGSEGV", "SEGV_ACCERR")


def test_9_9_nothing_behind_the_window(driver: Driver) -> None:
    """IMPORT and mmap succeed; the access is a hardware error."""
    _, fd = driver.imported(0x50_0000_0000)
    assert driver.load(driver.mapped(fd)).signal == "SIGBUS"


def test_9_1_nc_import_maps_through_o_sync(driver: Driver) -> None:
    _, fd = driver.imported(NC, flags="O_RDWR|O_SYNC")
    mapping = driver.mapped(fd)
    driver.store(mapping, 0, 6)
    assert driver.load(mapping).value == 6


def test_section_8_import_region_outlives_the_process_that_made_it(machine: Machine, driver: Driver) -> None:
    other = machine.process("other")
    mem_id = other.import_(CC).mem_id
    machine.kill(other)
    assert driver.open(mem_id).ok
