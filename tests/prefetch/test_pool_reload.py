# SPDX-License-Identifier: Apache-2.0
"""A table that its owner loads anew: readers let go, attach again, and never see a mix (driver specification 16, rule 4)."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from pool_node import DIM, ROWS, config, table

import obmm
from obmm import emulator
from obmm.prefetch.pool import EngramPool, EngramPrefetcher

pytestmark = pytest.mark.usefixtures("without_torch")


def own(device: str, control: Connection) -> None:
    """The owner's process: ``(table, seed)`` loads, "restart" begins again with another export, "stop" ends; a number is how
    many milliseconds it waits for its readers from then on.
    """
    with obmm.open(device) as opened:
        pool = EngramPool(config(plain=True, request_timeout_ms=30_000), device=opened)
        pool.initialize()
        for number in (0, 1):
            pool.load_table(number, table(number))
        port = pool.serve().port
        control.send(port)
        while (command := control.recv()) != "stop":
            try:
                if command == "restart":
                    pool.shutdown()
                    pool = EngramPool(config(plain=True, ports=[port]), device=opened)
                    pool.initialize()
                    pool.load_table(0, table(50))
                    pool.serve()
                elif isinstance(command, int):
                    pool.config.request_timeout_ms = command
                else:
                    pool.load_table(command[0], table(command[1]))
                control.send("done")
            except obmm.ObmmError as error:
                control.send(type(error).__name__)
        pool.shutdown()


class Owner:
    """The other end of `own`."""

    def __init__(self, device: str) -> None:
        self._control, there = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=own, args=(device, there))
        self._process.start()
        there.close()
        self.port: int = self._control.recv()

    def ask(self, command: Any) -> str:
        self._control.send(command)
        assert self._control.poll(60), "the owner does not answer"
        answer: str = self._control.recv()
        return answer

    def stop(self) -> None:
        self._control.send("stop")
        self._process.join(30)
        assert self._process.exitcode == 0


@pytest.fixture(scope="module")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=2) as started:
        yield started
        status = started.status()
        assert status["internal_errors"] == 0
        assert not any(node["regions"] or node["windows"] for node in status["nodes"].values())


@pytest.fixture
def owner(fabric: emulator.Fabric) -> Iterator[Owner]:
    made = Owner(fabric.device("a"))
    yield made
    made.stop()


@pytest.fixture
def reader(fabric: emulator.Fabric, owner: Owner) -> Iterator[EngramPool]:
    with obmm.open(fabric.device("b")) as device:
        settings = config(hosts=["127.0.0.1"], ports=[owner.port], max_batch_keys=100, plain=True)
        pool = EngramPool(settings, device=device)
        pool.initialize()
        yield pool
        pool.shutdown()


ALL = np.arange(ROWS)


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_idle_reader_lets_go_and_reads_the_new_content_next(owner: Owner, reader: EngramPool) -> None:
    assert np.array_equal(reader.batch_lookup(0, ALL), table(0))
    before = reader.get_table_meta(0)["generation"]
    for seed in (20, 21, 22):
        assert owner.ask((0, seed)) == "done"
        assert np.array_equal(reader.batch_lookup(0, ALL), table(seed))
    assert reader.get_table_meta(0)["generation"] == before + 6
    assert np.array_equal(reader.batch_lookup(1, ALL), table(1))


def test_lookups_while_tables_are_loaded_are_whole_and_none_fails(owner: Owner, reader: EngramPool) -> None:
    """Old or new, never both in one lookup, however many pieces it has; and no older one after a newer one."""
    seeds = [0, *range(30, 40)]
    contents = [table(seed) for seed in seeds]
    stop = threading.Event()
    wrong: list[Any] = []
    seen: set[int] = set()

    def look(seed: int) -> None:
        random = np.random.default_rng(seed)
        newest = 0
        try:
            while not stop.is_set():
                ids = random.integers(0, ROWS, 950)
                rows = reader.batch_lookup(0, ids)
                found = [place for place, content in enumerate(contents) if np.array_equal(rows, content[ids])]
                if len(found) != 1 or found[0] < newest:
                    wrong.append((found, newest))
                    return
                newest = found[0]
                seen.add(newest)
        except Exception as error:
            wrong.append(error)

    reader.batch_lookup(0, [0])
    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    _until(lambda: seen or wrong)
    for seed in seeds[1:]:
        assert owner.ask((0, seed)) == "done"
    _until(lambda: len(seeds) - 1 in seen or wrong)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert len(seen) > 1
    assert np.array_equal(reader.batch_lookup(0, ALL), contents[-1])


def test_a_request_that_was_started_before_is_answered_after(owner: Owner, reader: EngramPool) -> None:
    prefetcher = EngramPrefetcher(reader)
    request = prefetcher.prefetch_async([(0, ALL), (1, ALL)], ROWS, dtype="float32")
    assert owner.ask((0, 25)) == "done"
    rows = prefetcher.wait_and_gather(request)
    assert any(np.array_equal(rows[0], table(seed)) for seed in (0, 25))
    assert np.array_equal(rows[1], table(1))
    assert rows.shape == (2, ROWS, DIM)


def test_an_owner_that_exports_again_is_found_again(owner: Owner, reader: EngramPool) -> None:
    """Another export under the same name at the same address; a table that is not there any more stays away."""
    assert np.array_equal(reader.batch_lookup(0, ALL), table(0))
    reader.batch_lookup(1, [0])
    assert owner.ask("restart") == "done"
    assert np.array_equal(reader.batch_lookup(0, ALL), table(50))
    assert not reader.is_table_loaded(1)
    reader.config.request_timeout_ms = 100
    with pytest.raises(obmm.ObmmArgumentError, match="table 1 is neither"):
        reader.batch_lookup(1, [0])


def test_a_lookup_waits_for_an_owner_that_is_loading(owner: Owner, reader: EngramPool) -> None:
    """Between the revocation and the new publication the table is nowhere; the lookup comes back with the new one."""
    assert np.array_equal(reader.batch_lookup(0, ALL), table(0))
    view = reader._tables[0].store.view(0)  # this reader cannot let go yet
    answer: list[str] = []
    loading = threading.Thread(target=lambda: answer.append(owner.ask((0, 26))))
    loading.start()
    lease = reader._tables[0].lease
    assert lease is not None
    end = time.monotonic() + 20
    while lease.usable and time.monotonic() < end:
        time.sleep(0.001)
    looked = reader.batch_lookup_async(0, ALL)
    del view
    gc.collect()
    assert np.array_equal(looked.result(30), table(26))
    loading.join(30)
    assert answer == ["done"]


def test_a_reader_that_does_not_let_go_keeps_the_old_content(owner: Owner, reader: EngramPool) -> None:
    assert np.array_equal(reader.batch_lookup(0, ALL), table(0))
    held = reader._tables[0]
    view = held.store.view(0)
    assert owner.ask(1_000) == "done"
    assert owner.ask((0, 27)) == "LeasesOutstandingError"
    assert owner.ask(30_000) == "done"
    assert np.array_equal(view.view("<f4"), table(0))
    del view
    gc.collect()
    held.close(1.0)
    assert owner.ask((0, 28)) == "done"
    assert np.array_equal(reader.batch_lookup(0, ALL), table(28))
