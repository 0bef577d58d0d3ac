# SPDX-License-Identifier: Apache-2.0
"""RowStore over shared memory: every byte of every row, and defined results where there is none."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from row_shelf import Shelf, expected, publish

from obmm import ClosedError, MappingBusyError, ObmmArgumentError, RemoteMemoryError, StaleHandleError
from obmm.rows import (
    CanaryError,
    GatherDeadlineError,
    GatherEngine,
    GatherStats,
    LocalMemory,
    Manifest,
    RowStore,
    TableSpec,
    planner,
)
from obmm.rows.bound import NEVER

RNG = np.random.default_rng(7)
TABLE = TableSpec("t", 1000, 264)


def store_of(shelf: Shelf, engine: GatherEngine, *tables: TableSpec, salt: int = 0) -> RowStore:
    manifest = publish(shelf.owner(*tables, engine=engine), salt)
    return RowStore.attach(shelf.memory(), manifest, plan=False, engine=engine)


@pytest.fixture
def store(shelf: Shelf, engine: GatherEngine) -> RowStore:
    return store_of(shelf, engine, TABLE)


@pytest.mark.parametrize("row_bytes", [64, 100, 264, 288, 320, 512, 1364, 4096])
@pytest.mark.parametrize("slots", [0, 37])
def test_every_byte_of_every_row(shelf: Shelf, engine: GatherEngine, row_bytes: int, slots: int) -> None:
    spec = TableSpec(
        1, 500, row_bytes, rows_per_segment=slots, segment_bytes=slots and 40 * (row_bytes + 4) // 8 * 8 + 8
    )
    store = store_of(shelf, engine, spec)
    ids = RNG.integers(0, 500, (40, 13))
    for dtype in (np.int32, np.int64):
        out = np.zeros((40, 13, row_bytes), np.uint8)
        assert store.gather_into(1, ids.astype(dtype), out) == 520
        assert (out == expected(ids, row_bytes)).all()


def test_first_and_last_row(store: RowStore) -> None:
    assert store.read_row("t", 0) == expected(0, 264).tobytes()
    assert store.read_row("t", 999) == expected(999, 264).tobytes()


@pytest.mark.parametrize("wrong", [-1, 1000, -(1 << 63), (1 << 63) - 1])
def test_an_id_outside_refuses_everything_and_reads_nothing(store: RowStore, wrong: int) -> None:
    out = np.full((4, 264), 9, np.uint8)
    with pytest.raises(ObmmArgumentError, match=rf"ids\[2\] .* is {wrong}, table 't' has rows 0..999"):
        store.gather_into("t", np.array([0, 1, wrong, 2]), out)
    assert (out == 9).all()
    assert store.stats().refused == 1


def test_an_id_outside_is_a_zero_row_on_request(store: RowStore) -> None:
    ids = np.array([5, -1, 1000, 999])
    out = np.full((4, 264), 9, np.uint8)
    assert store.gather_into("t", ids, out, invalid="zero") == 2
    assert (out == expected([5, -1, -1, 999], 264)).all()
    assert store.stats().zero_rows == 2


def test_local_ids_count_within_their_head(shelf: Shelf, engine: GatherEngine) -> None:
    heads = (0, 11, 24, 41)
    store = store_of(shelf, engine, TableSpec("h", 60, 64, head_offsets=heads))
    local = np.array([[10, 0, 16, 18], [0, 12, 0, 0]])
    assert (store.gather("h", local, id_space="local") == expected(local + np.array(heads), 64)).all()
    with pytest.raises(ObmmArgumentError, match=r"ids\[1\] .* is 13, .* rows 0\.\.12"):
        store.gather("h", [[0, 13, 0, 0]], id_space="local")


def test_subsets_give_zero_rows_for_what_they_leave_out(shelf: Shelf, engine: GatherEngine) -> None:
    store = store_of(shelf, engine, TableSpec("h", 60, 64, head_offsets=(0, 11, 24, 41)))
    ids = np.array([[3, 20, 30, 50], [0, 11, 24, 59]])
    columns = store.column_slice([1, 3])
    assert (columns.gather("h", ids) == expected(np.where([False, True, False, True], ids, -1), 64)).all()
    rows = columns.id_range(20, 55)
    wanted = np.where([False, True, False, True], ids, -1)
    wanted[(wanted < 20) | (wanted >= 55)] = -1
    stats = GatherStats()
    assert (rows.gather("h", ids, stats=stats) == expected(wanted, 64)).all()
    assert (stats.rows, stats.zero_rows) == (2, 6)
    rows.close()
    assert store.healthy()


def test_nothing_to_gather(store: RowStore) -> None:
    assert store.gather_into("t", np.empty((0, 3), np.int64), np.empty((0, 3, 264), np.uint8)) == 0
    assert store.gather("t", []).shape == (0, 264)
    assert store.submit_many([]) == ()


@pytest.mark.parametrize(
    "out",
    [
        np.empty((2, 263), np.uint8),
        np.empty((3, 264), np.uint8),
        b"\0" * 528,
        np.empty((2, 528), np.uint8)[:, ::2],
        (4096, 527),
        "no buffer",
    ],
)
def test_an_output_that_does_not_fit_is_refused(store: RowStore, out: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="out"):
        store.gather_into("t", np.array([0, 1]), out)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([0.0]),
        np.array([0], np.int16),
        np.arange(6)[::2],
        np.array([1], ">i8"),
        np.array(["x"]),
        np.frombuffer(bytes(17), np.int64, 2, 1),
        np.frombuffer(bytes(10), np.int32, 2, 2),
    ],
)
def test_ids_of_another_form_are_refused(store: RowStore, ids: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="contiguous int32 or int64"):
        store.gather_into("t", ids, bytearray(ids.size * 264))


def test_outputs_of_every_form(store: RowStore) -> None:
    ids = np.array([7, 3, 999])
    wanted = expected(ids, 264)
    buffer = bytearray(3 * 264)
    store.gather_into("t", ids, buffer)
    assert bytes(buffer) == wanted.tobytes()
    wide = np.zeros((3, 320), np.uint8)
    store.gather_into("t", ids, wide[:, :264])
    assert (wide[:, :264] == wanted).all()
    assert not wide[:, 264:].any()
    floats = np.zeros((3, 66), np.float32)
    store.gather_into("t", ids, (floats.ctypes.data, floats.nbytes))
    assert floats.tobytes() == wanted.tobytes()


def test_prepared_gathers_read_their_ids_anew(store: RowStore) -> None:
    ids, out = np.array([1, 2]), np.zeros((2, 264), np.uint8)
    gather = store.prepare("t", ids, out)
    for _ in range(3):
        ids += 3
        assert gather() == 2
        assert (out == expected(ids, 264)).all()
    ids[0] = -5
    with pytest.raises(ObmmArgumentError, match="-5"):
        gather()


def test_many_tables_in_one_call(shelf: Shelf, engine: GatherEngine) -> None:
    specs = [TableSpec(i, 200, 64 * (i + 1), base_offset=i << 20) for i in range(12)]
    store = store_of(shelf, engine, *specs)
    gathers = []
    for spec in specs:
        ids = RNG.integers(0, 200, (8, 16))
        gathers.append((spec.table_id, ids, np.zeros((8, 16, spec.row_bytes), np.uint8)))
    tickets = store.submit_many(gathers)
    for ticket, (table, ids, out) in zip(tickets, gathers, strict=True):
        assert ticket.result() == 128
        assert ticket.done()
        assert (out == expected(ids, 64 * (table + 1))).all()
        assert ticket.generation == 2
    step = store.prepare_many(gathers)
    for counts in (None, [5] * 12, [0] * 11 + [128]):
        ids_left = [128] * 12 if counts is None else counts
        for _, ids, out in gathers:
            ids[:] = RNG.integers(0, 200, ids.shape)
            out[:] = 0
        assert [ticket.result() for ticket in step.submit(counts)] == ids_left
        for n, (table, ids, out) in zip(ids_left, gathers, strict=True):
            wanted = expected(ids.reshape(-1), 64 * (table + 1))
            wanted[n:] = 0
            assert (out.reshape(wanted.shape) == wanted).all()
    with pytest.raises(ObmmArgumentError, match="129 of 128"):
        step.submit([129] * 12)
    bad = [*gathers[:1], (3, np.array([200]), bytearray(256))]
    with pytest.raises(ObmmArgumentError, match=r"table 3 has rows 0\.\.199"):
        store.submit_many(bad)


def test_a_dropped_ticket_gives_its_place_back(store: RowStore, engine: GatherEngine) -> None:
    for _ in range(600):
        store.submit("t", np.arange(1000), np.empty((1000, 264), np.uint8))
    gc.collect()
    while engine.abandoned:
        pass
    assert engine.in_use == 0


def test_tickets_run_out_with_an_error(store: RowStore) -> None:
    held = []
    out = bytearray(264)
    with pytest.raises(OSError, match="free tickets"):
        for _ in range(300):
            held.append(store.submit("t", np.array([1]), out))
    assert all(ticket.result() == 1 for ticket in held)


def test_a_deadline_that_cannot_be_met_raises_and_a_sane_one_does_not(store: RowStore) -> None:
    ids = np.tile(np.arange(1000), 40)
    out = np.empty((40_000, 264), np.uint8)
    with pytest.raises(GatherDeadlineError, match="did not come within"):
        for _ in range(100):
            store.gather_into("t", ids, out, deadline=1e-6)
    assert store.gather_into("t", ids, out, deadline=60) == 40_000


def test_memory_that_is_gone_raises_and_the_rest_stays_usable(shelf: Shelf, store: RowStore) -> None:
    shelf.cut(4096 + 100 * 264)
    out = np.empty((2, 264), np.uint8)
    with pytest.raises(RemoteMemoryError, match="SIGBUS") as caught:
        store.gather_into("t", np.array([0, 900]), out)
    assert 900 * 264 <= (caught.value.offset or 0) < 901 * 264
    ticket = store.submit("t", np.array([900, 1]), out)
    with pytest.raises(RemoteMemoryError):
        ticket.result()
    assert store.gather_into("t", np.array([0, 50]), out) == 2
    assert store.stats().faults == 2
    with pytest.raises(RemoteMemoryError):
        store.submit_probe().result()


def test_64_threads_get_one_error_each_when_the_memory_goes(shelf: Shelf, store: RowStore) -> None:
    ready = threading.Barrier(65)
    errors: list[BaseException] = []

    def hammer() -> None:
        ids, out = RNG.integers(0, 1000, 300), np.empty((300, 264), np.uint8)
        ready.wait()
        try:
            while True:
                store.gather_into("t", ids, out)
        except RemoteMemoryError as error:
            errors.append(error)

    threads = [threading.Thread(target=hammer) for _ in range(64)]
    for thread in threads:
        thread.start()
    ready.wait()
    shelf.cut()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 64


def test_a_new_publication_is_noticed(shelf: Shelf, engine: GatherEngine) -> None:
    owner = shelf.owner(TABLE, engine=engine)
    first = publish(owner)
    store = RowStore.attach(shelf.memory(), first, plan=False, engine=engine)
    owner.populate("t", expected([0], 264, salt=9), at=0)
    with pytest.raises(StaleHandleError, match="being published"):
        store.gather("t", [0])
    second = owner.publish()
    assert (first.generation, second.generation, store.generation()) == (2, 4, 4)
    assert (store.gather("t", [0, 1]) == np.stack([expected(0, 264, 9), expected(1, 264)])).all()
    with pytest.raises(StaleHandleError, match="holds publication 4, the manifest describes 2"):
        RowStore.attach(shelf.memory(), first, engine=engine)
    assert RowStore.attach(shelf.memory(), second, engine=engine).healthy()


def test_generations_never_mix_under_a_writer(shelf: Shelf, engine: GatherEngine) -> None:
    spec = TableSpec("t", 64, 256)
    owner = shelf.owner(spec, engine=engine)
    salts = {publish(owner, 0).generation: 0}
    store = RowStore.attach(shelf.memory(), owner.manifest, plan=False, engine=engine)
    stop = threading.Event()

    def write() -> None:
        for salt in range(1, 100_000):
            if stop.is_set():
                return
            salts[owner.generation() + 2] = salt
            publish(owner, salt)

    writer = threading.Thread(target=write)
    writer.start()
    ids, out = RNG.integers(0, 64, 200), np.empty((200, 256), np.uint8)
    passed = refused = 0
    try:
        while passed < 50 or refused < 5:
            ticket = store.submit("t", ids, out)
            try:
                ticket.result()
            except StaleHandleError:
                refused += 1
                continue
            passed += 1
            assert (out == expected(ids, 256, salts[ticket.generation])).all()
    finally:
        stop.set()
        writer.join()


def test_another_table_is_recognised_by_its_canary(shelf: Shelf, engine: GatherEngine) -> None:
    manifest = publish(shelf.owner(TABLE, engine=engine))
    wrong = Manifest(manifest.tables, manifest.generation, {"t": tuple((r, c ^ 1) for r, c in manifest.canary["t"])})
    with pytest.raises(StaleHandleError, match="another content"):
        RowStore.attach(shelf.memory(), wrong, engine=engine)
    # a header that says nothing of the manifest: the rows themselves speak
    shelf.map[48:80] = bytes(32)
    with pytest.raises(CanaryError, match="row 0 of table 't'"):
        RowStore.attach(shelf.memory(), wrong, plan=False, engine=engine)


def test_a_table_larger_than_its_memory_is_refused(shelf: Shelf, engine: GatherEngine) -> None:
    with pytest.raises(ObmmArgumentError, match="ends at byte"):
        shelf.owner(TableSpec("t", 20_000_000, 64), engine=engine)


def test_rows_wider_than_their_bytes_keep_their_gap(shelf: Shelf, engine: GatherEngine) -> None:
    owner = shelf.owner(TableSpec("t", 10, 100, row_stride=128), engine=engine)
    publish(owner)
    raw = np.frombuffer(shelf.map, np.uint8, 10 * 128, 4096).reshape(10, 128)
    assert (raw[:, :100] == expected(np.arange(10), 100)).all()
    assert (owner.view("t") == raw[:, :100]).all()
    with pytest.raises(ObmmArgumentError, match="rows of exactly"):
        owner.populate("t", np.zeros((1, 99), np.uint8))
    with pytest.raises(ObmmArgumentError, match="inside the table"):
        owner.populate("t", np.zeros((1, 100), np.uint8), at=10)


def test_a_closed_store_refuses(shelf: Shelf, engine: GatherEngine) -> None:
    manifest = publish(shelf.owner(TABLE, engine=engine))
    with RowStore.attach(shelf.memory(), manifest, plan=False, engine=engine) as store:
        assert store.healthy()
    store.close()
    assert not store.healthy()
    with pytest.raises(ClosedError):
        store.gather("t", [0])


def test_a_store_without_a_header_trusts_its_manifest(engine: GatherEngine) -> None:
    memory = bytearray(64 * 100)
    owner = RowStore.attach(LocalMemory(memory), Manifest((TableSpec(0, 100, 64),)), verify="none", engine=engine)
    manifest = publish(owner)
    store = RowStore.attach(LocalMemory(memory), manifest.to_json(), plan=False, engine=engine)
    assert (store.gather(0, [5, 99]) == expected([5, 99], 64)).all()
    memory[0:64] = bytes(64)
    with pytest.raises(CanaryError):
        store.submit_probe().result()


def test_the_plan_says_what_was_measured_and_chosen(shelf: Shelf, engine: GatherEngine) -> None:
    manifest = publish(shelf.owner(TableSpec("big", 8000, 1364), engine=engine))
    store = RowStore.attach(shelf.memory(), manifest, engine=engine)
    plan = store.plans["big"]
    assert plan.measured
    assert plan.latency > 0
    assert [n for n, _ in plan.by_threads] == [1, 2, 3, 4]
    assert all(ns > 0 for _, ns in plan.by_threads)
    text = store.explain()
    for part in ("rows of 1364 B", "dependent load", "address order", "threads", "local memory (shm)"):
        assert part in text
    assert store.stats().gathers == 1  # the canary, none of the measurements
    ids = RNG.integers(0, 8000, 9000)
    assert (store.gather("big", ids) == expected(ids, 1364)).all()


@pytest.mark.parametrize("row_bytes", [512, 1364, 2048])
def test_large_batches_are_read_in_the_order_that_was_faster(
    shelf: Shelf, engine: GatherEngine, monkeypatch: pytest.MonkeyPatch, row_bytes: int
) -> None:
    manifest = publish(shelf.owner(TableSpec("big", 8000, row_bytes), engine=engine))
    monkeypatch.setattr(
        planner._Meter, "compare", lambda self, rows, set_way, ways, threads=1: (10.0,) * (ways - 1) + (20.0,)
    )
    store = RowStore.attach(shelf.memory(), manifest, engine=engine)
    assert store.plans["big"].order_rows == NEVER  # the second way, by address, takes twice as long


def test_one_thread_keeps_rows_in_the_caches_unless_reading_them_is_as_fast_from_memory(
    shelf: Shelf, engine: GatherEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = publish(shelf.owner(TableSpec("big", 8000, 1364), engine=engine))
    thresholds: list[int] = []

    def gathered(self: planner._Meter, rows: int, threads: int = 1, rounds: int = 3) -> float:
        thresholds.append(self._bound.struct.tuning.stream_alone)
        return 10.0

    monkeypatch.setattr(planner._Meter, "ns_per_row", gathered)
    for slow in (False, True):
        monkeypatch.setattr(
            planner._Meter, "ns_to_read", lambda self, size, s=slow: 9e5 if s == (thresholds[-1] < NEVER) else 1e5
        )
        store = RowStore.attach(shelf.memory(), manifest, engine=engine)
        plan = store.plans["big"]
        assert plan.stream_alone == (plan.stream_bytes if slow else 1536 * 1364)


# --- what must not crash ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda out: out, memoryview, lambda out: out.reshape(-1)[::2]])
def test_bytes_are_not_written_over_python_references(store: RowStore, wrap: Any) -> None:
    """They would be followed when the array is dropped."""
    out = np.empty((4, store.tables["t"].row_bytes // 8), object)
    with pytest.raises(ObmmArgumentError, match="out"):
        store.gather_into("t", np.arange(4), wrap(out))
    assert all(item is None for item in out.flat)


@pytest.mark.parametrize("place", [(-5, 0), (0, 0), (1 << 64, 0), ("a", "b"), (1, 2, 3), ((1 << 63) - 8, 0)])
def test_an_address_that_no_process_can_have_is_refused(store: RowStore, place: Any) -> None:
    need = 4 * store.tables["t"].row_bytes
    with pytest.raises(ObmmArgumentError, match="two integers"):
        store.gather_into("t", np.arange(4), (place[0], need, *place[2:]) if place[1] == 0 else place)


@pytest.mark.parametrize("threads", [-1, 1 << 40, 1.5])
def test_a_number_of_threads_that_is_none_is_refused(store: RowStore, threads: Any) -> None:
    out = np.empty((4, store.tables["t"].row_bytes), np.uint8)
    with pytest.raises(ObmmArgumentError, match="threads"):
        store.gather_into("t", np.arange(4), out, threads=threads)
    with pytest.raises(ObmmArgumentError, match="threads"):
        store.submit("t", np.arange(4), out, threads=threads)


@pytest.mark.parametrize("arguments", [{"threads": 0}, {"threads": -1}, {"threads": 10**6}, {"spin": float("nan")}])
def test_an_engine_without_workers_is_refused(arguments: Any) -> None:
    with pytest.raises(ObmmArgumentError, match=r"threads=|spin="):
        GatherEngine(**arguments)


def test_ids_that_change_under_a_gather_lead_nowhere_else(store: RowStore) -> None:
    """Checked once, looked at again when copied: what changed meanwhile is a row of the table or a zero row."""
    n_rows = store.tables["t"].n_rows
    ids = np.zeros(100_000, np.int64)
    out = np.empty((len(ids), store.tables["t"].row_bytes), np.uint8)
    wild = np.random.default_rng(9).integers(-(2**62), 2**62, len(ids))
    stop = threading.Event()

    def mutate() -> None:
        while not stop.is_set():
            ids[:] = wild
            ids[:] = n_rows - 1

    mutator = threading.Thread(target=mutate)
    mutator.start()
    try:
        for _ in range(100):
            with suppress(ObmmArgumentError):
                store.submit("t", ids, out).result(30)
            with suppress(ObmmArgumentError):
                store.gather_into("t", ids, out)
    finally:
        stop.set()
        mutator.join()


def test_64_threads_until_the_store_closes(shelf: Shelf, engine: GatherEngine) -> None:
    """Gathers, tickets and dropped tickets; each thread ends with ClosedError and nothing else."""
    spec = TableSpec("t", 4_000, 256)
    manifest = publish(shelf.owner(spec, engine=engine))
    store = RowStore.attach(shelf.memory(), manifest, plan=False, engine=engine)
    ends: list[BaseException] = []
    going = threading.Barrier(65)

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        going.wait()
        try:
            while True:
                ids = random.integers(0, spec.n_rows, 300)
                out = np.empty((len(ids), 256), np.uint8)
                if number % 3 == 0:
                    store.submit("t", ids, out).abandon()
                    continue
                if number % 3 == 1:
                    store.submit("t", ids, out).result(60)
                else:
                    store.gather_into("t", ids, out)
                assert np.array_equal(out, expected(ids, 256))
        except BaseException as error:
            ends.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    going.wait()
    closed = False
    while not closed:
        time.sleep(0.001)
        if store.stats().gathers >= 500:
            with suppress(MappingBusyError):
                store.close()
                closed = True
    for thread in threads:
        thread.join(60)
    assert len(ends) == 64
    assert {type(error) for error in ends} == {ClosedError}, set(map(repr, ends))
    ends.clear()  # their tracebacks hold tickets
    gc.collect()
    engine.reap()


@pytest.mark.parametrize("wrong", [float("nan"), "1", 10**400, True])
def test_rule_3_a_deadline_that_never_comes_is_refused(shelf: Shelf, engine: GatherEngine, wrong: Any) -> None:
    """NaN is later than no time at all: a gather that hangs would be waited for without end."""
    owner = shelf.owner(TableSpec("t", 10, 64), engine=engine)
    store = RowStore.attach(shelf.memory(), publish(owner), engine=engine, plan=False)
    out = np.zeros((1, 64), np.uint8)
    with pytest.raises(ObmmArgumentError, match="deadline"):
        store.gather_into("t", np.array([1]), out, deadline=wrong)
    ticket = store.submit("t", np.array([1]), out)
    with pytest.raises(ObmmArgumentError, match="timeout"):
        ticket.wait(wrong)
    assert ticket.result(20) == 1
    with pytest.raises(ObmmArgumentError, match="timeout"):
        engine.close(wrong)


@pytest.mark.parametrize("wrong", [float("nan"), 0.5, "0", True, None])
def test_rows_are_populated_at_a_row_or_not_at_all(shelf: Shelf, engine: GatherEngine, wrong: Any) -> None:
    """Refused before the content version becomes odd."""
    owner = shelf.owner(TableSpec("t", 10, 64), engine=engine)
    manifest = publish(owner)
    for rows, at in ((np.ones((1, 64), np.uint8), wrong), ([[object()] * 8], 0), (None, 0), (np.ones((1, 8), "O"), 0)):
        with pytest.raises(ObmmArgumentError):
            owner.populate("t", rows, at)
    store = RowStore.attach(shelf.memory(), manifest, engine=engine, plan=False)
    assert np.array_equal(store.gather("t", [0, 9]), expected([0, 9], 64))


@pytest.mark.parametrize("wrong", [float("nan"), 0.5, "0", True])
def test_subsets_of_what_is_no_number_are_refused(shelf: Shelf, engine: GatherEngine, wrong: Any) -> None:
    store = shelf.owner(TableSpec("t", 10, 64), engine=engine)
    for call in (
        lambda: store.id_range(0, wrong),
        lambda: store.id_range(wrong, 10),
        lambda: store.column_slice([wrong], 4),
        lambda: store.column_slice([0], wrong),
    ):
        with pytest.raises(ObmmArgumentError):
            call()


def test_more_gathers_than_an_engine_has_tickets_are_refused_by_their_number(
    shelf: Shelf, engine: GatherEngine
) -> None:
    store = RowStore.attach(
        shelf.memory(), publish(shelf.owner(TableSpec("t", 10, 64), engine=engine)), engine=engine, plan=False
    )
    with pytest.raises(ObmmArgumentError, match="300 gathers"):
        store.submit_many([("t", np.array([1]), np.zeros((1, 64), np.uint8))] * 300)


@pytest.mark.parametrize("wrong", [{"threads": 1.5}, {"threads": "2"}, {"spin": "a"}, {"cpus": ["0"]}, {"cpus": [-1]}])
def test_an_engine_of_what_is_no_number_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ObmmArgumentError, match=next(iter(wrong))[:3]):
        GatherEngine(**wrong)


@pytest.mark.parametrize("source", [None, 3, [], "region", ["region"], [None], b"memory", {}])
def test_a_source_that_is_no_memory_is_refused_by_name(shelf: Shelf, engine: GatherEngine, source: Any) -> None:
    manifest = publish(shelf.owner(TableSpec("t", 10, 64), engine=engine))
    with pytest.raises(ObmmArgumentError, match="source="):
        RowStore.attach(source, manifest, engine=engine)
