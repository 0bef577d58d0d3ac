# SPDX-License-Identifier: Apache-2.0
"""What a door relies on: rows or zeros, never an exception in a forward, and a table that comes back."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import ROW_BYTES, ROWS, TABLES, Owner, content, owner

import obmm
from obmm import emulator
from obmm.errors import ClosedError, ObmmArgumentError, ObmmError
from obmm.exchange import PeerUnreachableError, RequestRefusedError
from obmm.integrations.engram import TableClient
from obmm.integrations.exposed import expose
from obmm.integrations.link import TableAddress
from obmm.integrations.table_metrics import TableCollector
from obmm.prefetch import Deadlines
from obmm.rows import default_engine
from obmm.rows.accelerator import Accelerator

LONG = Deadlines(decode=10, prefill=10, verify=10, probe=1)
SHORT = Deadlines(decode=0.05, prefill=0.05, verify=0.05, probe=0.05)


def connected(fabric: emulator.Fabric, served: Owner, **options: Any) -> TableClient:
    options = {"deadlines": LONG, "plan": False, **options}
    return TableClient(served.source, plain=True, device=fabric.device("b"), **options)


@pytest.fixture
def client(fabric: emulator.Fabric, steady: Owner) -> Iterator[TableClient]:
    with connected(fabric, steady) as made:
        yield made


@pytest.fixture
def mine(fabric: emulator.Fabric, served: Owner) -> Iterator[TableClient]:
    """Of an owner that does as this test says."""
    with connected(fabric, served) as made:
        yield made


def random_ids(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, ROWS, shape)


def until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)


def gathers_edition(client: TableClient, edition: int) -> bool:
    ids = random_ids(0, 50)
    good = np.array_equal(client.gather("layer1", ids), content("layer1", ids, edition))
    if client.failing:
        with pytest.raises(ObmmError):
            client.check()
        return False
    return good


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(0,), (1,), (7, 24), (2, 3, 5), (300, 24)])
def test_rows_have_the_shape_of_their_ids(client: TableClient, shape: tuple[int, ...], dtype: Any) -> None:
    ids = random_ids(1, *shape).astype(dtype)
    for table in TABLES:
        rows = client.gather(table, ids)
        assert rows.shape == (*shape, ROW_BYTES)
        assert np.array_equal(rows, content(table, ids, 1))
    client.check()


def test_all_tables_of_a_step_start_together(client: TableClient) -> None:
    ids = {table: random_ids(2, 100, 24) for table in TABLES}
    step = client.submit(ids)
    for table in reversed(TABLES):
        assert np.array_equal(step.rows(table), content(table, ids[table], 1))
    assert step.ok
    client.check()


def test_a_step_is_handed_over_only_where_that_pays(client: TableClient) -> None:
    """A ticket is held until its rows are taken."""
    few, many = ({table: random_ids(2, rows) for table in TABLES} for rows in (24, 60_000))
    for call, ids, tickets in ((client.submit, few, 0), (client.fetch, many, 0), (client.submit, many, 2)):
        step = call(ids)
        assert default_engine().in_use == tickets
        for table in TABLES:
            assert np.array_equal(step.rows(table), content(table, ids[table], 1))
    client.check()


def test_a_peer_that_was_slow_is_waited_for_in_the_background(fabric: emulator.Fabric, steady: Owner) -> None:
    late = Deadlines(decode=0, prefill=0, verify=0, probe=1)
    with connected(fabric, steady, deadlines=late) as client:
        ids = {"layer1": random_ids(2, 24)}
        assert np.array_equal(client.fetch(ids).rows("layer1"), content("layer1", ids["layer1"], 1))
        step = client.fetch(ids)
        assert default_engine().in_use == 1
        step.rows("layer1")


def test_buffers_do_not_move(client: TableClient) -> None:
    client.reserve(["layer1"], 1000)
    addresses = {client.gather("layer1", random_ids(n, n)).ctypes.data for n in range(1, 1000, 37)}
    assert len(addresses) == 1


def test_after_freezing_nothing_grows(client: TableClient) -> None:
    client.reserve(["layer1"], 500)
    client.freeze()
    assert client.gather("layer1", random_ids(3, 500)).any()
    client.check()
    assert not client.gather("layer1", random_ids(4, 5000)).any()
    with pytest.raises(ObmmArgumentError, match="reserve"):
        client.check()


def test_minus_one_is_a_row_of_zeros_and_no_error(client: TableClient) -> None:
    ids = random_ids(5, 10)
    ids[3] = -1
    expected = content("layer1", np.abs(ids), 1)
    expected[3] = 0
    assert np.array_equal(client.gather("layer1", ids), expected)
    client.check()


@pytest.mark.parametrize("wrong", [ROWS, -2, 2**62])
def test_an_id_outside_its_table_is_zeros_and_a_sentence(client: TableClient, wrong: int) -> None:
    ids = random_ids(6, 10)
    ids[3] = wrong
    rows = client.gather("layer1", ids)
    assert not rows[3].any()
    assert np.array_equal(np.delete(rows, 3, 0), content("layer1", np.delete(ids, 3), 1))
    with pytest.raises(ObmmArgumentError, match=r"1 of 10 ids are in no row of 'layer1'"):
        client.check()
    client.check()


@pytest.mark.parametrize(
    "ids", [[1, 2], (1,), np.array([1.5]), np.array(["a"]), None, np.array([1], np.uint8)], ids=str
)
def test_ids_of_another_kind_are_zeros_in_a_forward_and_a_sentence_after_it(client: TableClient, ids: Any) -> None:
    rows = client.gather("layer1", ids)
    assert rows.shape == (*np.shape(ids), ROW_BYTES)
    assert not rows.any()
    with pytest.raises(ObmmArgumentError, match="int32 or int64"):
        client.check()


@pytest.mark.parametrize(
    "failure", [RuntimeError("pinned memory"), MemoryError("pinned memory"), OSError(12, "pinned memory")]
)
def test_buffers_that_cannot_be_made_are_zeros_in_a_forward_and_a_sentence_after_it(
    fabric: emulator.Fabric, steady: Owner, failure: Exception
) -> None:
    def refuse(nbytes: int) -> Any:
        raise failure

    with connected(fabric, steady, allocate=refuse) as client:
        assert not client.gather("layer1", random_ids(0, 5)).any()
        with pytest.raises(ObmmError, match=r"gave zeros: .*pinned memory"):
            client.check()


def test_a_step_whose_buffers_are_another_steps_by_now_gives_zeros(client: TableClient) -> None:
    first, second = random_ids(1, 20), random_ids(2, 20)
    step = client.submit({"layer1": first})
    rows = client.gather("layer1", second)
    assert not step.rows("layer1").any()
    assert not step.ok
    assert np.array_equal(rows, content("layer1", second, 1))
    with pytest.raises(ObmmArgumentError, match="after the next step began"):
        client.check()


@pytest.mark.parametrize("source", [None, 5, b"host:1/toy", Path("host:1/toy")], ids=str)
def test_a_source_of_another_type_is_refused(source: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="source="):
        TableClient(source)


def test_deadlines_as_a_number_are_refused_before_anything_is_attached() -> None:
    with pytest.raises(ObmmArgumentError, match="deadlines=5"):
        TableClient("127.0.0.1:1/toy", plain=True, deadlines=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [-1, 1.5, "x", 1 << 50])
def test_a_number_of_rows_that_is_none_is_refused(client: TableClient, rows: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="rows="):
        client.reserve(["layer1"], rows)


@pytest.mark.parametrize("ids", [None, [1], 5])
def test_what_is_no_tensor_is_not_put_into_a_stream(client: TableClient, ids: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="ids="):
        client.enqueue("layer1", ids, accelerator=Accelerator.fake())


def test_an_unknown_table_is_told_at_the_next_step(client: TableClient) -> None:
    client.gather("layer9", random_ids(0, 3))
    with pytest.raises(ObmmArgumentError, match="'layer9'"):
        client.check()


def test_many_threads_have_buffers_of_their_own(client: TableClient) -> None:
    wrong: list[int] = []

    def read(seed: int) -> None:
        for turn in range(50):
            ids = random_ids(100 * seed + turn, 200)
            if not np.array_equal(client.gather("layer1", ids), content("layer1", ids, 1)):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.check()
    assert not wrong


def test_a_new_publication_is_taken_up(mine: TableClient, served: Owner) -> None:
    for edition in (2, 3, 4):
        served.do("publish", edition)
        until(lambda edition=edition: gathers_edition(mine, edition))
    assert "attachment 4" in mine.explain()


def test_rows_of_a_step_are_of_one_edition_while_the_owner_publishes(mine: TableClient, served: Owner) -> None:
    seen: set[int] = set()
    zeros = 0
    for edition in range(2, 8):
        served.ask("publish", edition)
        end = time.monotonic() + 20
        while edition not in seen and time.monotonic() < end:
            ids = {table: random_ids(edition, 64) for table in TABLES}
            step = mine.submit(ids)
            got = {table: step.rows(table).copy() for table in TABLES}
            if not step.ok:
                zeros += 1
                with pytest.raises(ObmmError):
                    mine.check()
                continue
            mine.check()
            of = [
                e for e in (edition - 1, edition) if np.array_equal(got["layer1"], content("layer1", ids["layer1"], e))
            ]
            assert len(of) == 1
            assert np.array_equal(got["layer3"], content("layer3", ids["layer3"], of[0]))
            seen.add(of[0])
        served.done()
    assert seen >= set(range(2, 8))


def test_a_table_that_is_overwritten_under_its_readers_is_never_mixed(fabric: emulator.Fabric, served: Owner) -> None:
    with connected(fabric, served, deadlines=SHORT) as client:
        assert gathers_edition(client, 1)
        served.do("overwrite", 2)
        until(lambda: not client.gather("layer1", random_ids(0, 50)).any())
        with pytest.raises(ObmmError):
            client.check()
        served.do("publish", 3)
        until(lambda: gathers_edition(client, 3))


def test_a_withdrawn_table_is_zeros_until_it_comes_back(fabric: emulator.Fabric, served: Owner) -> None:
    with connected(fabric, served, deadlines=SHORT) as client:
        assert gathers_edition(client, 1)
        served.do("withdraw")
        ids = random_ids(0, 50)
        assert not client.gather("layer1", ids).any()
        with pytest.raises(ObmmError):
            client.check()
        assert "away for" in client.explain()
        served.do("publish", 2)
        until(lambda: gathers_edition(client, 2))
    assert client.stats()["obmm_engram_zero_rows_total"] >= 50


def test_an_owner_that_dies_and_comes_back_elsewhere(fabric: emulator.Fabric, tmp_path: Path) -> None:
    """kill -9, then another process at the same port: the lease is lost, the table fetched anew."""
    with owner(fabric.device("a"), tmp_path, term=1.0) as first:
        first.do("publish", 1)
        with connected(fabric, first, deadlines=SHORT) as client:
            assert gathers_edition(client, 1)
            first.kill()
            until(lambda: not client.gather("layer1", random_ids(0, 50)).any())  # two thirds of the term
            with pytest.raises(ObmmError):
                client.check()
            (tmp_path / "anew").mkdir()
            with owner(fabric.device("a"), tmp_path / "anew", port=first.port) as second:
                second.do("publish", 5)
                until(lambda: gathers_edition(client, 5), 30)


def test_a_slow_peer_costs_the_deadline_and_not_the_process(fabric: emulator.Fabric, steady: Owner) -> None:
    with connected(fabric, steady, deadlines=Deadlines(decode=0, prefill=0, verify=0, probe=0)) as client:
        ids = random_ids(0, 3000)
        late = 0
        for _ in range(200):
            rows = client.gather("layer1", ids)
            assert not rows.any() or np.array_equal(rows, content("layer1", ids, 1))
            late += client.failing
            if client.failing:
                with pytest.raises(ObmmError):
                    client.check()
        assert late


def test_a_check_that_refuses_leaves_nothing_attached(fabric: emulator.Fabric, steady: Owner) -> None:
    def refuse(manifest: Any) -> None:
        raise ObmmArgumentError.because("ENGRAM", 22, "another model", "serve mine")

    with pytest.raises(ObmmArgumentError, match="another model"):
        connected(fabric, steady, check=refuse)
    nodes = fabric.status()["nodes"]
    assert not nodes["b"]["regions"]
    assert not nodes["b"]["windows"]


def test_a_publication_of_another_model_is_not_taken_up(fabric: emulator.Fabric, served: Owner) -> None:
    def only_editions_1_and_3(manifest: Any) -> None:
        if int(manifest.model["engram"]["fingerprint"], 16) == 2:
            raise ObmmArgumentError.because("ENGRAM", 22, "another model", "serve mine")

    with connected(fabric, served, deadlines=SHORT, check=only_editions_1_and_3) as client:
        served.do("publish", 2)
        until(lambda: "another model" in client.explain())
        assert not client.gather("layer1", random_ids(0, 50)).any()
        served.do("publish", 3)
        until(lambda: gathers_edition(client, 3))


@pytest.mark.parametrize("text", ["", "host", "host:1", "/name", "host:1/"])
def test_a_source_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ObmmArgumentError, match="not a published table"):
        TableAddress.parse(text)


def test_a_server_that_is_not_there_is_refused_at_once(fabric: emulator.Fabric) -> None:
    with pytest.raises(PeerUnreachableError):
        TableClient("127.0.0.1:1/toy", plain=True, device=fabric.device("b"))


def test_a_name_that_is_not_served_is_refused_at_once(fabric: emulator.Fabric, steady: Owner) -> None:
    with pytest.raises(RequestRefusedError):
        TableClient(f"127.0.0.1:{steady.port}/other", plain=True, device=fabric.device("b"))


def test_a_store_of_the_caller_is_a_source_too(fabric: emulator.Fabric, steady: Owner) -> None:
    from obmm.rows import RowStore

    with obmm.open(fabric.device("b")) as device, obmm.connect(f"127.0.0.1:{steady.port}", plain=True) as peer:
        with peer.import_region("toy", device) as region:
            with RowStore.attach([region], region.lease.manifest, plan=False) as store:
                with TableClient(store, deadlines=LONG) as client:
                    assert gathers_edition(client, 1)


def test_a_forked_child_gets_zeros_and_a_sentence(client: TableClient) -> None:
    assert gathers_edition(client, 1)
    child = os.fork()
    if not child:
        code = 1
        try:
            rows = client.gather("layer1", random_ids(0, 50))
            try:
                client.check()
            except ClosedError as error:
                code = 0 if "parent" in str(error) and not rows.any() else 2
            client.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert gathers_edition(client, 1)


def _spawned(source: str, device: str, answer: Any) -> None:
    with TableClient(source, plain=True, device=device, deadlines=LONG, plan=False) as client:
        ids = random_ids(8, 500)
        answer.send(bool(np.array_equal(client.gather("layer3", ids), content("layer3", ids, 1))))


def test_spawned_processes_share_one_table(fabric: emulator.Fabric, steady: Owner) -> None:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=_spawned, args=(steady.source, fabric.device(node), there))
        for node, (_, there) in zip("ab", pipes, strict=True)
    ]
    for process in processes:
        process.start()
    assert [here.recv() for here, _ in pipes] == [True, True]
    for process in processes:
        process.join(20)
        assert process.exitcode == 0


def test_closing_twice_and_gathering_afterwards(fabric: emulator.Fabric, steady: Owner) -> None:
    client = connected(fabric, steady)
    client.close()
    client.close()
    assert not client.gather("layer1", random_ids(0, 5)).any()
    with pytest.raises(ClosedError):
        client.check()


def test_a_lookup_in_a_stream_brings_rows_to_one_address(client: TableClient) -> None:
    """On the fake device, whose streams are threads: what a captured graph would replay."""
    fake = Accelerator.fake()
    places = set()
    for seed in range(3):
        ids = np.ascontiguousarray(random_ids(seed, 24))
        rows = client.enqueue("layer1", ids, accelerator=fake)
        fake.synchronize()
        places.add(rows.address)
        assert np.array_equal(np.asarray(rows), content("layer1", ids, 1))
    assert len(places) == 1
    client.check()


def test_a_lookup_in_a_stream_of_a_table_that_went_is_zeros_and_a_sentence(
    fabric: emulator.Fabric, served: Owner
) -> None:
    fake = Accelerator.fake()
    with connected(fabric, served, deadlines=SHORT) as client:
        ids = np.ascontiguousarray(random_ids(1, 24))
        rows = client.enqueue("layer1", ids, accelerator=fake)
        fake.synchronize()
        assert np.asarray(rows).any()
        (gather,) = client._streams.values()
        served.do("withdraw")
        gather.enqueue(None, ids)  # as a replay: without a look whether the table is there
        fake.synchronize()
        assert not np.asarray(rows).any()
        with pytest.raises(ObmmError):
            client.check()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def test_prometheus_sees_what_was_counted(client: TableClient) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'obmm[metrics]'")
    exposed = expose(free_address(), TableCollector(client, {"door": "test"}))
    try:
        client.gather("layer1", random_ids(1, 30))
        client.gather("layer9", random_ids(1, 4))
        with pytest.raises(ObmmArgumentError):
            client.check()
        with urllib.request.urlopen(f"http://127.0.0.1:{exposed.port}/metrics", timeout=20) as answer:
            lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
    finally:
        exposed.close()
    stats = client.stats()
    for name in ("rows", "bytes", "zero_rows", "errors", "steps", "out_of_range"):
        assert float(lines[f'obmm_engram_{name}_total{{door="test"}}']) == stats[f"obmm_engram_{name}_total"]
    assert float(lines['obmm_engram_rows_total{door="test"}']) >= 34
    assert float(lines['obmm_engram_attachments{door="test"}']) == 1
    assert float(lines['obmm_engram_away_seconds{door="test"}']) == 0
    assert float(lines['obmm_engram_blocked_seconds_sum{door="test"}']) > 0


def test_processes_of_a_host_show_their_counters_on_one_port_after_the_other(client: TableClient) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'obmm[metrics]'")
    collector = TableCollector(client)
    first = expose(free_address(), collector)
    try:
        second = expose(f"127.0.0.1:{first.port}", collector)
        second.close()
        assert second.port > first.port
        with pytest.raises(ObmmError, match="another address or port"):
            expose(f"127.0.0.1:{first.port}", collector, ports=1)
    finally:
        first.close()
