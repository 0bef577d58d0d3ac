# SPDX-License-Identifier: Apache-2.0
"""Hash, prefetch and verify over imported memory; exporters that publish again, take memory away, or die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from fabric_tables import (
    LAYERS,
    MODEL,
    TOKEN_MAP,
    VOCABULARY,
    WANTED,
    Published,
    content,
    described,
    fill,
    published,
    replica,
)
from memory_source import until

import obmm
from obmm import Device, MappingBusyError, RemoteMemoryError, StaleHandleError, emulator
from obmm.prefetch import (
    CircuitBreaker,
    Deadlines,
    EngramHasher,
    EngramPrefetcher,
    History,
    PeerFailedError,
    RowsStatus,
)
from obmm.rows import RowStore

POISON_UNIT = 16 << 10  # of the topology `poison_topology`
LONG = Deadlines(decode=10, verify=10, prefill=10, probe=10)


@pytest.fixture(scope="module")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=2) as started:
        yield started
        assert started.status()["internal_errors"] == 0


@pytest.fixture
def a(fabric: emulator.Fabric) -> Iterator[Device]:
    """Whatever a test leaves in the fabric fails it."""
    with obmm.open(fabric.device("a")) as device:
        yield device
    nodes = fabric.status()["nodes"]
    assert not any(nodes[name][kind] for name in nodes for kind in ("regions", "windows", "open_files")), nodes


@pytest.fixture
def b(fabric: emulator.Fabric, a: Device) -> Iterator[Device]:
    with obmm.open(fabric.device("b")) as device:
        yield device


@pytest.fixture
def tables(a: Device, b: Device) -> Iterator[Published]:
    with published(a, b) as made:
        yield made


def random_ids(random: np.random.Generator, n_tokens: int) -> list[np.ndarray]:
    return [
        random.integers(0, layer.rows, (n_tokens, wanted.columns)) for layer, wanted in zip(LAYERS, WANTED, strict=True)
    ]


# --- the whole path -----------------------------------------------------------------------------------------------


def test_mixed_batches_bring_the_rows_that_the_oracle_names(tables: Published) -> None:
    """Prefill, chunk, decode, rejected drafts and T = 0, hashed, prefetched and compared byte by byte."""
    random = np.random.default_rng(1)
    hasher = EngramHasher(tables.store.manifest.to_dict(), token_map=TOKEN_MAP)
    history = History(hasher.order)
    sequences: dict[int, list[int]] = {request: [] for request in range(6)}
    with EngramPrefetcher(tables.store, WANTED, max_tokens=64, deadlines=LONG) as prefetcher:
        for _ in range(60):
            requests = [request for request in sequences if random.random() < 0.5]
            pieces = [random.integers(0, VOCABULARY, random.choice([1, 1, 2, 9])).tolist() for _ in requests]
            starts = np.cumsum([0, *map(len, pieces)])
            tokens = np.array([token for piece in pieces for token in piece], np.int64)
            positions = [len(sequences[request]) for request in requests]
            ids = hasher.hash(tokens, starts, history.windows(requests, positions))
            prefetcher.begin(ids, len(tokens), padded_tokens=64, phase="verify")
            prefetcher.start()
            wanted = []
            for request, piece in zip(requests, pieces, strict=True):
                whole = sequences[request] + piece
                wanted += [oracle.look_back(whole, t, hasher.order) for t in range(len(sequences[request]), len(whole))]
                history.extend(request, piece)
                rejected = int(random.integers(0, len(piece)))
                history.rollback(request, rejected)
                sequences[request] = whole[: len(whole) - rejected]
            for layer in LAYERS:
                rows = prefetcher.consume(layer.layer_id)
                assert rows.status is RowsStatus.OK
                for t, window in enumerate(wanted):
                    expected = oracle.engram_row(window, layer.multipliers, layer.primes, MODEL["pad_id"])
                    assert np.array_equal(rows.buffer[t], content(layer.layer_id, np.array(expected), 2))
                assert not rows.buffer[len(wanted) :].any()
            prefetcher.drain()


def test_addresses_stay_over_10_000_steps_over_the_fabric(tables: Published) -> None:
    random = np.random.default_rng(2)
    with EngramPrefetcher(tables.store, WANTED, max_tokens=4, deadlines=LONG) as prefetcher:
        homes = {layer.layer_id: prefetcher.rows_u8(layer.layer_id).ctypes.data for layer in LAYERS}
        batches = [random_ids(random, n_tokens) for n_tokens in (0, 1, 2, 3, 4)]
        for step in range(10_000):
            ids = batches[step % 5]
            prefetcher.begin(ids, len(ids[0]), 4)
            prefetcher.start()
            for layer, layer_ids in zip(LAYERS, ids, strict=True):
                rows = prefetcher.consume(layer.layer_id)
                assert rows.buffer.ctypes.data == homes[layer.layer_id]
                if step % 97 == 0:
                    assert np.array_equal(rows.buffer[: len(layer_ids)], content(layer.layer_id, layer_ids, 2))
            prefetcher.drain()
        assert prefetcher.metrics.steps.values == {("decode", "ok"): 10_000}


def test_first_and_last_row_and_rows_that_are_none(tables: Published) -> None:
    ids = [np.array([[0, layer.rows - 1, -1, layer.rows, 0, -(2**62)]]) for layer in LAYERS]
    with EngramPrefetcher(tables.store, WANTED, max_tokens=2, invalid="zero", deadlines=LONG) as prefetcher:
        prefetcher.begin(ids, 1, 2)
        prefetcher.start()
        for layer, layer_ids in zip(LAYERS, ids, strict=True):
            got = prefetcher.consume(layer.layer_id).buffer
            expected = content(layer.layer_id, np.abs(layer_ids), 2)
            expected[(layer_ids < 0) | (layer_ids >= layer.rows)] = 0
            assert np.array_equal(got[:1], expected)


# --- an exporter that publishes again (acceptance 10) -------------------------------------------------------------


@pytest.mark.parametrize("cache", ["cc", "nc"])
def test_rows_of_a_step_are_of_one_publication(a: Device, b: Device, cache: Any) -> None:
    """A writer publishes without a pause; whatever is handed out as OK is whole and of the step's version.

    A cacheable reader has to refresh before it reads a new one; a non-cacheable one just reads it.
    """
    with published(a, b, cache) as tables:
        read_under_a_writer(tables, refreshing=cache == "cc")


def read_under_a_writer(tables: Published, refreshing: bool) -> None:
    stop = threading.Event()

    def write() -> None:
        generation = 2
        while not stop.is_set():
            generation += 2
            fill(tables.owner, generation)
            time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    random = np.random.default_rng(3)
    seen: set[int] = set()
    stale = 0
    try:
        with EngramPrefetcher(tables.store, WANTED, max_tokens=64, deadlines=LONG) as prefetcher:
            end = time.monotonic() + 20
            while (len(seen) < 20 or not stale) and time.monotonic() < end:
                ids = random_ids(random, 64)
                try:
                    prefetcher.begin(ids, 64)
                except StaleHandleError:
                    stale += 1
                    if refreshing:
                        with suppress(StaleHandleError):
                            tables.store.refresh(tables.owner.manifest)
                    continue
                prefetcher.start()
                for layer, layer_ids in zip(LAYERS, ids, strict=True):
                    rows = prefetcher.consume(layer.layer_id)
                    if rows.status is RowsStatus.OK:
                        generation = int(next(iter(prefetcher.metrics.generation.values.values())))
                        assert np.array_equal(rows.buffer, content(layer.layer_id, layer_ids, generation))
                        seen.add(generation)
                    else:
                        assert rows.status is RowsStatus.FAILED
                        assert not rows.buffer.any()
                try:
                    prefetcher.drain()
                except StaleHandleError:
                    stale += 1
    finally:
        stop.set()
        writer.join()
    assert len(seen) >= 20
    assert stale > 0


@pytest.mark.parametrize("cache", ["cc", "nc"])
def test_a_new_publication_is_attached_and_read_with_caches_modelled(cache: Any) -> None:
    """Strict caches: each node keeps its own copies, moved by the ownership rules only."""
    random = np.random.default_rng(12)
    with (
        emulator.start(nodes=2, strict=True, seed=3) as fabric,
        obmm.open(fabric.device("a")) as a,
        obmm.open(fabric.device("b")) as b,
        a.export_region(described().nbytes) as region,
        region.map("rw", cache=cache) as mapping,
        RowStore.attach(mapping, described(), verify="none") as owner,
        ExitStack() as undo,
    ):
        prefetcher: EngramPrefetcher | None = None
        for generation in (2, 4, 6):
            manifest = fill(owner, generation)
            with (
                b.import_region(region.handle(cache=cache)) as imported,
                RowStore.attach([imported], manifest, plan=False, cache=cache) as store,
            ):
                if prefetcher is None:
                    prefetcher = undo.enter_context(EngramPrefetcher(store, WANTED, 8, deadlines=LONG))
                else:
                    prefetcher.attach(store)
                home = prefetcher.rows_u8(1)
                for _ in range(3):
                    ids = random_ids(random, 8)
                    assert step(prefetcher, ids) == [RowsStatus.OK] * 2
                    for layer, layer_ids in zip(LAYERS, ids, strict=True):
                        got = prefetcher.consume(layer.layer_id).buffer
                        assert np.array_equal(got, content(layer.layer_id, layer_ids, generation))
                    report = prefetcher.drain()
                    assert report is not None
                    assert report.generation == generation
                assert prefetcher.rows_u8(1) is home


# --- an exporter that takes its memory away (acceptance 9) --------------------------------------------------------


def step(prefetcher: EngramPrefetcher, ids: list[np.ndarray]) -> list[RowsStatus]:
    prefetcher.begin(ids, len(ids[0]))
    prefetcher.start()
    return [prefetcher.consume(layer.layer_id).status for layer in LAYERS]


def test_raise_discards_the_step_and_then_stops_asking(tables: Published) -> None:
    ids = random_ids(np.random.default_rng(4), 8)
    breaker = CircuitBreaker(threshold=2, probe_interval=0.01)
    with EngramPrefetcher(tables.store, WANTED, 8, deadlines=LONG, breaker=breaker) as prefetcher:
        assert step(prefetcher, ids) == [RowsStatus.OK] * 2
        prefetcher.drain()
        prefetcher.begin(ids, 8)
        tables.take_away()
        prefetcher.start()
        for layer in LAYERS:
            rows = prefetcher.consume(layer.layer_id)
            assert rows.status is RowsStatus.FAILED
            assert not rows.buffer.any()
        with pytest.raises(RemoteMemoryError, match="SIGBUS"):
            prefetcher.drain()
        # the canary rows are gone too: the breaker stays open however often it is asked
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            with pytest.raises(PeerFailedError):
                prefetcher.begin(ids, 8)
            time.sleep(0.005)


def test_zero_goes_on_without_the_rows(tables: Published) -> None:
    ids = random_ids(np.random.default_rng(5), 8)
    with EngramPrefetcher(tables.store, WANTED, 8, policy=("retry", "zero"), deadlines=LONG) as prefetcher:
        assert "policy retry, zero, asking the peer" in repr(prefetcher)
        assert "emulator" in repr(prefetcher)
        tables.take_away()
        for _ in range(5):
            prefetcher.begin(ids, 8)
            prefetcher.start()
            for layer in LAYERS:
                rows = prefetcher.consume(layer.layer_id)
                assert rows.status is RowsStatus.ZEROED
                assert not rows.buffer.any()
            prefetcher.drain()
        assert "not asking the peer: 3 failed gathers in a row" in repr(prefetcher)


def test_zero_spoils_the_tokens_that_lost_a_row_and_no_other_byte(poison_topology: Path) -> None:
    """11.2: all rows of the affected tokens are zero and the tokens marked, also when it happens at every step."""
    with ExitStack() as undo:
        fabric = undo.enter_context(emulator.start(topology=poison_topology))
        here, there = (undo.enter_context(obmm.open(fabric.device(name))) for name in "ab")
        tables = undo.enter_context(published(here, there))
        prefetcher = undo.enter_context(EngramPrefetcher(tables.store, WANTED, 64, policy="zero", deadlines=LONG))
        lost = LAYERS[1].layer_id
        spec = tables.store.tables[lost]
        offset = tables.region.data_offset + spec.offset_of(spec.n_rows // 2)
        fabric.inject("a", "poison", mem_id=tables.region.mem_id, offset=offset)
        low = offset // POISON_UNIT * POISON_UNIT - tables.region.data_offset
        gone = [
            row
            for row in range(spec.n_rows)
            if spec.offset_of(row) < low + POISON_UNIT and spec.offset_of(row) + spec.row_bytes > low
        ]
        random = np.random.default_rng(8)
        for n_step in range(6):  # more often than the breaker would bear failures of the peer
            ids = random_ids(random, 40)
            ids[1][np.isin(ids[1], gone)] = 0
            for token in (3, 17 + n_step, 39):
                ids[1][token, token % WANTED[1].columns] = gone[token % 4]
            prefetcher.begin(ids, 40, padded_tokens=64)
            prefetcher.start()
            first, second = (prefetcher.consume(layer.layer_id) for layer in LAYERS)
            assert first.status is RowsStatus.OK
            assert np.array_equal(first.buffer[:40], content(LAYERS[0].layer_id, ids[0], 2))
            assert second.status is RowsStatus.ZEROED
            assert second.failed_tokens is not None
            assert np.flatnonzero(second.failed_tokens).tolist() == [3, 17 + n_step, 39]
            wanted = content(lost, ids[1], 2)
            wanted[second.failed_tokens] = 0
            assert np.array_equal(second.buffer[:40], wanted)
            assert not second.buffer[40:].any()
            prefetcher.drain()
        assert "asking the peer" in repr(prefetcher)
        assert prefetcher.metrics.zero_rows.values == {(str(lost), "policy"): 6 * 3 * WANTED[1].columns}


@pytest.mark.parametrize("cache", ["cc", "nc"])
def test_hot_rows_are_of_the_publication_that_begin_saw(a: Device, b: Device, cache: Any) -> None:
    random = np.random.default_rng(9)
    with (
        published(a, b, cache, hot_rows=4000) as tables,
        EngramPrefetcher(tables.store, WANTED, 16, deadlines=LONG) as prefetcher,
    ):
        ids = random_ids(random, 16)
        for generation in (2, 4, 6):
            if generation > 2:
                tables.store.refresh(fill(tables.owner, generation))
            hits = [sum(hot.hits for hot in tables.store.hot.values())]
            for _ in range(2):
                prefetcher.begin(ids, 16)
                prefetcher.start()
                for layer, layer_ids in zip(LAYERS, ids, strict=True):
                    rows = prefetcher.consume(layer.layer_id)
                    assert rows.status is RowsStatus.OK
                    assert np.array_equal(rows.buffer, content(layer.layer_id, layer_ids, generation))
                prefetcher.drain()
                hits.append(sum(hot.hits for hot in tables.store.hot.values()))
            first, second = np.diff(hits)
            assert first < second == sum(layer_ids.size for layer_ids in ids)


def test_local_goes_on_with_the_replica(tables: Published) -> None:
    ids = random_ids(np.random.default_rng(6), 8)
    with (
        replica(2) as local,
        EngramPrefetcher(tables.store, WANTED, 8, policy="local", replica=local, deadlines=LONG) as prefetcher,
    ):
        tables.take_away()
        for _ in range(5):
            prefetcher.begin(ids, 8)
            prefetcher.start()
            for layer, layer_ids in zip(LAYERS, ids, strict=True):
                rows = prefetcher.consume(layer.layer_id)
                assert rows.status is RowsStatus.REPLICA
                assert np.array_equal(rows.buffer, content(layer.layer_id, layer_ids, 2))
            prefetcher.drain()


def test_a_lease_that_is_lost_opens_the_breaker(fabric: emulator.Fabric, a: Device, b: Device) -> None:
    """The exporter's process is killed.  Its memory stays (driver specification 8), but no process answers for it."""
    here, there = multiprocessing.Pipe()
    owner = multiprocessing.get_context("spawn").Process(target=serve, args=(fabric.device("a"), there))
    owner.start()
    mem_id, port = here.recv()
    assert owner.pid is not None
    ids = random_ids(np.random.default_rng(7), 8)
    with ExitStack() as undo:
        peer = obmm.connect(f"127.0.0.1:{port}", plain=True)
        undo.callback(peer.close, timeout=0.1, force=True)  # the other side is gone by then
        lease = peer.fetch("engram")
        with (
            b.import_region(lease) as region,
            RowStore.attach([region], lease.manifest, plan=False) as store,
            EngramPrefetcher(store, WANTED, 8, deadlines=LONG) as prefetcher,
        ):
            assert step(prefetcher, ids) == [RowsStatus.OK] * 2
            prefetcher.drain()
            os.kill(owner.pid, signal.SIGKILL)
            owner.join()
            # until the lease runs out the rows are right; after that the prefetcher refuses before it reads
            refusals: list[PeerFailedError] = []

            def refused() -> bool:
                try:
                    statuses = step(prefetcher, ids)
                except PeerFailedError as refusal:
                    refusals.append(refusal)
                    return True
                try:
                    prefetcher.drain()
                except obmm.ObmmError:
                    assert RowsStatus.FAILED in statuses
                else:
                    assert statuses == [RowsStatus.OK] * 2
                return False

            until(refused, 20)
            assert "lease" in str(refusals[0])
            assert prefetcher.metrics.heartbeat_age.values[("engram",)] >= 0.4  # two thirds of the term, unrenewed
    a.driver.unexport(mem_id)


def serve(device: str, control: Connection) -> None:
    with obmm.open(device) as opened:
        region = opened.export_region(described().nbytes)
        with region.map("rw") as mapping, RowStore.attach(mapping, described(), verify="none") as owner:
            manifest = fill(owner, 2)
            server = obmm.serve({"engram": (region, manifest.to_dict())}, port=0, plain=True, term_s=0.6)
            control.send((region.mem_id, server.port))
            control.recv()


def test_memory_that_goes_while_gathers_run_ends_in_errors_only(fabric: emulator.Fabric, tables: Published) -> None:
    """Every step is whole and right, or zeros with a status; the process lives and nothing hangs."""
    random = np.random.default_rng(13)
    with EngramPrefetcher(tables.store, WANTED, 64, deadlines=LONG) as prefetcher:
        killer = threading.Timer(0.2, fabric.inject, ("a", "revoke"), {"mem_id": tables.region.mem_id})
        killer.start()
        good = 0
        end = time.monotonic() + 20
        while time.monotonic() < end:
            ids = random_ids(random, 64)
            try:
                prefetcher.begin(ids, 64)
            except RemoteMemoryError:
                break  # the content version could not be read any more
            prefetcher.start()
            got = [prefetcher.consume(layer.layer_id) for layer in LAYERS]
            for layer, layer_ids, rows in zip(LAYERS, ids, got, strict=True):
                expected = content(layer.layer_id, layer_ids, 2) if rows.status is RowsStatus.OK else 0
                assert np.array_equal(rows.buffer, np.broadcast_to(expected, rows.buffer.shape))
            if any(rows.status is RowsStatus.FAILED for rows in got):
                with pytest.raises(RemoteMemoryError, match="SIGBUS"):
                    prefetcher.drain()
                break
            prefetcher.drain()
            good += 1
        else:
            pytest.fail("the memory never went")
        killer.join()
        assert good > 0


# --- closing (acceptance 11) --------------------------------------------------------------------------------------


def test_a_store_with_a_view_stays_open_under_the_prefetcher(tables: Published) -> None:
    ids = random_ids(np.random.default_rng(8), 8)
    with EngramPrefetcher(tables.store, WANTED, 8, deadlines=LONG) as prefetcher:
        view = tables.store.view(LAYERS[0].layer_id)
        with pytest.raises(MappingBusyError):
            tables.store.close()
        assert step(prefetcher, ids) == [RowsStatus.OK] * 2
        prefetcher.drain()
        del view


def test_a_closed_store_is_a_fault_and_not_a_crash(tables: Published) -> None:
    ids = random_ids(np.random.default_rng(9), 8)
    with EngramPrefetcher(tables.store, WANTED, 8, deadlines=LONG) as prefetcher:
        prefetcher.begin(ids, 8)
        tables.store.close()
        prefetcher.start()
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(obmm.ObmmError):
            prefetcher.drain()
        with pytest.raises(PeerFailedError):
            prefetcher.begin(ids, 8)


# --- one reader of several ------------------------------------------------------------------------------------------


def test_a_rank_reads_its_columns_or_its_rows_only(tables: Published) -> None:
    """The subsets of tensor-parallel ranks: what another rank reads is zeros here (Engram specification 7.4)."""
    ids = random_ids(np.random.default_rng(10), 8)
    ranks = [tables.store.column_slice(columns, 6) for columns in ([0, 1, 2], [3, 4, 5])]
    halves = [tables.store.id_range(0, 400), tables.store.id_range(400, 1 << 40)]
    for readers in (ranks, halves):
        parts = []
        for reader in readers:
            with EngramPrefetcher(reader, WANTED, 8, deadlines=LONG) as prefetcher:
                assert step(prefetcher, ids) == [RowsStatus.OK] * 2
                parts.append([prefetcher.consume(layer.layer_id).buffer.copy() for layer in LAYERS])
                prefetcher.drain()
        for place, layer in enumerate(LAYERS):
            read_by_both = parts[0][place].any(axis=-1) & parts[1][place].any(axis=-1)
            assert not read_by_both.any()
            assert np.array_equal(parts[0][place] | parts[1][place], content(layer.layer_id, ids[place], 2))
