# SPDX-License-Identifier: Apache-2.0
"""The prefetcher, and what engines call, over tables in a peer's segment: another process publishes them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from obmm import urma
from obmm.errors import ObmmError, RemoteMemoryError, StaleHandleError
from obmm.integrations.engram import TableClient
from obmm.prefetch import CircuitBreaker, Deadlines, EngramPrefetcher, PeerFailedError, PrefetchLayer, RowsStatus
from obmm.rows import GatherEngine, Manifest, RowStore
from obmm.urma.standin import StandIn

from .conftest import OwnerProcess
from .owner import rows_of

TABLES = [("layer1", 900, 264), ("layer14", 700, 1364)]
LAYERS = [PrefetchLayer(1, "layer1", 24), PrefetchLayer(14, "layer14", 12)]
TOKENS = 16
LONG = Deadlines(decode=10, verify=10, prefill=10, probe=10)


@dataclass
class Published:
    """Both ends: the process that owns the tables, and this one's store over its segment."""

    owner: OwnerProcess
    number: int
    context: urma.Context
    ticket: bytes
    store: RowStore

    def again(self, publication: int) -> RowStore:
        """The owner publishes once more; a store of that."""
        manifest = Manifest.from_dict(self.owner.ask("publish_again", self.number, publication))
        return RowStore.attach(urma.UrmaMemory(self.context, self.ticket), manifest)


@pytest.fixture
def tables(context: urma.Context, spawn: Callable[..., OwnerProcess]) -> Iterator[Published]:
    owner = spawn()
    number, ticket, manifest = owner.ask("publish", TABLES)
    raw = bytes.fromhex(ticket)
    with urma.UrmaMemory(context, raw) as memory:
        yield Published(owner, number, context, raw, RowStore.attach(memory, Manifest.from_dict(manifest)))


def random_ids(random: np.random.Generator, n_tokens: int) -> list[Any]:
    return [
        random.integers(0, rows, (n_tokens, layer.columns)) for layer, (_, rows, _) in zip(LAYERS, TABLES, strict=True)
    ]


def step(prefetcher: EngramPrefetcher, ids: list[Any], publication: int = 2) -> list[RowsStatus]:
    """One step: rows that are called OK are the publication's, all others are zeros."""
    n_tokens = len(ids[0])
    prefetcher.begin(ids, n_tokens, TOKENS)
    prefetcher.start()
    statuses = []
    for layer, (name, n_rows, row_bytes), wanted in zip(LAYERS, TABLES, ids, strict=True):
        rows = prefetcher.consume(layer.layer_id)
        statuses.append(rows.status)
        if rows.status is RowsStatus.OK:
            assert np.array_equal(rows.buffer[:n_tokens], rows_of(name, n_rows, row_bytes, publication)[wanted])
        else:
            assert not rows.buffer[:n_tokens].any()
        assert not rows.buffer[n_tokens:].any()
    return statuses


def test_steps_bring_the_rows_of_another_process_and_it_is_not_asked(tables: Published) -> None:
    random = np.random.default_rng(1)
    spent = tables.owner.ask("cpu")
    with EngramPrefetcher(tables.store, LAYERS, TOKENS, deadlines=LONG) as prefetcher:
        homes = [prefetcher.rows_u8(layer.layer_id).ctypes.data for layer in LAYERS]
        for n_tokens in [0, 1, TOKENS, *random.integers(0, TOKENS + 1, 200)]:
            assert step(prefetcher, random_ids(random, int(n_tokens))) == [RowsStatus.OK] * 2
            report = prefetcher.drain()
            assert report is not None
            assert report.generation == 2
        assert homes == [prefetcher.rows_u8(layer.layer_id).ctypes.data for layer in LAYERS]
        assert prefetcher.metrics.steps.values == {("decode", "ok"): 203}
        rows = prefetcher.metrics.rows.values
        assert {path for _, path in rows} == {"urma"}
        assert min(rows.values()) > 0
    assert tables.owner.ask("cpu") - spent < 0.05


def test_a_step_costs_one_list_for_each_layer_and_the_looks_at_the_version(tables: Published) -> None:
    with EngramPrefetcher(tables.store, LAYERS, TOKENS, deadlines=LONG) as prefetcher:
        before = tables.context.library.counters()
        assert step(prefetcher, random_ids(np.random.default_rng(2), TOKENS)) == [RowsStatus.OK] * 2
        prefetcher.drain()
        after = tables.context.library.counters()
    assert before is not None
    assert after is not None
    rows = sum(layer.columns for layer in LAYERS) * TOKENS
    looks = (after["requests"] - before["requests"]) - rows
    assert after["posts"] - before["posts"] == len(LAYERS) + looks
    assert looks <= 1 + 3 * len(LAYERS)


def test_rows_of_a_step_are_of_one_publication_while_the_owner_publishes(tables: Published) -> None:
    """As over non-cacheable memory: every look goes to the owner, so a step reads what was published when it began."""
    random, seen, stale = np.random.default_rng(3), set(), 0
    stop = threading.Event()

    def write() -> None:
        publication = 2
        while not stop.is_set():
            publication += 2
            tables.owner.ask("publish_again", tables.number, publication)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with EngramPrefetcher(tables.store, LAYERS, TOKENS, deadlines=LONG) as prefetcher:
            end = time.monotonic() + 30
            while (len(seen) < 5 or not stale) and time.monotonic() < end:
                try:
                    ids = random_ids(random, TOKENS)
                    prefetcher.begin(ids, TOKENS)
                    began_at = int(next(iter(prefetcher.metrics.generation.values.values())))
                    prefetcher.start()
                    for layer, (name, n_rows, row_bytes), wanted in zip(LAYERS, TABLES, ids, strict=True):
                        rows = prefetcher.consume(layer.layer_id)
                        if rows.status is RowsStatus.OK:
                            assert np.array_equal(rows.buffer, rows_of(name, n_rows, row_bytes, began_at)[wanted])
                            seen.add(began_at)
                    prefetcher.drain()
                except StaleHandleError:
                    stale += 1
    finally:
        stop.set()
        writer.join()
    assert len(seen) >= 5
    assert stale


def test_another_publication_is_attached_and_no_buffer_moves(tables: Published) -> None:
    random = np.random.default_rng(3)
    with EngramPrefetcher(tables.store, LAYERS, TOKENS, deadlines=LONG) as prefetcher:
        home = prefetcher.rows_u8(1)
        for publication in (4, 6):
            with tables.again(publication) as memory_of_store:
                prefetcher.attach(memory_of_store)
                assert step(prefetcher, random_ids(random, 8), publication) == [RowsStatus.OK] * 2
                report = prefetcher.drain()
            assert report is not None
            assert report.generation == publication
        assert prefetcher.rows_u8(1) is home


def test_a_dead_owner_discards_the_step_and_then_is_not_asked(tables: Published) -> None:
    random = np.random.default_rng(4)
    breaker = CircuitBreaker(threshold=2, probe_interval=60.0)
    with EngramPrefetcher(tables.store, LAYERS, TOKENS, deadlines=LONG, breaker=breaker) as prefetcher:
        assert step(prefetcher, random_ids(random, 8)) == [RowsStatus.OK] * 2
        prefetcher.drain()
        tables.owner.kill()
        with pytest.raises(RemoteMemoryError, match="ACK_TIMEOUT"):
            while True:
                step(prefetcher, random_ids(random, 8))
                prefetcher.drain()
        with pytest.raises((PeerFailedError, RemoteMemoryError)):
            for _ in range(5):
                step(prefetcher, random_ids(random, 8))
                prefetcher.drain()


def test_zero_goes_on_without_a_dead_owner(tables: Published) -> None:
    random = np.random.default_rng(5)
    with EngramPrefetcher(tables.store, LAYERS, TOKENS, policy=("retry", "zero"), deadlines=LONG) as prefetcher:
        tables.owner.kill()
        for _ in range(5):
            assert step(prefetcher, random_ids(random, 8)) == [RowsStatus.ZEROED] * 2
            prefetcher.drain()
        assert "not asking the peer" in repr(prefetcher)


def test_a_failed_read_ends_what_was_queued_behind_it_and_the_next_step_has_a_new_queue(
    tables: Published, standin: StandIn
) -> None:
    with EngramPrefetcher(tables.store, LAYERS, TOKENS, policy="zero", deadlines=LONG) as prefetcher:
        ids = random_ids(np.random.default_rng(6), 8)
        standin.inject("at=30,status=16")
        first = step(prefetcher, ids)
        prefetcher.drain()
        standin.mend()
        assert RowsStatus.ZEROED in first
        assert set(first) <= {RowsStatus.OK, RowsStatus.ZEROED}
        assert step(prefetcher, ids) == [RowsStatus.OK] * 2


@pytest.mark.parametrize("rule", ["every=997,status=9", "every=1499,drop", "every=701,late=300", "every=61,list=3"])
def test_whatever_fails_no_wrong_row_is_called_right(tables: Published, standin: StandIn, rule: str) -> None:
    random = np.random.default_rng(7)
    with urma.UrmaMemory(tables.context, tables.ticket, timeout=0.05) as memory:
        store = RowStore.attach(memory, tables.store.manifest)
        seen: set[RowsStatus] = set()
        breaker = CircuitBreaker(probe_interval=0.001)
        with EngramPrefetcher(
            store, LAYERS, TOKENS, policy=("retry", "zero"), deadlines=LONG, breaker=breaker
        ) as prefetcher:
            standin.inject(rule)
            for _ in range(40):
                seen.update(step(prefetcher, random_ids(random, TOKENS)))
                prefetcher.drain()
            standin.mend()
        assert RowsStatus.OK in seen


def test_a_revoked_segment_is_an_error_and_the_fresh_one_goes_on(tables: Published) -> None:
    random = np.random.default_rng(8)
    with EngramPrefetcher(tables.store, LAYERS, TOKENS, deadlines=LONG) as prefetcher:
        tables.owner.ask("revoke", tables.number)
        with pytest.raises(ObmmError, match="REM_ACCESS_ABORT"):
            step(prefetcher, random_ids(random, 4))
            prefetcher.drain()
        number, ticket, manifest = tables.owner.ask("publish", TABLES)
        assert number != tables.number
        with urma.UrmaMemory(tables.context, bytes.fromhex(ticket)) as memory:
            prefetcher.attach(RowStore.attach(memory, Manifest.from_dict(manifest)))
            assert step(prefetcher, random_ids(random, 4)) == [RowsStatus.OK] * 2
            prefetcher.drain()


def test_an_engines_client_gathers_over_it_and_survives_its_end(tables: Published) -> None:
    random = np.random.default_rng(9)
    with TableClient(tables.store, deadlines=LONG) as client:
        for _ in range(20):
            ids = {name: random.integers(0, n_rows, (4, 6)) for name, n_rows, _ in TABLES}
            under_way = client.submit(ids)
            for name, n_rows, row_bytes in TABLES:
                assert np.array_equal(under_way.rows(name), rows_of(name, n_rows, row_bytes, 2)[ids[name]])
        client.check()
        assert "path urma" in client.explain()
        tables.owner.kill()
        assert not client.gather("layer1", np.zeros(3, np.int64)).any()
        with pytest.raises(ObmmError):
            client.check()


def test_one_engine_serves_this_path_and_local_memory_at_once(tables: Published) -> None:
    """Threads of one engine gather over both; each row is right."""
    from obmm.rows import LocalMemory

    engine = GatherEngine(threads=2)
    try:
        with urma.UrmaMemory(tables.context, tables.ticket) as memory:
            remote = RowStore.attach(memory, tables.store.manifest, engine=engine)
            name, n_rows, row_bytes = TABLES[0]
            near = RowStore.attach(
                LocalMemory(bytearray(tables.store.manifest.nbytes)), Manifest(tables.store.manifest.tables), engine=engine,
                verify="none",
            )  # fmt: skip
            near.populate(name, rows_of(name, n_rows, row_bytes, 2))
            expected, random = rows_of(name, n_rows, row_bytes, 2), np.random.default_rng(10)
            for _ in range(50):
                ids = random.integers(0, n_rows, 400)
                outs = [np.zeros((400, row_bytes), np.uint8) for _ in range(4)]
                tickets = [
                    store.submit(name, ids, out) for store, out in zip([remote, near, remote, near], outs, strict=True)
                ]
                for ticket, out in zip(tickets, outs, strict=True):
                    ticket.result()
                    assert np.array_equal(out, expected[ids])
    finally:
        engine.close()


def test_the_manifest_over_the_wire_is_the_one_that_the_header_vouches_for(tables: Published) -> None:
    told = tables.store.manifest.to_dict()
    other = json.loads(json.dumps(told).replace('"rows": 700,', '"rows": 700, "checksum": "00",'))
    assert other != told
    with urma.UrmaMemory(tables.context, tables.ticket) as memory, pytest.raises(ObmmError, match="manifest"):
        RowStore.attach(memory, Manifest.from_dict(other))
