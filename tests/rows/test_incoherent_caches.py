# SPDX-License-Identifier: Apache-2.0
"""Cacheable readers under an owner that publishes again, on hosts that do not snoop each other (strict caches).

The owner breaks the ownership protocol here (driver specification 16, rule 4); the reader must notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from row_shelf import expected, publish

import obmm
from obmm import Device, StaleHandleError, emulator
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus
from obmm.rows import Manifest, RowStore, TableSpec

SPEC = TableSpec("t", n_rows=7_500, row_bytes=264)
IDS = np.arange(SPEC.n_rows)


class Hosts:
    """An owner on one host and a reader on the other, each with caches of its own."""

    def __init__(self, undo: ExitStack) -> None:
        fabric = undo.enter_context(emulator.start(nodes=2, strict=True, seed=5))
        a = undo.enter_context(obmm.open(fabric.device("a")))
        self.b: Device = undo.enter_context(obmm.open(fabric.device("b")))
        self.region = undo.enter_context(a.export_region(SPEC.end))
        mapping = undo.enter_context(self.region.map("rw", cache="cc"))
        self.owner = undo.enter_context(RowStore.attach(mapping, Manifest((SPEC,)), verify="none"))
        self.manifest = publish(self.owner, 2)
        imported = undo.enter_context(self.b.import_region(self.region.handle(cache="cc")))
        self.store = undo.enter_context(RowStore.attach([imported], self.manifest, plan=False))

    def publish(self) -> None:
        self.manifest = publish(self.owner, self.manifest.generation + 2)

    def let_lines_go(self, calls: int = 12) -> None:
        """Driver calls of the reader's host, which evict pages now and then."""
        for _ in range(calls):
            self.b.export_region("2MiB").close()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as undo:
        yield Hosts(undo)


def test_check_generation_tells_a_mix_from_a_publication(hosts: Hosts) -> None:
    mixes = 0
    for generation in range(4, 16, 2):
        assert hosts.store.check_generation() == generation - 2
        hosts.publish()
        hosts.let_lines_go()
        try:
            rows = hosts.store.gather("t", IDS)
        except StaleHandleError:  # the header's line was evicted too
            continue
        finally:
            with pytest.raises(StaleHandleError, match=f"publication {generation - 2} was attached"):
                hosts.store.check_generation()
            with pytest.raises(StaleHandleError):
                hosts.store.gather("t", IDS)
            hosts.store.refresh(hosts.manifest)
            assert np.array_equal(hosts.store.gather("t", IDS), expected(IDS, 264, generation))
        old, new = (np.array_equal(rows, expected(IDS, 264, salt)) for salt in (generation - 2, generation))
        mixes += not old and not new
    assert mixes, "no eviction mixed the publications: this test shows nothing"


def test_a_publication_that_has_only_begun_is_noticed(hosts: Hosts) -> None:
    hosts.owner.populate("t", expected(IDS[:10], 264, 4))
    with pytest.raises(StaleHandleError, match="being written"):
        hosts.store.check_generation()


def test_the_prefetcher_hands_out_no_mix(hosts: Hosts) -> None:
    random = np.random.default_rng(1)
    layers = [PrefetchLayer(1, "t", 8)]
    with EngramPrefetcher(hosts.store, layers, 64, deadlines=Deadlines(decode=10)) as prefetcher:
        noticed = 0
        for round_ in range(24):
            if round_ % 4 == 1:
                hosts.publish()
            hosts.let_lines_go(3)
            ids = random.integers(0, SPEC.n_rows, (64, 1, 8))
            generation = hosts.manifest.generation
            try:
                prefetcher.begin(ids, 64)
                prefetcher.start()
                rows = prefetcher.consume(1)
                if rows.status is RowsStatus.OK:
                    assert np.array_equal(rows.buffer, expected(ids[:, 0], 264, generation))
                else:
                    assert not rows.buffer.any()
                prefetcher.drain()
            except StaleHandleError:
                noticed += 1
                with pytest.raises(StaleHandleError):
                    prefetcher.begin(ids, 64)
                hosts.store.refresh(hosts.manifest)
        assert noticed == 6
        assert prefetcher.metrics.steps.values["decode", "ok"] == 18


def test_what_was_attached_unverified_is_checked_from_then_on(hosts: Hosts) -> None:
    unverified = Manifest((SPEC,))
    imported = hosts.b.import_region(hosts.region.handle(cache="cc"))
    with imported, RowStore.attach([imported], unverified, verify="none") as store:
        assert store.check_generation() == 2
        hosts.publish()
        with pytest.raises(StaleHandleError):
            store.check_generation()
        with pytest.raises(StaleHandleError):
            store.gather("t", IDS)


def test_writing_under_leases_of_cacheable_readers_warns(hosts: Hosts) -> None:
    with (
        hosts.region.hold("importers have leases on 'table': revoke it first"),
        pytest.warns(RuntimeWarning, match="importers have leases on 'table'"),
    ):
        hosts.publish()
