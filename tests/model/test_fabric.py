# SPDX-License-Identifier: Apache-2.0
"""Two hosts end to end: memory travels, and fails, as the decoder and the exports say."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import signal
import threading
import tracemalloc

import pytest

from .harness import INFER, MIB, PAGE, PMD, Client, N, R, W, fabric, reach, refusal


@pytest.fixture
def two():
    made = fabric()
    yield Client(made.hosts["a"]), Client(made.hosts["b"])
    made.check()
    made.close()


def test_store_of_the_exporter_is_loaded_by_the_importer(two):
    a, b = two
    exported, imported = reach(a, b)
    ours, theirs = a.map(exported), b.map(imported, R)
    ours.store(4096, 0x1122334455667788)
    assert theirs.load(4096) == 0x1122334455667788


def test_import_over_two_decoder_entries_shows_both_exports(two):
    a, b = two
    one, other = a.export(), a.export()
    start = b.host.program(0x40A, one.tokenid, one.uba, PMD)
    b.host.program(0x40A, other.tokenid, other.uba, PMD, address=start + PMD)
    mapped = b.map(b.import_(start, 2 * PMD).mem_id, R, 2 * PMD)
    a.map(one.mem_id).store(8, 1)
    a.map(other.mem_id).store(8, 2)
    assert (mapped.load(8), mapped.load(PMD + 8)) == (1, 2)


def test_undecoded_window_is_a_sigbus_and_import_does_not_mind(two):
    _, b = two
    window = b.host.spec.controllers[0].windows[0]
    mapped = b.map(b.import_(window.base).mem_id, W)
    assert mapped.signal() == signal.SIGBUS
    assert mapped.signal(store=True) == signal.SIGBUS


def test_decoder_programmed_later_reaches_existing_mappings_with_the_next_call(two):
    a, b = two
    export = a.export(2 * PMD)
    base = b.host.spec.controllers[0].windows[0].base
    imported = b.import_(base, 2 * PMD).mem_id
    mapped = b.map(imported, W, PMD, PMD)
    mapped.update(R, end=4 * PAGE)
    b.host.program(0x40A, export.tokenid, export.uba, 2 * PMD, address=base)
    assert mapped.signal() == signal.SIGBUS
    b.query(imported)
    a.map(export.mem_id, W, 2 * PMD).store(PMD + 8, 9)
    assert mapped.load(8) == 9
    assert (mapped.signal(0, store=True), mapped.signal(4 * PAGE, store=True)) == (signal.SIGSEGV, 0)
    b.host.unprogram(base)
    b.query(imported)
    assert mapped.signal() == signal.SIGBUS


def test_9_9_missing_right_is_a_sigsegv(two):
    a, _ = two
    mapped = a.map(a.export().mem_id, W)
    mapped.update(R)
    assert (mapped.signal(), mapped.signal(store=True)) == (0, signal.SIGSEGV)
    mapped.update(N)
    assert mapped.signal() == signal.SIGSEGV


def test_22_3_unexport_under_live_importers_succeeds_and_they_get_sigbus(two):
    a, b = two
    exported, imported = reach(a, b)
    theirs = b.map(imported, R)
    assert theirs.signal() == 0
    a.unexport(exported)
    assert theirs.signal() == signal.SIGBUS


def test_memory_of_a_removed_region_is_unreachable_through_the_old_decoder_entry(two):
    a, b = two
    exported, imported = reach(a, b)
    a.map(exported).store(0, 7)
    a.process.exit()
    a = Client(a.host)
    a.unexport(exported)
    again = a.export()
    assert (again.mem_id, again.tokenid) == (exported, 0)
    assert b.map(imported, R).load() == 0


def test_22_3_pa_of_a_pool_export_is_memseg_aligned_and_not_contiguous(two):
    a, _ = two
    mem_id = a.export(4 * PMD).mem_id
    places = [a.query(mem_id, i * PMD) for i in range(4)]
    assert all(pa % PMD == 0 for pa in places)
    assert all(abs(one - other) > PMD for one, other in itertools.pairwise(places))


def test_9_5_exit_writes_back_and_frees_the_region(two):
    a, _ = two
    mem_id = a.export().mem_id
    other = Client(a.host)
    other.map(mem_id, W)
    assert refusal(lambda: a.unexport(mem_id)).errno == errno.EBUSY
    a.host.take_journal()
    other.exit()
    assert [entry["op"] for entry in a.host.take_journal()] == ["WB_INVAL"]
    a.unexport(mem_id)


def test_a_call_that_waits_lets_others_run_and_the_region_is_being_removed(two):
    a, b = two
    _, imported = reach(a, b)
    b.host.faults.flush_sleep = 0.3
    remover = threading.Thread(target=b.unimport, args=(imported,))
    remover.start()
    while not b.host.regions[imported].destroying:
        pass
    assert refusal(lambda: b.open(imported)).errno == errno.EAGAIN
    assert refusal(lambda: b.open(imported, os.O_RDWR | os.O_SYNC)).errno == errno.EPERM
    assert refusal(lambda: b.unimport(imported)).errno == errno.EBUSY
    assert refusal(lambda: b.query(imported)).errno == errno.ENOENT
    a.host.fabric.check()
    remover.join()
    assert refusal(lambda: b.open(imported)).errno == errno.ENOENT


def test_8_update_range_makes_only_mmap_of_the_region_wait(two):
    a, _ = two
    first, second = a.export().mem_id, a.export().mem_id
    mapped, other = a.map(first), Client(a.host)
    a.host.faults.flush_sleep = 0.3
    owner = threading.Thread(target=mapped.update, args=(N,))
    owner.start()
    while a.process.vmas.overlapping(mapped.address, mapped.address + 1)[0].rights:
        pass
    other.map(second)
    assert owner.is_alive()
    other.map(first, R)
    owner.join()
    flushes = [entry for entry in a.host.take_journal() if not entry.get("clearing")]
    assert [entry["op"] for entry in flushes if entry["kind"] == "flush"] == ["WB_INVAL"]


def test_M13_region_of_many_pages_costs_no_object_per_page(two):
    a, _ = two
    mem_id = a.export(64 * MIB * 64).mem_id
    mapped = a.map(mem_id, W, 4096 * MIB)
    for page in range(0, 64, 2):
        mapped.update(R, INFER, page * PAGE, (page + 1) * PAGE)
    runs = a.host.regions[mem_id].ownership.runs()
    assert len(runs) == 64
    assert sum(last - first for first, last, *_ in runs) == 4096 * MIB // PAGE


def test_a_region_costs_the_server_less_than_4_kib():
    made = fabric(1)
    client = Client(made.hosts["a"])
    count = 500
    client.export()
    tracemalloc.start()
    for _ in range(count):
        client.export()
        client.memory = type(client.memory)()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    made.close()
    assert size / count < 4096
