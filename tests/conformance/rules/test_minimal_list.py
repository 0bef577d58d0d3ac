# SPDX-License-Identifier: Apache-2.0
"""The minimal conformance list, driver specification 24, line by line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..driver import (
    ALLOW_MMAP,
    BIT63,
    BLOCK,
    CC,
    EXEC,
    INFER,
    MIB,
    NONE,
    PAGE,
    PMD,
    READ,
    WRITE,
    Driver,
    Reply,
)

Answer = Reply | tuple[Reply, ...]


def _with_fd(driver: Driver, flags: str = "O_RDWR", prot: str = "RW") -> tuple[int, str, str]:
    mem_id, fd = driver.exported(flags=flags)
    return mem_id, fd, driver.mapped(fd, PMD, prot)


def ids_1_2_then_1(d: Driver) -> Answer:
    assert (d.export().mem_id, d.export().mem_id) == (1, 2)
    d.unexport(1)
    reply = d.export()
    assert reply.mem_id == 1
    return reply


def unexport_with_open_fd(d: Driver) -> Answer:
    mem_id, fd = d.exported()
    busy = d.unexport(mem_id)
    d.close(fd)
    return busy, d.unexport(mem_id)


def unexport_of_an_import(d: Driver) -> Answer:
    mem_id = d.import_().mem_id
    idle = d.unexport(mem_id)
    d.open(mem_id)
    return idle, d.unexport(mem_id)


def import_twice(d: Driver) -> Answer:
    assert d.import_().ok
    return d.import_()


def import_bad_scna_and_overlap(d: Driver) -> Answer:
    assert d.import_().ok
    return d.import_(scna=1)


def open_cc_import(d: Driver) -> Answer:
    mem_id = d.import_(CC).mem_id
    return d.open(mem_id, "O_RDWR|O_SYNC"), d.open(mem_id)


def query_offset_is_size(d: Driver) -> Answer:
    return d.pa_of(d.export().mem_id, PMD)


def query_round_trip(d: Driver) -> Answer:
    mem_id = d.export(2 * PMD).mem_id
    reply = d.id_of(d.pa_of(mem_id, PMD + 3).pa)
    assert (reply.mem_id, reply.offset) == (mem_id, PMD + 3)
    return reply


def plain_export_open_mmap(d: Driver) -> Answer:
    opened = d.open(d.export(flags=0).mem_id)
    return opened, d.mmap(opened.handle)


def page_then_pmd(d: Driver) -> Answer:
    _, fd, mapping = _with_fd(d)
    first = d.mmap(fd, PMD, offset=BIT63)
    d.munmap(mapping)
    return first, d.mmap(fd, PMD, offset=BIT63)


def cc_then_o_sync(d: Driver) -> Answer:
    mem_id, _, mapping = _with_fd(d)
    nc = d.open(mem_id, "O_RDWR|O_SYNC").handle
    first = d.mmap(nc)
    d.munmap(mapping)
    return first, d.mmap(nc)


def mmap_past_the_end(d: Driver) -> Answer:
    _, fd = d.exported()
    return d.mmap(fd, PAGE, offset=PMD), d.mmap(fd, PMD, offset=PAGE)


def mmap_private(d: Driver) -> Answer:
    return d.mmap(d.exported()[1], flags="PRIVATE")


def mmap_pmd_length(d: Driver) -> Answer:
    return d.mmap(d.exported(2 * PMD)[1], PMD + PAGE, offset=BIT63)


def update_before_mmap(d: Driver) -> Answer:
    _, fd = d.exported()
    return d.ioctl("UPDATE_RANGE", fd=fd, start=PMD, end=2 * PMD, mem_state=READ, cache_ops=INFER)


def update_states(d: Driver) -> Answer:
    _, fd, mapping = _with_fd(d)
    return tuple(d.own(fd, mapping, state) for state in (0xC, 0x2, 0x10, 0x5))


def update_rw_on_rdonly(d: Driver) -> Answer:
    _, fd, mapping = _with_fd(d, "O_RDONLY", "R")
    return d.own(fd, mapping, WRITE), d.own(fd, mapping, 0x18)


def update_cache_ops_5(d: Driver) -> Answer:
    _, fd, mapping = _with_fd(d)
    return d.own(fd, mapping, READ, 5)


def update_over_a_hole(d: Driver) -> Answer:
    _, fd, mapping = _with_fd(d)
    d.munmap(mapping, PMD // 2, PAGE)
    reply = d.own(fd, mapping, READ)
    assert d.store(mapping, 0, 1).ok, "the earlier part is restored"
    return reply


def write_in_r_state(d: Driver) -> Answer:
    _, _, mapping = _with_fd(d, prot="R")
    assert d.store(mapping, 0, 1).signal == "SIGSEGV"
    return d.load(mapping)


def file_operations(d: Driver) -> Answer:
    """read, lseek and fsync need the preload library; the transcript's shm-fops cases have them."""
    return d.raw(0x5401, fd=d.exported()[1])


LINES: list[tuple[str, Callable[[Driver], Answer], tuple[str | None, ...]]] = [
    ("EXPORT length=17", lambda d: d.export(length=17), ("E2BIG",)),
    ("EXPORT length=0", lambda d: d.export(length=0), ("EINVAL",)),
    ("EXPORT size[5] behind length", lambda d: d.export([PMD, 0, 0, 0, 0, 12345], length=1), (None,)),
    ("EXPORT size 3 MiB", lambda d: d.export(3 * MIB), ("EINVAL",)),
    ("EXPORT size on node 15", lambda d: d.export([0] * 15 + [PMD]), ("ENODEV",)),
    ("EXPORT size 3 MiB on an absent node", lambda d: d.export([0] * 15 + [3 * MIB]), ("EINVAL",)),
    ("EXPORT flags=4", lambda d: d.export(flags=4), ("EINVAL",)),
    ("EXPORT flags=4 with size 0", lambda d: d.export(0, flags=4), ("EINVAL",)),
    ("EXPORT priv_len=513", lambda d: d.export(priv_len=513, priv="00" * 513), ("EINVAL",)),
    ("EXPORT priv_len=1, priv=NULL", lambda d: d.export(priv_len=1, priv="null"), ("EFAULT",)),
    (
        "EXPORT vendor_len=129; 8",
        lambda d: (
            d.export(vendor_len=129, vendor_info="00" * 129),
            d.export(vendor_len=8, vendor_info="00" * 8),
        ),
        ("EINVAL", "EPERM"),
    ),
    ("ids 1, 2, then 1 again", ids_1_2_then_1, (None,)),
    (
        "EXPORT_PID flags=1; length 0; length 4096; pid=-1",
        lambda d: (
            d.export_pid(None, va=0, flags=ALLOW_MMAP),
            d.export_pid(None, 0, va=0),
            d.export_pid(None, 4096, va=0),
            d.export_pid(None, PMD, va=0, pid=-1),
        ),
        ("EINVAL", "EINVAL", "EINVAL", "ESRCH"),
    ),
    ("EXPORT_PID on ordinary memory", lambda d: d.export_pid(d.hugemap(huge=False)), ("EOPNOTSUPP",)),
    (
        "UNEXPORT 0; 1048576; unused",
        lambda d: (d.unexport(0), d.unexport(1048576), d.unexport(9)),
        ("ENOENT",) * 3,
    ),
    (
        "UNEXPORT flags=1 on an unused id; on 0",
        lambda d: (d.unexport(9, 1), d.unexport(0, 1)),
        ("EINVAL", "ENOENT"),
    ),
    ("UNEXPORT with an open fd; after close", unexport_with_open_fd, ("EBUSY", None)),
    ("UNEXPORT of an import, idle; open", unexport_of_an_import, ("EINVAL", "EBUSY")),
    (
        "IMPORT flags 0, 2, 3, 5, 7, 8",
        lambda d: tuple(d.import_(CC, BLOCK, flags) for flags in (0, 2, 3, 5, 7, 8)),
        ("EINVAL",) * 6,
    ),
    ("IMPORT addr=0", lambda d: d.import_(0), ("EINVAL",)),
    ("IMPORT bad scna", lambda d: d.import_(scna=1), ("ENODEV",)),
    ("IMPORT outside the windows", lambda d: d.import_(0x1000_0000), ("EINVAL",)),
    ("IMPORT twice", import_twice, ("EEXIST",)),
    ("IMPORT bad scna and overlap", import_bad_scna_and_overlap, ("ENODEV",)),
    ("IMPORT CC window, open O_SYNC; plain", open_cc_import, ("EPERM", None)),
    (
        "IMPORT NUMA base_dist=5; ALLOW_MMAP base_dist=5",
        lambda d: (d.import_numa(base_dist=5), d.import_(base_dist=5)),
        ("EINVAL", None),
    ),
    (
        "QUERY key 2; mem_id 0",
        lambda d: (d.ioctl("ADDR_QUERY", key_type=2), d.pa_of(0)),
        ("EINVAL", "ENOENT"),
    ),
    ("QUERY offset=size", query_offset_is_size, ("EINVAL",)),
    ("QUERY by pa round trip", query_round_trip, (None,)),
    ("plain export: open; mmap", plain_export_open_mmap, (None, "EPERM")),
    ("mmap PAGE then PMD; munmap, PMD again", page_then_pmd, ("EPERM", "EPERM")),
    ("mmap CC then O_SYNC; after munmap", cc_then_o_sync, ("EPERM", None)),
    ("mmap offset=size; length>rest", mmap_past_the_end, ("EINVAL", "EINVAL")),
    ("mmap MAP_PRIVATE", mmap_private, ("EINVAL",)),
    ("PMD flag, length 2 MiB + 4 KiB", mmap_pmd_length, ("EINVAL",)),
    ("UPDATE_RANGE before any mmap", update_before_mmap, ("EINVAL",)),
    ("UPDATE_RANGE mem_state 0xc; 0x2; 0x10; 0x5", update_states, ("EINVAL", "EINVAL", "EINVAL", None)),
    ("UPDATE_RANGE RW on O_RDONLY; with mem_state 0x18", update_rw_on_rdonly, ("EPERM", "EPERM")),
    ("UPDATE_RANGE cache_ops 5", update_cache_ops_5, ("EINVAL",)),
    ("UPDATE_RANGE over a hole", update_over_a_hole, ("EFAULT",)),
    ("write in R state", write_in_r_state, (None,)),
    ("other ioctl on a region node", file_operations, ("ENOTTY",)),
]


@pytest.mark.parametrize(("line", "call", "expected"), LINES, ids=[line[0] for line in LINES])
def test_24(driver: Driver, line: str, call: Callable[[Driver], Answer], expected: tuple[str | None, ...]) -> None:
    answer = call(driver)
    replies = answer if isinstance(answer, tuple) else (answer,)
    assert tuple(reply.errno for reply in replies) == expected


@pytest.mark.parametrize(
    ("before", "after", "other", "flush"),
    [
        ("RW", NONE, "R", "WB_ONLY"),
        ("RW", NONE, None, "WB_INVAL"),
        ("RW", READ, None, "WB_ONLY"),
        ("R", NONE, None, "INVAL"),
        ("NONE", READ, None, None),
        ("NONE", WRITE, None, None),
        ("R", WRITE, None, None),
        ("RX", EXEC, None, None),
    ],
)
def test_24_inferred_flush(driver: Driver, before: str, after: int, other: str | None, flush: str | None) -> None:
    _, fd, mapping = _with_fd(driver, prot=before)
    if other:
        driver.mapped(fd, PMD, other)
    assert driver.own(fd, mapping, after).flush == (((flush, 0, PMD),) if flush else ())
