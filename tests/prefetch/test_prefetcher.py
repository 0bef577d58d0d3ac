# SPDX-License-Identifier: Apache-2.0
"""The engine's side: phases, buffers, ids (Engram specification 7, 10 and 13.4)."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from memory_source import MemorySource, MemoryTable, until
from numpy.typing import NDArray

from obmm.errors import ClosedError, MappingBusyError, ObmmArgumentError
from obmm.prefetch import Deadlines, PrefetchLayer, RowsStatus
from obmm.prefetch import EngramPrefetcher as _EngramPrefetcher
from obmm.prefetch.flight import Flight

TABLES = {"a": MemoryTable(5_000, 264, salt=1), "b": MemoryTable(7_001, 320, salt=2)}
LAYERS = [PrefetchLayer(1, "a", 24), PrefetchLayer(14, "b", 6)]


# A busy machine must not look like a slow fabric.
EngramPrefetcher = partial(_EngramPrefetcher, deadlines=Deadlines(decode=10, prefill=10))


@pytest.fixture
def source() -> Iterator[MemorySource]:
    made = MemorySource(dict(TABLES))
    yield made
    made.before = None
    made.close()


def ids_for(random: np.random.Generator, n_tokens: int) -> list[NDArray[np.int64]]:
    return [random.integers(0, TABLES[layer.table].n_rows, (n_tokens, layer.columns)) for layer in LAYERS]


def check(rows: Any, layer: PrefetchLayer, ids: NDArray[np.int64], padded: int, generation: int = 2) -> None:
    assert rows.status is RowsStatus.OK
    assert rows.n_tokens == len(ids)
    assert rows.buffer.shape == (padded, layer.columns, TABLES[layer.table].row_bytes)
    assert np.array_equal(rows.buffer[: len(ids)], TABLES[layer.table].rows(ids, generation))
    assert not rows.buffer[len(ids) :].any()


def test_a_step_gives_every_byte_and_pads_with_zeros(source: MemorySource) -> None:
    random = np.random.default_rng(1)
    with EngramPrefetcher(source, LAYERS, max_tokens=64) as prefetcher:
        for n_tokens, padded in [(64, 64), (5, 8), (1, 64), (0, 3), (0, 0), (63, 64)]:
            ids = ids_for(random, n_tokens)
            prefetcher.begin(ids, n_tokens, padded)
            prefetcher.start()
            for layer, layer_ids in zip(LAYERS, ids, strict=True):
                check(prefetcher.consume(layer.layer_id), layer, layer_ids, padded)
            report = prefetcher.drain()
            assert report is not None
            assert set(report.statuses.values()) == {RowsStatus.OK}
            assert report.generation == 2


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_one_array_for_all_layers_of_equal_width(source: MemorySource, dtype: Any) -> None:
    layers = [PrefetchLayer(3, "a", 4), PrefetchLayer(9, "a", 4)]
    ids = np.random.default_rng(2).integers(0, 5_000, (7, 2, 4)).astype(dtype)
    with EngramPrefetcher(source, layers, max_tokens=8) as prefetcher:
        prefetcher.begin(ids, 7)
        kept = ids.copy()
        ids[:] = 0  # they were copied
        prefetcher.start()
        for place, layer in enumerate(layers):
            assert np.array_equal(prefetcher.consume(layer.layer_id).buffer, TABLES["a"].rows(kept[:, place], 2))
        prefetcher.drain()


def test_start_does_not_wait_and_consume_waits_for_its_layer_only(source: MemorySource) -> None:
    first, second = threading.Event(), threading.Event()
    gates = iter([first, second])
    source.before = lambda: next(gates).wait(5) and None
    ids = ids_for(np.random.default_rng(3), 4)
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        prefetcher.begin(ids, 4, phase="prefill")
        prefetcher.start()
        assert not prefetcher.poll(1)
        first.set()
        check(prefetcher.consume(1), LAYERS[0], ids[0], 4)
        assert not prefetcher.poll(14)
        second.set()
        until(lambda: prefetcher.poll(14))
        check(prefetcher.consume(14), LAYERS[1], ids[1], 4)
        prefetcher.drain()


def test_consume_twice_gives_the_same_rows(source: MemorySource) -> None:
    ids = ids_for(np.random.default_rng(3), 4)
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        prefetcher.begin(ids, 4)
        prefetcher.start()
        assert prefetcher.consume(1) is prefetcher.consume(1)
        assert source.gathers <= 2


# --- fixed buffers ------------------------------------------------------------------------------------------------


def address(buffer: Any) -> int:
    return int(buffer.__array_interface__["data"][0])


def test_addresses_stay_and_every_byte_is_right(source: MemorySource) -> None:
    random = np.random.default_rng(4)
    layers = [PrefetchLayer(1, "a", 2), PrefetchLayer(14, "b", 3)]
    with EngramPrefetcher(source, layers, max_tokens=8) as prefetcher:
        homes = {layer.layer_id: address(prefetcher.rows_u8(layer.layer_id)) for layer in layers}
        for step in range(1_000):
            n_tokens = step % 7
            ids = [random.integers(0, TABLES[layer.table].n_rows, (n_tokens, layer.columns)) for layer in layers]
            prefetcher.begin(ids, n_tokens, 8)
            prefetcher.start()
            for layer, layer_ids in zip(layers, ids, strict=True):
                rows = prefetcher.consume(layer.layer_id)
                assert address(rows.buffer) == homes[layer.layer_id]
                if step % 50 == 0:
                    check(rows, layer, layer_ids, 8)
            prefetcher.drain()


def test_steps_that_overlap_keep_the_address_and_do_not_touch_each_other(source: MemorySource) -> None:
    random = np.random.default_rng(5)
    with EngramPrefetcher(source, LAYERS, max_tokens=16, depth=2) as prefetcher:
        homes = {layer.layer_id: address(prefetcher.rows_u8(layer.layer_id)) for layer in LAYERS}
        upcoming = ids_for(random, 16)
        prefetcher.begin(upcoming, 16)
        prefetcher.start()
        for _ in range(200):
            current, upcoming = upcoming, ids_for(random, 16)
            first = prefetcher.consume(1)
            prefetcher.begin(upcoming, 16)  # the next step starts while this one computes
            prefetcher.start()
            check(first, LAYERS[0], current[0], 16)
            check(prefetcher.consume(14), LAYERS[1], current[1], 16)
            check(first, LAYERS[0], current[0], 16)
            assert address(first.buffer) == homes[1]
            assert address(prefetcher.consume(14).buffer) == homes[14]
            prefetcher.drain()


def test_more_steps_than_depth_are_refused(source: MemorySource) -> None:
    with EngramPrefetcher(source, LAYERS, max_tokens=4, depth=1) as prefetcher:
        ids = ids_for(np.random.default_rng(6), 4)
        prefetcher.begin(ids, 4)
        with pytest.raises(MappingBusyError, match="1 steps are begun and not drained"):
            prefetcher.begin(ids, 4)
        prefetcher.drain()
        prefetcher.begin(ids, 4)


def test_large_buffers_lie_on_2_mib(source: MemorySource) -> None:
    with EngramPrefetcher(source, [PrefetchLayer(1, "a", 24)], max_tokens=512) as prefetcher:
        assert address(prefetcher.rows_u8(1)) % (2 << 20) == 0


def test_staging_may_be_memory_of_the_caller(source: MemorySource) -> None:
    made: list[bytearray] = []

    def allocate(nbytes: int) -> bytearray:
        made.append(bytearray(nbytes))
        return made[-1]

    ids = ids_for(np.random.default_rng(7), 4)
    with EngramPrefetcher(source, LAYERS, max_tokens=4, depth=1, staging=allocate) as prefetcher:
        assert [len(buffer) for buffer in made] == [4 * 6 * 320] * 2 + [4 * 24 * 264] * 2  # later layers first
        prefetcher.begin(ids, 4)
        prefetcher.start()
        check(prefetcher.consume(1), LAYERS[0], ids[0], 4)
        assert bytes(made[2]) == TABLES["a"].rows(ids[0], 2).tobytes()


# --- ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layer", "bad"), [(0, 5_000), (0, -1), (1, 7_001), (1, -(2**40)), (1, 2**62)])
def test_condition_13_an_id_outside_its_table_leaves_nothing_begun(source: MemorySource, layer: int, bad: int) -> None:
    ids = ids_for(np.random.default_rng(8), 4)
    wrong = [part.copy() for part in ids]
    wrong[layer][2, 1] = bad
    with EngramPrefetcher(source, LAYERS, max_tokens=4, depth=1) as prefetcher:
        with pytest.raises(ObmmArgumentError, match=rf"layer {[1, 14][layer]}, token 2, column 1: id {bad}"):
            prefetcher.begin(wrong, 4)
        assert source.gathers == 0
        assert prefetcher.metrics.errors.values[("bounds",)] == 1
        prefetcher.begin(ids, 4)  # nothing is pending
        prefetcher.start()
        check(prefetcher.consume(14), LAYERS[1], ids[1], 4)


def test_ids_at_the_tables_ends(source: MemorySource) -> None:
    ids = [np.array([[0, 4_999] * 12]), np.array([[7_000, 0] * 3])]
    with EngramPrefetcher(source, LAYERS, max_tokens=1) as prefetcher:
        prefetcher.begin(ids, 1)
        prefetcher.start()
        check(prefetcher.consume(1), LAYERS[0], ids[0], 1)
        check(prefetcher.consume(14), LAYERS[1], ids[1], 1)


def test_conditions_8_and_20_ids_without_a_row_are_zeros_and_never_read(source: MemorySource) -> None:
    ids = ids_for(np.random.default_rng(9), 4)
    ids[0][1] = -1
    ids[1][3, 2] = 7_001
    with EngramPrefetcher(source, LAYERS, max_tokens=8, invalid="zero") as prefetcher:
        prefetcher.begin(ids, 4, 8)
        prefetcher.start()
        first, second = prefetcher.consume(1), prefetcher.consume(14)
        assert not first.buffer[1].any()
        assert not second.buffer[3, 2].any()
        assert np.array_equal(first.buffer[2], TABLES["a"].rows(ids[0][2], 2))
        assert source.rows_read == 4 * 30 - 24 - 1


@pytest.mark.parametrize(
    ("ids", "n_tokens", "padded", "words"),
    [
        ([np.zeros((4, 24), np.int64)], 4, None, "ids of 1 layers"),
        ([np.zeros((4, 24), np.int64), np.zeros((4, 7), np.int64)], 4, None, r"\(4, 7\)"),
        ([np.zeros((3, 24), np.int64), np.zeros((4, 6), np.int64)], 4, None, r"\(3, 24\)"),
        ([np.zeros((4, 24), np.uint8), np.zeros((4, 6), np.int64)], 4, None, "uint8"),
        (np.zeros((4, 30), np.int64), 4, None, r"\(4, 30\)"),
        ([], 9, None, "max_tokens=8"),
        ([], 4, 3, "padded_tokens=3"),
        ([], -1, None, "n_tokens=-1"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(
    source: MemorySource, ids: Any, n_tokens: int, padded: int | None, words: str
) -> None:
    with (
        EngramPrefetcher(source, LAYERS, max_tokens=8) as prefetcher,
        pytest.raises(ObmmArgumentError, match=words),
    ):
        prefetcher.begin(ids, n_tokens, padded)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"depth": 0}, "depth=0"),
        ({"padding": "repeat"}, "padding='repeat'"),
        ({"policy": "ignore"}, "policy 'ignore'"),
        ({"policy": ("zero", "retry")}, "in the order"),
        ({"policy": ("zero", "raise")}, "in the order"),
        ({"policy": "local"}, "without a replica"),
        ({"policy": "zero"}, "not neutral to zero"),
        ({"layers": []}, "no layers"),
        ({"layers": [LAYERS[0], LAYERS[0]]}, "a layer twice"),
        ({"layers": [PrefetchLayer(1, "c", 4)]}, "table 'c'"),
        ({"layers": [PrefetchLayer(1, "a", 0)]}, "0 columns"),
        ({"staging": "pined"}, "staging='pined'"),
        ({"staging": bytes}, "readonly=True"),
        ({"staging": lambda nbytes: bytearray(nbytes - 1)}, "writable bytes"),
        ({"invalid": "ignore"}, "invalid='ignore'"),
    ],
)
def test_a_prefetcher_that_cannot_work_is_refused(source: MemorySource, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ObmmArgumentError, match=words):
        EngramPrefetcher(source, **({"layers": LAYERS, "max_tokens": 8} | arguments))


def test_a_batch_of_the_wrong_kind_leaves_no_slot_taken(source: MemorySource) -> None:
    ids = ids_for(np.random.default_rng(3), 4)
    with EngramPrefetcher(source, LAYERS, max_tokens=8) as prefetcher:
        with pytest.raises(ObmmArgumentError, match=r"n_tokens=4\.0"):
            prefetcher.begin(ids, 4.0)  # type: ignore[arg-type]
        with pytest.raises(ObmmArgumentError, match="phase='dekode'"):
            prefetcher.begin(ids, 4, phase="dekode")  # type: ignore[arg-type]
        assert set(prefetcher.metrics.slots_in_use.values.values()) == {0}
        assert prefetcher.drain() is None


# --- the phases in odd orders -------------------------------------------------------------------------------------


def test_condition_12_a_warm_up_forward_gives_zeros_and_reads_nothing(source: MemorySource) -> None:
    with EngramPrefetcher(source, LAYERS, max_tokens=8) as prefetcher:
        for _ in range(5):
            rows = prefetcher.consume(1)
            assert rows.status is RowsStatus.EMPTY
            assert rows.buffer.shape == (8, 24, 264)
            assert not rows.buffer.any()
            assert address(rows.buffer) == address(prefetcher.rows_u8(1))
        assert prefetcher.drain() is None
        prefetcher.cancel()
        assert source.gathers == 0


def test_a_step_that_was_not_started_is_gathered_in_consume_and_counted(source: MemorySource) -> None:
    ids = ids_for(np.random.default_rng(10), 4)
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        prefetcher.begin(ids, 4)
        assert not prefetcher.poll(1)
        check(prefetcher.consume(1), LAYERS[0], ids[0], 4)
        assert prefetcher.metrics.sync_fallback.values == {("not started",): 1}
        prefetcher.drain()


def test_start_needs_a_fresh_step(source: MemorySource) -> None:
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        with pytest.raises(ObmmArgumentError, match="begin"):
            prefetcher.start()
        prefetcher.begin(ids_for(np.random.default_rng(11), 4), 4)
        prefetcher.start()
        with pytest.raises(ObmmArgumentError, match="once"):
            prefetcher.start()


def test_an_unknown_layer_is_named(source: MemorySource) -> None:
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        for call in (prefetcher.consume, prefetcher.poll, prefetcher.rows_u8):
            with pytest.raises(ObmmArgumentError, match=r"layer 2; fix: use one of \[1, 14\]|layer 2 "):
                call(2)


def test_layers_that_were_not_consumed_are_counted(source: MemorySource) -> None:
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        prefetcher.begin(ids_for(np.random.default_rng(12), 4), 4, step=77)
        prefetcher.start()
        prefetcher.consume(1)
        report = prefetcher.drain()
        assert report is not None
        assert (report.step, report.unused) == (77, (14,))
        assert prefetcher.metrics.unused.values == {("not consumed",): 1}


def test_cancel_takes_the_newest_step_and_its_slots_come_back(source: MemorySource) -> None:
    random = np.random.default_rng(13)
    gate = threading.Event()
    with EngramPrefetcher(source, LAYERS, max_tokens=4, depth=2) as prefetcher:
        kept, rejected = ids_for(random, 4), ids_for(random, 4)
        prefetcher.begin(kept, 4)
        prefetcher.start()
        check(prefetcher.consume(1), LAYERS[0], kept[0], 4)
        source.before = lambda: gate.wait(5) and None
        prefetcher.begin(rejected, 4)
        prefetcher.start()
        prefetcher.cancel("rejected draft")
        assert prefetcher.metrics.unused.values == {("rejected draft",): 2}
        gate.set()
        check(prefetcher.consume(14), LAYERS[1], kept[1], 4)
        prefetcher.drain()
        until(lambda: source.gathers == 4)
        for _ in range(3):
            ids = ids_for(random, 4)
            prefetcher.begin(ids, 4)
            prefetcher.start()
            check(prefetcher.consume(1), LAYERS[0], ids[0], 4)
            check(prefetcher.consume(14), LAYERS[1], ids[1], 4)
            prefetcher.drain()
        assert not prefetcher.metrics.sync_fallback.values


def test_attach_goes_on_with_another_store_at_the_same_addresses(source: MemorySource) -> None:
    random = np.random.default_rng(18)
    other = MemorySource({"a": MemoryTable(6_000, 264, salt=8), "b": TABLES["b"]}, content=4)
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        prefetcher.begin(ids_for(random, 4), 4)
        with pytest.raises(MappingBusyError, match="1 steps are begun"):
            prefetcher.attach(other)
        prefetcher.start()
        home = address(prefetcher.consume(1).buffer)
        prefetcher.drain()
        prefetcher.attach(other)
        ids = [np.full((4, 24), 5_999), np.zeros((4, 6), np.int64)]
        prefetcher.begin(ids, 4)
        prefetcher.start()
        rows = prefetcher.consume(1)
        assert address(rows.buffer) == home
        assert np.array_equal(rows.buffer, other.tables["a"].rows(ids[0], 4))
        prefetcher.drain()
        with pytest.raises(ObmmArgumentError, match="rows of 512 bytes"):
            prefetcher.attach(MemorySource({"a": MemoryTable(10, 512), "b": TABLES["b"]}))
        with pytest.raises(ObmmArgumentError, match="table 'a'"):
            prefetcher.attach(MemorySource({"b": TABLES["b"]}))
    other.close()


# --- the end ------------------------------------------------------------------------------------------------------


def test_close_is_idempotent_and_what_is_closed_refuses(source: MemorySource) -> None:
    prefetcher = EngramPrefetcher(source, LAYERS, max_tokens=4)
    prefetcher.begin(ids_for(np.random.default_rng(14), 4), 4)
    prefetcher.start()
    prefetcher.close()
    prefetcher.close()
    for call in (prefetcher.start, prefetcher.drain, prefetcher.cancel, lambda: prefetcher.consume(1)):
        with pytest.raises(ClosedError):
            call()


def test_close_refuses_while_a_gather_runs_and_force_leaves_it_its_memory(source: MemorySource) -> None:
    gate = threading.Event()
    source.before = lambda: gate.wait(5) and None
    prefetcher = EngramPrefetcher(source, LAYERS, max_tokens=4)
    prefetcher.begin(ids_for(np.random.default_rng(15), 4), 4)
    prefetcher.start()
    with pytest.raises(MappingBusyError, match="2 gathers still run") as caught:
        prefetcher.close(timeout=0.01)
    assert caught.value.errno == errno.EBUSY
    prefetcher.close(force=True, timeout=0.01)
    del prefetcher
    gate.set()
    until(lambda: source.rows_read == 4 * 30)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(source: MemorySource) -> None:
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        pid = os.fork()
        if pid == 0:
            try:
                prefetcher.begin(ids_for(np.random.default_rng(16), 4), 4)
            except ClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        prefetcher.begin(ids_for(np.random.default_rng(16), 4), 4)


def test_blocked_time_is_hidden_behind_compute(source: MemorySource) -> None:
    """Acceptance 14: a 200 us gather and 500 us of compute; judged by the layer's own time, not by a wall clock."""
    source.before = lambda: time.sleep(0.0002)
    random = np.random.default_rng(17)
    blocked = []
    with EngramPrefetcher(source, LAYERS[:1], max_tokens=4) as prefetcher:
        for _ in range(300):
            prefetcher.begin(ids_for(random, 4)[:1], 4)
            prefetcher.start()
            until(lambda: prefetcher.poll(1))
            prefetcher.consume(1)
            report = prefetcher.drain()
            assert report is not None
            assert report.gather[1] >= 0.0002
            blocked.append(report.blocked[1])
    assert np.median(blocked) < 0.0002 / 2


def test_start_gathers_no_layer_that_was_consumed_before(source: MemorySource) -> None:
    """Its rows are being read, and its slot is free after `drain` whether or not such a gather has come back."""
    ids = ids_for(np.random.default_rng(9), 4)
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        prefetcher.begin(ids, 4)
        check(prefetcher.consume(1), LAYERS[0], ids[0], 4)
        prefetcher.start()
        check(prefetcher.consume(14), LAYERS[1], ids[1], 4)
        prefetcher.drain()
        assert source.gathers == 2


class Tensor:
    """What NumPy can read and is not an array of its own, as a tensor is."""

    def __init__(self, ids: NDArray[Any]) -> None:
        self._ids = ids

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self._ids

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self._ids)


@pytest.mark.parametrize("n_tokens", [1, 2, 3])
def test_a_tensor_of_as_many_tokens_as_layers_is_not_taken_for_a_list_of_layers(
    source: MemorySource, n_tokens: int
) -> None:
    layers = [PrefetchLayer(3, "a", 4), PrefetchLayer(9, "a", 4)]
    ids = np.random.default_rng(2).integers(0, 5_000, (n_tokens, 2, 4))
    with EngramPrefetcher(source, layers, max_tokens=8) as prefetcher:
        prefetcher.begin(Tensor(ids), n_tokens)  # type: ignore[arg-type]
        prefetcher.start()
        for place, layer in enumerate(layers):
            assert np.array_equal(prefetcher.consume(layer.layer_id).buffer, TABLES["a"].rows(ids[:, place], 2))
        prefetcher.drain()


NO_IDS: list[Any] = [
    None,
    3,
    "ids",
    [None, None],
    [[[1]], [[1, 2], [3]]],
    [np.zeros((1, 24)), np.zeros((1, 6))],
    [np.full((1, 24), np.nan), np.zeros((1, 6), np.int64)],
    [np.zeros((1, 24), np.uint64), np.zeros((1, 6), np.int64)],
    [np.zeros((1, 24), ">i8"), np.zeros((1, 6), np.int64)],
    np.zeros((1, 2, 6, 1), np.int64),
    {1: 2},
]


@pytest.mark.parametrize("ids", NO_IDS, ids=lambda ids: repr(ids)[:20])
def test_what_are_no_ids_is_refused_by_name(source: MemorySource, ids: Any) -> None:
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        with pytest.raises(ObmmArgumentError, match="ids"):
            prefetcher.begin(ids, 1)
        assert prefetcher.drain() is None
        assert set(prefetcher.metrics.slots_in_use.values.values()) == {0}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1, "1", None, True])
def test_rule_3_a_deadline_that_never_comes_is_refused(wrong: Any) -> None:
    for name in ("decode", "verify", "prefill", "probe"):
        with pytest.raises(ObmmArgumentError, match=name):
            Deadlines(**{name: wrong})


@pytest.mark.parametrize("wrong", [float("nan"), 1.5, "2", -1, True])
def test_sizes_that_are_no_numbers_are_refused_by_name(source: MemorySource, wrong: Any) -> None:
    for name in ("max_tokens", "depth", "max_abandoned"):
        with pytest.raises(ObmmArgumentError, match=name):
            EngramPrefetcher(source, LAYERS, **({"max_tokens": 4} | {name: wrong}))
    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        with pytest.raises(ObmmArgumentError, match="n_tokens"):
            prefetcher.begin(ids_for(np.random.default_rng(1), 1), wrong)
        with pytest.raises(ObmmArgumentError, match="padded_tokens"):
            prefetcher.begin(ids_for(np.random.default_rng(1), 1), 1, wrong)


def test_a_begin_that_is_interrupted_leaves_nothing_pending(
    source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(flight: Flight, ids: Any) -> None:
        if flight.layer.layer_id == 14:
            raise KeyboardInterrupt

    with EngramPrefetcher(source, LAYERS, max_tokens=4) as prefetcher:
        with monkeypatch.context() as patch:
            patch.setattr(Flight, "take_ids", interrupted)
            for _ in range(5):
                with pytest.raises(KeyboardInterrupt):
                    prefetcher.begin(ids_for(np.random.default_rng(1), 1), 1)
        assert set(prefetcher.metrics.slots_in_use.values.values()) == {0}
        ids = ids_for(np.random.default_rng(9), 4)
        prefetcher.begin(ids, 4)
        prefetcher.start()
        check(prefetcher.consume(1), LAYERS[0], ids[0], 4)
        prefetcher.drain()
        assert not prefetcher.metrics.sync_fallback.values
