# SPDX-License-Identifier: Apache-2.0
"""UPDATE_RANGE: driver specification 9.6 to 9.8, rules O1 to O11, the state machine and the INFER rule."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ..driver import (
    BIT63,
    CNA,
    EXEC,
    GIB,
    HOLE,
    INFER,
    INVAL,
    NO_FLUSH,
    NONE,
    PAGE,
    PMD,
    READ,
    WB_INVAL,
    WB_ONLY,
    WRITE,
    Driver,
)
from ..machine import Machine

PROT = {"N": "NONE", "R": "R", "X": "RX", "W": "RW"}
STATE = {"N": NONE, "R": READ, "X": EXEC, "W": WRITE}
NC_NONE = 0xE


def mapped(driver: Driver, prot: str = "RW", size: int = PMD, offset: int = 0, **changed: Any) -> tuple[str, str]:
    """A new export, mapped whole: (fd, mapping)."""
    _, fd = driver.exported(size, **changed)
    return fd, driver.mapped(fd, size, prot, offset)


@pytest.mark.parametrize("ptr", ["null", "bad", "partial"])
def test_O1_argument_unreadable(driver: Driver, ptr: str) -> None:
    _, fd = driver.exported()
    assert driver.ioctl("UPDATE_RANGE", fd=fd, ptr=ptr).errno == "EFAULT"


def test_O1_before_O2(driver: Driver) -> None:
    _, fd = driver.exported(flags="O_RDWR|O_SYNC")
    assert driver.ioctl("UPDATE_RANGE", fd=fd, ptr="bad").errno == "EFAULT"


@pytest.mark.parametrize("flags", ["O_RDWR|O_SYNC", "O_RDWR|O_DSYNC"])
def test_O2_descriptor_opened_o_sync(driver: Driver, flags: str) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    nc = driver.open(mem_id, flags).handle
    assert driver.own(nc, mapping, READ).errno == "EINVAL"


def test_O2_before_O6(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    nc = driver.open(mem_id, "O_RDONLY|O_SYNC").handle
    assert driver.own(nc, mapping, WRITE).errno == "EINVAL"


def test_O3_no_cacheable_mapping_was_ever_made(driver: Driver) -> None:
    _, fd = driver.exported()
    reply = driver.ioctl("UPDATE_RANGE", fd=fd, start=PMD, end=2 * PMD, mem_state=READ, cache_ops=INFER)
    assert reply.errno == "EINVAL"


def test_O3_a_noncacheable_mapping_makes_no_table(driver: Driver) -> None:
    mem_id, fd = driver.exported()
    nc = driver.open(mem_id, "O_RDWR|O_SYNC").handle
    mapping = driver.mapped(nc)
    assert driver.own(fd, mapping, NONE).errno == "EINVAL"


def test_O3_the_table_stays_for_the_life_of_the_region(driver: Driver) -> None:
    fd, mapping = mapped(driver)
    driver.munmap(mapping)
    reply = driver.ioctl("UPDATE_RANGE", fd=fd, start=PMD, end=2 * PMD, mem_state=READ, cache_ops=INFER)
    assert reply.errno == "EFAULT"


def test_O3_table_made_by_another_process(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    other = machine.process("other")
    other.mapped(other.open(mem_id).handle)
    reply = driver.ioctl("UPDATE_RANGE", fd=fd, start=PMD, end=2 * PMD, mem_state=READ, cache_ops=INFER)
    assert reply.errno == "EFAULT"


def test_O3_before_O6(driver: Driver) -> None:
    fd = driver.open(driver.export().mem_id, "O_RDONLY").handle
    reply = driver.ioctl("UPDATE_RANGE", fd=fd, start=PMD, end=2 * PMD, mem_state=WRITE, cache_ops=INFER)
    assert reply.errno == "EINVAL"


@pytest.mark.parametrize(("start", "end"), [(PMD, PMD), (2 * PMD, PMD), ((1 << 64) - PAGE, 0), (0, 0)])
def test_O4_empty_range(driver: Driver, start: int, end: int) -> None:
    fd, _ = mapped(driver)
    reply = driver.ioctl("UPDATE_RANGE", fd=fd, start=start, end=end, mem_state=READ, cache_ops=INFER)
    assert reply.errno == "EINVAL"


def test_O4_before_O6(driver: Driver) -> None:
    fd, mapping = mapped(driver, "R", flags="O_RDONLY")
    assert driver.own(fd, mapping, WRITE, length=0).errno == "EINVAL"


@pytest.mark.parametrize(("off", "length"), [(1, PAGE), (0, 1), (0, PAGE - 1), (PAGE // 2, PAGE)])
def test_O5_page_alignment(driver: Driver, off: int, length: int) -> None:
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, READ, off=off, length=length).errno == "EINVAL"


@pytest.mark.parametrize(("off", "length"), [(PAGE, PMD), (0, PAGE), (0, PMD + PAGE), (PMD // 2, PMD)])
def test_O5_block_alignment_in_a_block_region(driver: Driver, off: int, length: int) -> None:
    fd, mapping = mapped(driver, size=3 * PMD, offset=BIT63)
    assert driver.own(fd, mapping, READ, off=off, length=length).errno == "EINVAL"


def test_O5_before_O6(driver: Driver) -> None:
    fd, mapping = mapped(driver, "R", flags="O_RDONLY")
    assert driver.own(fd, mapping, WRITE, off=1, length=PAGE).errno == "EINVAL"


@pytest.mark.parametrize(
    ("flags", "state", "errno"),
    [
        ("O_RDONLY", READ, None),
        ("O_RDONLY", EXEC, None),
        ("O_RDONLY", WRITE, "EPERM"),
        ("O_RDONLY", NONE, None),
        ("O_WRONLY", READ, "EPERM"),
        ("O_WRONLY", EXEC, "EPERM"),
        ("O_WRONLY", WRITE, "EPERM"),
        ("O_WRONLY", NONE, None),
        ("O_RDWR", WRITE, None),
    ],
)
def test_O6_right_against_the_mode_of_the_descriptor(driver: Driver, flags: str, state: int, errno: str | None) -> None:
    """The ioctl's descriptor, not the mapping's."""
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    asking = driver.open(mem_id, flags).handle
    assert driver.own(asking, mapping, state).errno == errno


def test_O6_before_O7(driver: Driver) -> None:
    fd, mapping = mapped(driver, "R", flags="O_RDONLY")
    assert driver.own(fd, mapping, 0x18).errno == "EPERM"
    assert driver.own(fd, mapping, 0xA).errno == "EPERM"


def test_O6_before_O8(driver: Driver) -> None:
    fd, mapping = mapped(driver, "R", flags="O_RDONLY")
    assert driver.own(fd, mapping, WRITE, 5).errno == "EPERM"


VALID_STATES = {0x1, 0x5, 0x9, 0xD, 0xE, 0x3, 0xB, 0xF}


@pytest.mark.parametrize("state", range(16), ids=hex)
def test_O7_mem_state(driver: Driver, state: int) -> None:
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, state).errno == (None if state in VALID_STATES else "EINVAL")


@pytest.mark.parametrize("high", [0x10, 0x20, 0x40, 0x80, 0xF0])
def test_O7_high_bits(driver: Driver, high: int) -> None:
    fd, mapping = mapped(driver)
    for state in VALID_STATES:
        assert driver.own(fd, mapping, state | high).errno == "EINVAL"


def test_O7_before_O9(driver: Driver) -> None:
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, 0xC, length=2 * PMD).errno == "EINVAL"


@pytest.mark.parametrize("ops", [5, 6, 0x80, 0xFF])
def test_O8_cache_ops(driver: Driver, ops: int) -> None:
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, READ, ops).errno == "EINVAL"


def test_O8_before_O9(driver: Driver) -> None:
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, READ, 5, length=2 * PMD).errno == "EINVAL"


@pytest.mark.parametrize("hole", [0, PAGE, PMD - PAGE], ids=["start", "middle", "end"])
def test_O9_hole(driver: Driver, hole: int) -> None:
    fd, mapping = mapped(driver)
    driver.munmap(mapping, hole, PAGE)
    assert driver.own(fd, mapping, READ).errno == "EFAULT"


def test_O9_past_the_mapping(driver: Driver) -> None:
    _, fd = driver.exported()
    area = driver.reserve(2 * PMD)
    mapping = driver.mapped(fd, PMD, flags="SHARED|FIXED", at=(area, 0))
    assert driver.own(fd, mapping, READ, length=2 * PMD).errno == "EFAULT"
    assert driver.own(fd, mapping, READ, off=PMD, length=PMD).errno == "EFAULT"


def test_O9_another_region_inside(driver: Driver) -> None:
    _, fd = driver.exported()
    _, other = driver.exported()
    mapping = driver.mapped(fd)
    driver.mapped(other, PAGE, flags="SHARED|FIXED", at=(mapping, PAGE))
    assert driver.own(fd, mapping, READ).errno == "EFAULT"


def test_O9_mapping_of_another_process(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    place = driver.process.perform("where", {"map": mapping})
    other = machine.process("other")
    asking = other.open(mem_id).handle
    start = place["address"]
    args = {"start": start, "end": start + PMD, "mem_state": READ, "cache_ops": INFER}
    assert other.ioctl("UPDATE_RANGE", fd=asking, **args).errno == "EFAULT"


def test_O9_rolls_back_what_was_done(driver: Driver) -> None:
    """Rights and counters; flushes already done stay done."""
    fd, mapping = mapped(driver)
    driver.munmap(mapping, PMD - PAGE, PAGE)
    failed = driver.own(fd, mapping, READ)
    assert (failed.errno, failed.flush) == ("EFAULT", (("WB_ONLY", 0, PMD - PAGE),))
    assert driver.store(mapping, 0, 1).ok
    assert driver.own(fd, mapping, READ, length=PAGE).flush == (("WB_ONLY", 0, PAGE),)


def test_O9_several_pieces_and_descriptors_of_one_region(driver: Driver) -> None:
    mem_id, fd = driver.exported(2 * PMD)
    second = driver.open(mem_id).handle
    area = driver.reserve(2 * PMD)
    mapping = driver.mapped(fd, PMD, flags="SHARED|FIXED", at=(area, 0))
    driver.mapped(second, PMD, offset=PMD, flags="SHARED|FIXED", at=(area, PMD))
    assert driver.own(fd, mapping, READ, length=2 * PMD).ok
    assert driver.store(mapping, PMD, 1).signal == "SIGSEGV"


def test_O9_hole_at_the_start_wins_over_a_flush_error(machine: Machine, driver: Driver) -> None:
    fd, mapping = mapped(driver)
    driver.munmap(mapping, 0, PAGE)
    machine.stub("flush_err", 5)
    assert driver.own(fd, mapping, READ).errno == "EFAULT"


def test_O11_flush_error_wins_over_a_hole_behind(machine: Machine, driver: Driver) -> None:
    fd, mapping = mapped(driver)
    driver.munmap(mapping, PMD - PAGE, PAGE)
    machine.stub("flush_err", 5)
    assert driver.own(fd, mapping, READ).errno == "EIO"


def test_O10_splitting_fails(machine: Machine, driver: Driver) -> None:
    fd, mapping = mapped(driver)
    machine.stub("split_err", 12)
    assert driver.own(fd, mapping, READ, off=PAGE, length=PAGE).errno == "ENOMEM"
    machine.stub("reset")
    assert driver.store(mapping, PAGE, 1).ok


def test_O10_whole_piece_needs_no_split(machine: Machine, driver: Driver) -> None:
    fd, mapping = mapped(driver)
    machine.stub("split_err", 12)
    assert driver.own(fd, mapping, READ).ok


@pytest.mark.parametrize(("injected", "seen"), [(95, "EOPNOTSUPP"), (22, "EINVAL"), (5, "EIO"), (110, "ETIMEDOUT")])
def test_O11_cache_engine_fails(machine: Machine, driver: Driver, injected: int, seen: str) -> None:
    fd, mapping = mapped(driver)
    machine.stub("flush_err", injected)
    assert driver.own(fd, mapping, READ).errno == seen
    machine.stub("reset")
    assert driver.store(mapping, 0, 1).ok, "rolled back"
    assert driver.own(fd, mapping, READ).flush == (("WB_ONLY", 0, PMD),)


def test_O11_no_flush_no_error(machine: Machine, driver: Driver) -> None:
    fd, mapping = mapped(driver, "NONE")
    machine.stub("flush_err", 95)
    assert driver.own(fd, mapping, READ).ok


def test_O11_write_queue_never_drains(machine: Machine, driver: Driver) -> None:
    _, fd = driver.imported()
    mapping = driver.mapped(fd)
    machine.stub("drain_state", 0)
    assert driver.own(fd, mapping, NONE).errno == "ETIMEDOUT"
    machine.stub("reset")
    assert driver.store(mapping, 0, 1).ok


def test_O11_negative_drain_state_counts_as_drained(machine: Machine, driver: Driver) -> None:
    _, fd = driver.imported()
    mapping = driver.mapped(fd)
    machine.stub("drain_state", -5)
    assert driver.own(fd, mapping, NONE).ok


def test_O11_busy_engine_is_retried(machine: Machine, driver: Driver) -> None:
    fd, mapping = mapped(driver)
    machine.stub("flush_busy", 3)
    assert driver.own(fd, mapping, READ).ok


@pytest.mark.parametrize(("before", "after"), list(itertools.product("NRXW", repeat=2)))
def test_9_7_every_transition_is_allowed(driver: Driver, before: str, after: str) -> None:
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, STATE[before]).ok
    assert driver.own(fd, mapping, STATE[after]).ok
    assert driver.load(mapping).ok is (after != "N")
    assert driver.store(mapping, 0, 1).ok is (after == "W")


def test_9_7_no_conflict_detection(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    driver.mapped(fd)
    other = machine.process("other")
    mapping = other.mapped(other.open(mem_id).handle)
    assert other.store(mapping, 0, 2).ok


def inferred(before: str, after: str, others: str) -> str | None:
    """The table of 9.8 for one mapping that goes from `before` to `after` while `others` exist."""
    readers = sum(state in "RXW" for state in others)
    writers = sum(state == "W" for state in others)
    had_readers, had_writers = readers + (before != "N"), writers + (before == "W")
    now_readers, now_writers = readers + (after != "N"), writers + (after == "W")
    if had_writers and not now_writers:
        return "WB_ONLY" if now_readers else "WB_INVAL"
    if had_readers and not now_readers and not had_writers:
        return "INVAL"
    return None


@pytest.mark.parametrize("others", ["", "N", "R", "X", "W", "RW"])
@pytest.mark.parametrize(("before", "after"), list(itertools.product("NRXW", repeat=2)))
def test_9_8_infer(driver: Driver, before: str, after: str, others: str) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd, PMD, PROT[before])
    for state in others:
        driver.mapped(fd, PMD, PROT[state])
    expected = inferred(before, after, others)
    assert driver.own(fd, mapping, STATE[after]).flush == (((expected, 0, PMD),) if expected else ())


@pytest.mark.parametrize(("before", "after"), list(itertools.product("NRW", repeat=2)))
@pytest.mark.parametrize(("ops", "name"), [(INVAL, "INVAL"), (WB_INVAL, "WB_INVAL"), (WB_ONLY, "WB_ONLY")])
def test_9_8_explicit_operation_always_runs(driver: Driver, before: str, after: str, ops: int, name: str) -> None:
    fd, mapping = mapped(driver, PROT[before])
    reply = driver.own(fd, mapping, STATE[after], ops, off=PAGE, length=2 * PAGE)
    assert reply.flush == ((name, PAGE, 2 * PAGE),)


@pytest.mark.parametrize(("before", "after"), list(itertools.product("NRW", repeat=2)))
def test_9_8_operation_0_never_flushes(driver: Driver, before: str, after: str) -> None:
    fd, mapping = mapped(driver, PROT[before])
    assert driver.own(fd, mapping, STATE[after], NO_FLUSH).flush == ()


@pytest.mark.parametrize("others", ["", "R", "W"])
@pytest.mark.parametrize(("before", "after"), [("W", "N"), ("W", "R"), ("R", "N")])
def test_9_8_block_regions_count_blocks(driver: Driver, before: str, after: str, others: str) -> None:
    _, fd = driver.exported(2 * PMD)
    mapping = driver.mapped(fd, 2 * PMD, PROT[before], BIT63)
    for state in others:
        driver.mapped(fd, 2 * PMD, PROT[state], BIT63)
    expected = inferred(before, after, others)
    reply = driver.own(fd, mapping, STATE[after], off=PMD, length=PMD)
    assert reply.flush == (((expected, PMD, PMD),) if expected else ())


def test_9_8_results_of_one_piece_are_merged(driver: Driver) -> None:
    """A page with a reader left gives WB_ONLY, one without WB_INVAL: the whole piece gets WB_INVAL."""
    _, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.mapped(fd, PAGE, "R", PAGE)
    assert driver.own(fd, mapping, NONE).flush == (("WB_INVAL", 0, PMD),)


def test_9_8_write_back_and_invalidate_merge(driver: Driver) -> None:
    _, fd = driver.exported()
    writer = driver.mapped(fd, 2 * PAGE)
    driver.mapped(fd, PAGE, "R")
    assert driver.own(fd, writer, READ, off=PAGE, length=PAGE).flush == (("WB_ONLY", PAGE, PAGE),)
    # page 0: a writer leaves, a reader stays; page 1: the last reader leaves; two pieces, two results
    assert driver.munmap(writer).flush == (("WB_ONLY", 0, PAGE), ("INVAL", PAGE, PAGE))


def test_9_8_pieces_are_flushed_one_by_one(machine: Machine, driver: Driver) -> None:
    _, fd = driver.exported()
    mapping = driver.mapped(fd)
    driver.own(fd, mapping, WRITE, NO_FLUSH, off=PAGE, length=PAGE)
    machine.port.account()
    place = driver.process.perform("where", {"map": mapping})["address"]
    args = {"start": place, "end": place + PMD, "mem_state": NONE, "cache_ops": INFER}
    driver.process.perform("ioctl UPDATE_RANGE", {"fd": fd, "args": args})
    pieces = [(entry["offset"], entry["length"]) for entry in machine.port.account().flush]
    assert pieces == [(0, PAGE), (PAGE, PAGE), (2 * PAGE, PMD - 2 * PAGE)]


def test_9_8_counters_span_processes(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    other = machine.process("other")
    other.mapped(other.open(mem_id).handle, PMD, "R")
    assert driver.own(fd, mapping, NONE).flush == (("WB_ONLY", 0, PMD),)
    assert machine.kill(other) == (("INVAL", 0, PMD),)


def test_9_8_import_write_back_drains_the_write_queue(driver: Driver) -> None:
    _, fd = driver.imported()
    mapping = driver.mapped(fd)
    assert driver.own(fd, mapping, READ).flush == (("WB_ONLY", 0, PMD), ("DRAIN", CNA))
    assert driver.own(fd, mapping, NONE).flush == (("INVAL", 0, PMD),)


def test_9_8_import_stops_at_the_failing_chunk(machine: Machine, driver: Driver) -> None:
    _, fd = driver.imported(HOLE, 2 * GIB)
    mapping = driver.mapped(fd, 2 * GIB)
    machine.stub("flush_err", 5)
    machine.port.account()
    place = driver.process.perform("where", {"map": mapping})["address"]
    args = {"start": place, "end": place + 2 * GIB, "mem_state": READ, "cache_ops": INFER}
    assert driver.process.perform("ioctl UPDATE_RANGE", {"fd": fd, "args": args})["errno"] == "EIO"
    assert [(e["offset"], e["length"]) for e in machine.port.account().flush] == [(0, GIB)]


def test_9_6_only_read_and_write_rights_change(driver: Driver) -> None:
    fd, mapping = mapped(driver, "RX")
    assert driver.own(fd, mapping, READ).ok
    assert driver.vmas(mapping) == [(0, PMD, "r-x")]


def test_9_6_splits_remain_after_a_failure(driver: Driver) -> None:
    fd, mapping = mapped(driver)
    driver.munmap(mapping, 3 * PAGE, PAGE)
    assert driver.own(fd, mapping, READ, off=PAGE, length=3 * PAGE).errno == "EFAULT"
    assert [(off, length) for off, length, _ in driver.vmas(mapping)][:2] == [(0, PAGE), (PAGE, 2 * PAGE)]


def test_9_6_nc_none_is_what_libobmm_sends(driver: Driver) -> None:
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, NC_NONE).flush == (("WB_INVAL", 0, PMD),)
    assert driver.load(mapping).signal == "SIGSEGV"


def test_Q11_noncacheable_mappings_change_no_counter(driver: Driver) -> None:
    """A defect of the driver that the emulator does not copy."""
    mem_id, fd = driver.exported()
    driver.munmap(driver.mapped(fd))
    nc = driver.open(mem_id, "O_RDWR|O_SYNC").handle
    assert driver.munmap(driver.mapped(nc)).flush == ()
    mapping = driver.mapped(fd, PMD, "R")
    assert driver.own(fd, mapping, NONE).flush == (("INVAL", 0, PMD),)


def test_16_writer_then_reader_on_one_host(machine: Machine, driver: Driver) -> None:
    mem_id, fd = driver.exported()
    mapping = driver.mapped(fd)
    reader = machine.process("reader")
    seen = reader.open(mem_id, "O_RDONLY").handle
    window = reader.mapped(seen, PMD, "NONE")
    driver.store(mapping, 0, 0xC0FFEE)
    assert driver.own(fd, mapping, READ).flush == (("WB_ONLY", 0, PMD),)
    assert reader.own(seen, window, READ).flush == ()
    assert reader.load(window).value == 0xC0FFEE
    assert reader.own(seen, window, NONE).flush == ()
    assert driver.own(fd, mapping, WRITE).flush == ()


def test_O10_lower_pieces_are_done_before_the_split_that_fails(machine: Machine, driver: Driver) -> None:
    """And taken back: the whole call fails."""
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, WRITE, NO_FLUSH, off=0, length=PAGE).ok
    machine.stub("split_err", 12)
    failed = driver.own(fd, mapping, READ, length=3 * PAGE)
    assert (failed.errno, failed.flush) == ("ENOMEM", (("WB_ONLY", 0, PAGE),))
    machine.stub("reset")
    assert driver.store(mapping, 0, 1).ok


def test_O11_later_piece_fails_and_the_earlier_is_taken_back(machine: Machine, driver: Driver) -> None:
    fd, mapping = mapped(driver)
    assert driver.own(fd, mapping, WRITE, NO_FLUSH, off=0, length=PAGE).ok
    machine.stub("flush_err", 5)
    machine.stub("flush_skip", 1)
    assert driver.own(fd, mapping, READ, length=2 * PAGE).errno == "EIO"
    machine.stub("reset")
    assert driver.store(mapping, 0, 1).ok
    assert driver.own(fd, mapping, READ, length=2 * PAGE).flush == (("WB_ONLY", 0, 2 * PAGE),)
