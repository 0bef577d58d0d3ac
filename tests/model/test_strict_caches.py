# SPDX-License-Identifier: Apache-2.0
"""Strict caches: forgotten ownership calls show, the protocol of driver specification 16 never does."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .harness import INVAL, PAGE, PMD, WB_INVAL, WB_ONLY, Client, N, R, W, fabric, reach, refusal


@pytest.fixture
def two():
    made = fabric(strict=True, seed=1)
    a, b = Client(made.hosts["a"]), Client(made.hosts["b"])
    a.host.caches.rate = b.host.caches.rate = 0.0
    yield a, b
    made.check()
    made.close()


def test_16_release_and_acquire_show_the_new_value(two):
    a, b = two
    exported, imported = reach(a, b)
    writer, reader = a.map(exported, W), b.map(imported, N)
    writer.store(0, 1)
    writer.update(R)
    reader.update(R)
    assert reader.load() == 1


def test_16_5_reader_that_does_not_release_keeps_stale_data(two):
    a, b = two
    exported, imported = reach(a, b)
    writer, reader = a.map(exported, W), b.map(imported, R)
    assert reader.load() == 0
    writer.store(0, 1)
    writer.update(R)
    assert reader.load() == 0
    reader.update(N)
    reader.update(R)
    assert reader.load() == 1


def test_16_2_writer_that_does_not_release_is_not_seen(two):
    a, b = two
    exported, imported = reach(a, b)
    writer, reader = a.map(exported, W), b.map(imported, N)
    writer.store(0, 1)
    reader.update(R)
    assert reader.load() == 0


def test_9_8_release_without_a_cache_operation_leaves_both_sides_stale(two):
    a, b = two
    exported, imported = reach(a, b)
    writer, reader = a.map(exported, W), b.map(imported, R)
    writer.store(0, 1)
    writer.update(N, 0)
    reader.update(N, 0)
    reader.update(R, 0)
    assert reader.load() == 0
    writer.update(N, WB_ONLY)
    reader.update(R, INVAL)
    assert reader.load() == 1


def test_6_5_unimport_drops_dirty_lines(two):
    a, b = two
    exported, imported = reach(a, b)
    ours = b.map(imported, W)
    ours.store(0, 1)
    b.host.faults.flush_error = 5
    ours.unmap()
    b.host.faults.reset()
    b.unimport(imported)
    assert a.map(exported, R).load() == 0


def test_9_8_only_dirty_lines_are_written_back(two):
    a, b = two
    exported, imported = reach(a, b)
    one, other = a.map(exported, W), b.map(imported, W)
    one.store(0, 1)
    other.store(64, 2)
    one.update(N, WB_INVAL)
    other.update(N, WB_INVAL)
    one.update(R)
    assert (one.load(0), one.load(64)) == (1, 2)


def test_16_6_data_of_two_writers_in_one_line_is_lost(two):
    a, b = two
    exported, imported = reach(a, b)
    one, other = a.map(exported, W), b.map(imported, W)
    one.store(0, 1)
    other.store(8, 2)
    one.update(N)
    other.update(N)
    one.update(R)
    assert (one.load(0), one.load(8)) == (0, 2)


def test_nc_mappings_are_coherent(two):
    a, b = two
    exported, imported = reach(a, b, kind="NC")
    sync = os.O_RDWR | os.O_SYNC
    writer, reader = a.map(exported, W, flags=sync), b.map(imported, R, flags=sync)
    writer.store(0, 1)
    assert reader.load() == 1


def test_Q12_update_range_of_a_non_cacheable_mapping_is_refused(two):
    a, _ = two
    mem_id = a.export().mem_id
    a.map(mem_id, W).unmap()
    mapped = a.map(mem_id, W, flags=os.O_RDWR | os.O_SYNC)
    mapped.file = a.open(mem_id)
    error = refusal(lambda: mapped.update(N))
    assert (error.errno, error.rule) == (errno.EINVAL, "Q12")
    mapped.file.release()


def test_decoder_programmed_later_shows_the_memory_behind_it(two):
    a, b = two
    export = a.export()
    a.map(export.mem_id, W).store(0, 3)
    a.process.exit()
    base = b.host.spec.controllers[0].windows[0].base
    mapped = b.map(b.import_(base).mem_id, R)
    b.host.program(0x40A, export.tokenid, export.uba, PMD, address=base)
    b.query(1)
    assert mapped.load() == 3


def test_early_eviction_writes_dirty_lines_back_over_somebody_elses_data(two):
    a, b = two
    exported, imported = reach(a, b)
    holder, reader = a.map(exported, W, 8 * PAGE), b.map(imported, N)
    holder.store(0, 1)
    a.host.caches.evict(400)
    reader.update(R)
    assert reader.load() == 1


def test_same_seed_evicts_the_same_pages():
    seen = []
    for _ in range(2):
        made = fabric(1, strict=True, seed=7)
        client = Client(made.hosts["a"])
        mem_id = client.export().mem_id
        mapped = client.map(mem_id, W)
        for page in range(PMD // PAGE):
            mapped.store(page * PAGE, 1)
        for _ in range(40):
            client.query(mem_id)
        client.host.caches.rate = 0.0
        nc = client.host.regions[mem_id].memory
        seen.append(os.pread(nc.fd, PMD, 0)[::PAGE])
        made.close()
    assert seen[0] == seen[1]
    assert 0 < sum(seen[0]) < PMD // PAGE


PAGES = 3


@settings(max_examples=80, deadline=None)
@given(
    hosts=st.integers(2, 3),
    seed=st.integers(0, 1 << 16),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["write", "read", "leave", "idle"]),
            st.integers(0, 2),
            st.integers(0, PAGES - 1),
        ),
        min_size=20,
        max_size=60,
    ),
)
def test_16_protocol_is_always_right(hosts, seed, steps):
    """Per page: one writer and no reader, or readers. Taking a page shows the last published value."""
    made = fabric(hosts, strict=True, seed=seed)
    clients = [Client(host) for host in made.hosts.values()]
    for client in clients:
        client.host.caches.rate = 0.5
    export = clients[0].export()
    maps = [clients[0].map(export.mem_id, N, PAGES * PAGE)]
    for client in clients[1:]:
        window = client.host.program(0x40A, export.tokenid, export.uba, PMD)
        maps.append(client.map(client.import_(window).mem_id, N, PAGES * PAGE))
    rights = {(host, page): N for host in range(hosts) for page in range(PAGES)}
    value = [0] * PAGES
    try:
        for count, (action, host, page) in enumerate(steps, 1):
            host %= hosts
            others = [other for other in range(hosts) if other != host]
            low, high = page * PAGE, (page + 1) * PAGE
            mapped = maps[host]
            if action == "write":
                for other in others:
                    if rights[other, page] != N:
                        maps[other].update(N, start=low, end=high)
                        rights[other, page] = N
                if rights[host, page] != W:
                    mapped.update(W, start=low, end=high)
                    rights[host, page] = W
                assert mapped.load(low) == value[page]
                for word in range(0, 512, 8):
                    mapped.store(low + word, count)
                value[page] = count
            elif action == "read":
                for other in others:
                    if rights[other, page] == W:
                        maps[other].update(R, start=low, end=high)
                        rights[other, page] = R
                if rights[host, page] == N:
                    mapped.update(R, start=low, end=high)
                    rights[host, page] = R
                assert [mapped.load(low + word) for word in range(0, 512, 8)] == [value[page]] * 64
            elif action == "leave" and rights[host, page] != N:
                mapped.update(N, start=low, end=high)
                rights[host, page] = N
            else:
                clients[host].host.caches.evict(3)
        made.check()
    finally:
        for client in clients:
            client.exit()
        made.close()
