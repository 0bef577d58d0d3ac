# SPDX-License-Identifier: Apache-2.0
"""What the engine sees when the peer does not answer (Engram specification 11)."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from memory_source import MemorySource, MemoryTable, failed_rows, fault, until
from numpy.typing import NDArray

from obmm.errors import RemoteMemoryError, StaleHandleError
from obmm.prefetch import (
    BreakerState,
    CircuitBreaker,
    Deadlines,
    EngramPrefetcher,
    GatherDeadlineError,
    PeerFailedError,
    PrefetchLayer,
    RowsStatus,
)

TABLE = MemoryTable(1_000, 264, neutral_zero=True)
LAYERS = [PrefetchLayer(1, "t", 4), PrefetchLayer(14, "t", 4)]
# A busy machine must not look like a slow fabric: only tests of lateness use the short ones.
LONG = Deadlines(decode=10, prefill=10, probe=10)
SHORT = Deadlines(decode=0.03, prefill=0.03, probe=0.05)


@pytest.fixture
def source() -> Iterator[MemorySource]:
    made = MemorySource({"t": TABLE})
    yield made
    made.before = None
    made.close()


def make(source: MemorySource, **options: Any) -> EngramPrefetcher:
    return EngramPrefetcher(source, LAYERS, 8, **({"deadlines": LONG} | options))


def random_ids(seed: int = 0, n_tokens: int = 8) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, TABLE.n_rows, (n_tokens, 2, 4))


def begin(prefetcher: EngramPrefetcher, ids: NDArray[np.int64]) -> None:
    prefetcher.begin(ids, len(ids))
    prefetcher.start()


def failing(times: int = 10**9, error: Callable[[], Exception] = fault) -> Callable[[], None]:
    left = iter(range(times))

    def before() -> None:
        if next(left, None) is not None:
            raise error()

    return before


def whole(rows: Any, ids: NDArray[np.int64], place: int, generation: int = 2) -> bool:
    return np.array_equal(rows.buffer, TABLE.rows(ids[:, place], generation))


# --- raise --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [fault, lambda: ValueError("a bug in the store"), lambda: OSError(5, "io")])
def test_rule_1_consume_never_raises_and_drain_does(source: MemorySource, raised: Any) -> None:
    ids = random_ids()
    with make(source) as prefetcher:
        begin(prefetcher, ids)
        assert whole(prefetcher.consume(1), ids, 0)
        prefetcher.consume(14)
        prefetcher.drain()
        source.before = failing(1, raised)
        begin(prefetcher, ids)
        first, second = prefetcher.consume(1), prefetcher.consume(14)
        assert (first.status, second.status) == (RowsStatus.FAILED, RowsStatus.OK)
        assert not first.buffer.any()
        assert first.buffer.shape == (8, 4, 264)
        assert whole(second, ids, 1)
        with pytest.raises(OSError):
            prefetcher.drain()
        begin(prefetcher, ids)  # and the step may be run again
        assert whole(prefetcher.consume(1), ids, 0)
        assert prefetcher.drain() is not None
        assert prefetcher.metrics.steps.values == {("decode", "failed"): 1, ("decode", "ok"): 2}


def test_drain_raises_the_first_error_of_the_step(source: MemorySource) -> None:
    errors = iter([lambda: RemoteMemoryError(14, "the first"), lambda: RemoteMemoryError(14, "the second")])
    source.before = lambda: failing(1, next(errors))()
    with make(source) as prefetcher:
        begin(prefetcher, random_ids())
        prefetcher.consume(14)
        prefetcher.consume(1)
        with pytest.raises(RemoteMemoryError, match="the first"):
            prefetcher.drain()


def test_a_store_that_refuses_the_submission_fails_the_step_in_drain(
    source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RemoteMemoryError(9, "closed")

    with make(source) as prefetcher:
        monkeypatch.setattr(source, "submit_many", refuse)
        begin(prefetcher, random_ids())
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(RemoteMemoryError, match="closed"):
            prefetcher.drain()


# --- zero ---------------------------------------------------------------------------------------------------------


def losing(source: MemorySource, mask: np.ndarray) -> None:
    """Let every gather of `source` lose the rows of `mask` from now on."""
    original = source._gather

    def gather(*arguments: Any) -> tuple[int, int]:
        original(*arguments)
        raise failed_rows(fault(), mask.ravel())

    source._gather = gather  # type: ignore[method-assign]


def test_zero_clears_only_the_tokens_that_lost_a_row(source: MemorySource) -> None:
    ids = random_ids()
    mask = np.zeros((8, 4), np.bool_)
    mask[2, 3] = mask[5] = True
    losing(source, mask)
    with make(source, policy="zero") as prefetcher:
        begin(prefetcher, ids)
        rows = prefetcher.consume(1)
        assert rows.status is RowsStatus.ZEROED
        assert rows.failed_tokens is not None
        assert rows.failed_tokens.tolist() == [False, False, True, False, False, True, False, False]
        assert not rows.buffer[[2, 5]].any()  # all or nothing per token
        kept = ~rows.failed_tokens
        assert np.array_equal(rows.buffer[kept], TABLE.rows(ids[:, 0], 2)[kept])
        prefetcher.consume(14)
        assert prefetcher.drain() is not None  # nothing to raise
        assert prefetcher.metrics.zero_rows.values == {("t", "policy"): 2 * 2 * 4}


def test_zero_clears_everything_when_the_rows_are_not_known(source: MemorySource) -> None:
    source.before = failing()
    with make(source, policy="zero") as prefetcher:
        begin(prefetcher, random_ids())
        rows = prefetcher.consume(1)
        assert rows.failed_tokens is not None
        assert rows.failed_tokens.all()
        assert not rows.buffer.any()


def test_rule_9_zeros_are_logged_once_a_second_at_most(source: MemorySource, caplog: pytest.LogCaptureFixture) -> None:
    source.before = failing()
    with caplog.at_level(logging.WARNING, "obmm.prefetch"), make(source, policy="zero") as prefetcher:
        for _ in range(20):
            begin(prefetcher, random_ids())
            prefetcher.consume(1)
            prefetcher.consume(14)
            prefetcher.drain()
    assert 1 <= len([r for r in caplog.records if "zeros" in r.message]) <= 3


@pytest.mark.parametrize("policy", ["raise", "retry", "zero", ("retry", "zero")])
def test_only_zero_asks_which_rows_failed(source: MemorySource, policy: Any) -> None:
    with make(source, policy=policy) as prefetcher:
        begin(prefetcher, random_ids())
        prefetcher.drain()
    assert source.asked_for == {"zero" if "zero" in policy else "error"}


def test_rows_beside_a_failed_one_are_of_the_steps_publication_too(source: MemorySource) -> None:
    """What came is checked as in a gather that lost nothing: another publication is not a row of this step."""
    mask = np.zeros((8, 4), np.bool_)
    mask[2, 3] = True
    losing(source, mask)
    with make(source, policy="zero") as prefetcher:
        prefetcher.begin(random_ids(), 8)
        source.content += 2
        prefetcher.start()
        rows = prefetcher.consume(1)
        assert rows.failed_tokens is not None
        assert rows.failed_tokens.all()
        assert not rows.buffer.any()
        prefetcher.drain()
        assert prefetcher.metrics.errors.values == {("generation",): 1}


def test_a_replica_that_fails_leaves_no_row_of_the_peer(source: MemorySource, replica: MemorySource) -> None:
    """It may have written over the rows that came."""
    mask = np.zeros((8, 4), np.bool_)
    mask[2, 3] = True
    losing(source, mask)
    losing(replica, mask)
    with make(source, policy=("local", "zero"), replica=replica) as prefetcher:
        begin(prefetcher, random_ids())
        rows = prefetcher.consume(1)
        assert rows.status is RowsStatus.ZEROED
        assert not rows.buffer.any()
        prefetcher.drain()


def test_rule_6_lost_rows_are_no_lost_peer(source: MemorySource) -> None:
    """A gather that brought rows from a live peer does not open the breaker; one that brought none does."""
    mask = np.zeros((8, 4), np.bool_)
    mask[0] = True
    losing(source, mask)
    with make(source, policy="zero") as prefetcher:
        for _ in range(6):
            begin(prefetcher, random_ids())
            assert prefetcher.consume(1).failed_tokens.tolist() == [True] + [False] * 7
            prefetcher.drain()
        mask[:] = True
        for _ in range(3):
            begin(prefetcher, random_ids())
            prefetcher.consume(1)
            prefetcher.drain()
        assert "3 failed gathers in a row" in repr(prefetcher)


# --- retry and local ----------------------------------------------------------------------------------------------


def test_retry_tries_once_more(source: MemorySource) -> None:
    source.before = failing(1)
    ids = random_ids()
    with make(source, policy="retry") as prefetcher:
        begin(prefetcher, ids)
        assert whole(prefetcher.consume(1), ids, 0)
        assert whole(prefetcher.consume(14), ids, 1)
        assert prefetcher.drain() is not None
        assert prefetcher.metrics.errors.values == {("fault",): 1}


def test_retry_that_fails_again_goes_on_with_the_chain(source: MemorySource) -> None:
    source.before = failing()
    with make(source, policy=("retry", "zero")) as prefetcher:
        begin(prefetcher, random_ids())
        assert prefetcher.consume(1).status is RowsStatus.ZEROED
    with make(source, policy="retry") as prefetcher:
        begin(prefetcher, random_ids())
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(RemoteMemoryError):
            prefetcher.drain()


@pytest.fixture
def replica() -> Iterator[MemorySource]:
    made = MemorySource({"t": TABLE}, path="file", content=8)
    yield made
    made.close()


def test_local_takes_the_rows_of_the_replica(source: MemorySource, replica: MemorySource) -> None:
    source.before = failing()
    ids = random_ids()
    with make(source, policy="local", replica=replica) as prefetcher:
        for _ in range(6):  # the breaker opens on the way; the answer stays the same
            begin(prefetcher, ids)
            for place, layer in enumerate([1, 14]):
                rows = prefetcher.consume(layer)
                assert rows.status is RowsStatus.REPLICA
                assert whole(rows, ids, place, generation=8)
            assert prefetcher.drain() is not None
        assert source.gathers < 6 * 2
        assert prefetcher.metrics.rows.values[("t", "replica")] == 6 * 2 * 32


def test_local_without_the_replicas_help_goes_on_with_the_chain(source: MemorySource, replica: MemorySource) -> None:
    source.before = replica.before = failing()
    with make(source, policy=("local", "zero"), replica=replica) as prefetcher:
        begin(prefetcher, random_ids())
        assert prefetcher.consume(1).status is RowsStatus.ZEROED
    with make(source, policy="local", replica=replica) as prefetcher:
        begin(prefetcher, random_ids())
        assert prefetcher.consume(1).status is RowsStatus.FAILED


def test_local_after_a_deadline_uses_another_slot(source: MemorySource, replica: MemorySource) -> None:
    gate = threading.Event()
    source.before = lambda: gate.wait(30) and None
    ids = random_ids()
    with make(
        source, policy="local", replica=replica, deadlines=Deadlines(decode=1), depth=1, max_abandoned=1
    ) as prefetcher:
        begin(prefetcher, ids)
        assert whole(prefetcher.consume(1), ids, 0, generation=8)
        prefetcher.drain()
        begin(prefetcher, ids)  # the peer is not asked now, and the slot of the replica's rows is free again
        rows = prefetcher.consume(1)
        assert whole(rows, ids, 0, generation=8)
        gate.set()  # the late gather writes now, elsewhere
        until(lambda: source.rows_read >= 32)
        assert whole(rows, ids, 0, generation=8)
        prefetcher.drain()


# --- deadlines and abandoned slots --------------------------------------------------------------------------------


def test_rule_4_a_late_gather_keeps_its_slot_and_never_writes_into_a_later_step(source: MemorySource) -> None:
    gate = threading.Event()
    source.before = lambda: gate.wait(30) and None
    with make(source, max_abandoned=10, breaker=CircuitBreaker(threshold=100), deadlines=SHORT) as prefetcher:
        begin(prefetcher, random_ids(1))
        began = time.monotonic()
        rows = prefetcher.consume(1)
        assert time.monotonic() - began < 15
        assert rows.status is RowsStatus.FAILED
        assert not rows.buffer.any()
        prefetcher.consume(14)
        with pytest.raises(GatherDeadlineError, match="within 30 ms"):
            prefetcher.drain()
        prefetcher.begin(random_ids(2), 8)
        assert prefetcher.metrics.slots_abandoned.values == {("1",): 1, ("14",): 1}
        source.before = None
        gate.set()
        prefetcher.start()
        assert whole(prefetcher.consume(1), random_ids(2), 0)
        assert whole(prefetcher.consume(14), random_ids(2), 1)
        prefetcher.drain()
        begin(prefetcher, random_ids(3))
        assert prefetcher.metrics.slots_abandoned.values == {("1",): 0, ("14",): 0}
        rows = prefetcher.consume(1)
        assert whole(rows, random_ids(3), 0)
        assert rows.buffer.base is prefetcher.rows_u8(1) or np.shares_memory(rows.buffer, prefetcher.rows_u8(1))


def test_rule_4_too_many_abandoned_slots_stop_the_asking(source: MemorySource) -> None:
    gate = threading.Event()
    source.before = lambda: gate.wait(30) and None
    now = [0.0]
    breaker = CircuitBreaker(threshold=100, clock=lambda: now[0])
    with make(source, max_abandoned=2, breaker=breaker, deadlines=SHORT) as prefetcher:
        begin(prefetcher, random_ids())
        prefetcher.consume(1)
        prefetcher.consume(14)
        with pytest.raises(GatherDeadlineError):
            prefetcher.drain()
        for _ in range(3):
            with pytest.raises(PeerFailedError, match="2 abandoned gathers"):
                prefetcher.begin(random_ids(), 8)
            now[0] += 2
        assert source.probes == 0  # nor is a probe sent after them
        gate.set()
        until(lambda: _begins(prefetcher))
        assert source.probes >= 1


def _begins(prefetcher: EngramPrefetcher) -> bool:
    try:
        prefetcher.begin(random_ids(), 8)
    except PeerFailedError:
        return False
    return True


def test_when_every_slot_is_lost_the_bytes_are_zeros_all_the_same(source: MemorySource) -> None:
    gate = threading.Event()
    source.before = lambda: gate.wait(30) and None
    breaker = CircuitBreaker(threshold=100)
    with make(source, depth=1, max_abandoned=100, breaker=breaker, policy="zero", deadlines=SHORT) as prefetcher:
        for _ in range(4):
            begin(prefetcher, random_ids())
            rows = prefetcher.consume(1)
            assert rows.status is RowsStatus.ZEROED
            assert rows.buffer.shape == (8, 4, 264)
            assert not rows.buffer.any()
            prefetcher.drain()
        assert prefetcher.metrics.errors.values[("slots",)] >= 1
        gate.set()


def test_a_slow_gather_that_comes_in_time_is_no_fault(source: MemorySource) -> None:
    source.before = lambda: time.sleep(0.05)
    ids = random_ids()
    with make(source) as prefetcher:
        begin(prefetcher, ids)
        assert whole(prefetcher.consume(1), ids, 0)
        assert whole(prefetcher.consume(14), ids, 1)
        prefetcher.drain()


def test_the_phase_chooses_the_deadline(source: MemorySource) -> None:
    source.before = lambda: time.sleep(0.06)
    with make(source, deadlines=Deadlines(decode=0.001, prefill=10)) as prefetcher:
        prefetcher.begin(random_ids(), 8, phase="prefill")
        prefetcher.start()
        assert prefetcher.consume(1).status is RowsStatus.OK
        prefetcher.cancel()
        begin(prefetcher, random_ids())
        assert prefetcher.consume(1).status is RowsStatus.FAILED


# --- generations --------------------------------------------------------------------------------------------------


def test_condition_17_a_publish_during_the_gather_is_seen(source: MemorySource) -> None:
    source.flip = True
    with make(source) as prefetcher:
        begin(prefetcher, random_ids())
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(StaleHandleError):
            prefetcher.drain()
        assert prefetcher.metrics.errors.values == {("generation",): 1}


def test_a_step_never_mixes_generations(source: MemorySource) -> None:
    """A publish between begin and the gather: each row would be whole, but of another version than the step's."""
    ids = random_ids()
    with make(source) as prefetcher:
        prefetcher.begin(ids, 8)
        source.content = 4
        prefetcher.start()
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(StaleHandleError, match="generation 2 at begin, 4"):
            prefetcher.drain()
        begin(prefetcher, ids)
        assert whole(prefetcher.consume(1), ids, 0, generation=4)


def test_begin_refuses_while_the_table_is_being_written(source: MemorySource) -> None:
    source.content = 3
    with make(source) as prefetcher:
        with pytest.raises(StaleHandleError, match="generation 3 is odd"):
            prefetcher.begin(random_ids(), 8)
        source.content = 4
        begin(prefetcher, random_ids())
        assert whole(prefetcher.consume(1), random_ids(), 0, generation=4)


def test_publishing_often_does_not_open_the_breaker(source: MemorySource) -> None:
    source.flip = True
    with make(source) as prefetcher:
        for _ in range(5):
            begin(prefetcher, random_ids())
            prefetcher.consume(1)
            with pytest.raises(StaleHandleError):
                prefetcher.drain()


# --- the breaker --------------------------------------------------------------------------------------------------


def test_rule_6_three_failures_open_the_breaker_and_a_whole_canary_closes_it(source: MemorySource) -> None:
    source.before = failing()
    source.canary_ok = False
    breaker = CircuitBreaker(probe_interval=0.02)
    with make(source, breaker=breaker) as prefetcher:
        for _ in range(2):
            begin(prefetcher, random_ids())
            prefetcher.consume(1)
            prefetcher.consume(14)
            with pytest.raises(RemoteMemoryError):
                prefetcher.drain()
        asked = source.gathers
        with pytest.raises(PeerFailedError, match="3 failed gathers in a row"):
            prefetcher.begin(random_ids(), 8)
        source.before = None
        until(lambda: not _begins(prefetcher) and source.probes >= 2)  # a wrong canary keeps it open
        assert source.gathers == asked
        assert prefetcher.metrics.mapping_state.values[("memory",)] > 0
        source.canary_ok = True
        until(lambda: _begins(prefetcher))
        prefetcher.start()
        assert whole(prefetcher.consume(1), random_ids(), 0)
        assert breaker.state is BreakerState.CLOSED
        assert prefetcher.metrics.mapping_state.values[("memory",)] == 0


def test_a_lost_heartbeat_opens_the_breaker_before_anything_is_read(source: MemorySource) -> None:
    breaker = CircuitBreaker(probe_interval=0.01)
    with make(source, breaker=breaker) as prefetcher:
        source.alive = False
        with pytest.raises(PeerFailedError, match="heartbeat"):
            prefetcher.begin(random_ids(), 8)
        assert (source.gathers, source.probes) == (0, 0)
        source.alive = True
        until(lambda: _begins(prefetcher))
        assert source.probes == 1


def test_an_open_breaker_with_the_policy_zero_reads_nothing(source: MemorySource) -> None:
    source.alive = False
    with make(source, policy="zero") as prefetcher:
        begin(prefetcher, random_ids())
        for layer in (1, 14):
            rows = prefetcher.consume(layer)
            assert rows.status is RowsStatus.ZEROED
            assert not rows.buffer.any()
            assert np.shares_memory(rows.buffer, prefetcher.rows_u8(layer))
        prefetcher.drain()
        assert source.gathers == 0


def test_a_probe_that_hangs_counts_as_failed_and_is_not_sent_twice(source: MemorySource) -> None:
    gate = threading.Event()
    source.before = lambda: gate.wait(30) and None
    breaker = CircuitBreaker(probe_interval=0.01)
    breaker.trip("by hand")
    with make(source, breaker=breaker, deadlines=Deadlines(decode=10, probe=0.01)) as prefetcher:
        until(lambda: not _begins(prefetcher) and source.probes == 1)
        until(lambda: not _begins(prefetcher) and breaker.state is BreakerState.OPEN)
        for _ in range(20):
            time.sleep(0.002)
            assert not _begins(prefetcher)
        assert source.probes == 1
        gate.set()
        until(lambda: _begins(prefetcher))
        assert source.probes >= 2


def test_the_breaker_by_the_clock() -> None:
    now = [0.0]
    breaker = CircuitBreaker(threshold=2, probe_interval=1.0, clock=lambda: now[0])
    breaker.failed("x")
    breaker.succeeded()
    breaker.failed("x")
    assert breaker.state is BreakerState.CLOSED  # not in a row
    breaker.failed("x")
    assert breaker.state is BreakerState.OPEN
    assert not breaker.probe_due()
    now[0] = 1.0
    assert breaker.probe_due()
    breaker.probing()
    assert not breaker.probe_due()
    breaker.probe_failed()
    now[0] = 1.9
    assert not breaker.probe_due()
    now[0] = 2.0
    assert breaker.probe_due()
    breaker.probing()
    breaker.probe_succeeded()
    assert breaker.state is BreakerState.CLOSED
    breaker.failed("x")
    assert breaker.state is BreakerState.CLOSED


# --- two ranks (acceptance 13) ------------------------------------------------------------------------------------


def _agree(peer: Connection, mine: bool) -> bool:
    """An all-reduce of one bit; a rank that never comes shows as a time-out, not as a hang."""
    peer.send(mine)
    if not peer.poll(10):
        raise TimeoutError("the other rank did not come to the collective")
    return mine and bool(peer.recv())


def _rank(peer: Connection, sick: bool, results: Connection) -> None:
    source = MemorySource({"t": TABLE})
    outcomes = []
    with make(source) as prefetcher:
        for step in range(6):
            source.before = failing(1) if sick and step in (2, 4) else None
            ids = random_ids(step)
            prefetcher.begin(ids, 8)
            assert _agree(peer, True)  # before the forward
            prefetcher.start()
            for layer in (1, 14):
                prefetcher.consume(layer)
                _agree(peer, True)  # the layer's own collective: every rank must reach it
            try:
                prefetcher.drain()
                good = True
            except RemoteMemoryError:
                good = False
            outcomes.append("publish" if _agree(peer, good) else "discard")
    source.close()
    results.send(outcomes)


def test_one_rank_sees_a_fault_and_both_leave_the_step() -> None:
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    pipes = [context.Pipe(duplex=False) for _ in ends]
    ranks = [context.Process(target=_rank, args=(end, place == 1, pipes[place][1])) for place, end in enumerate(ends)]
    for rank in ranks:
        rank.start()
    outcomes = [pipe[0].recv() if pipe[0].poll(40) else None for pipe in pipes]
    for rank in ranks:
        rank.join(10)
        assert rank.exitcode == 0
    assert outcomes == [["publish", "publish", "discard", "publish", "discard", "publish"]] * 2


def no_tickets(*_: Any) -> None:
    raise OSError(11, "no tickets")


def test_poll_ends_when_the_submission_was_refused(source: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    """`consume` would not wait: a loop around `poll` must not either."""
    with make(source) as prefetcher:
        monkeypatch.setattr(source, "submit_many", no_tickets)
        begin(prefetcher, random_ids())
        assert prefetcher.poll(1)
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(OSError, match="no tickets"):
            prefetcher.drain()


def test_a_retry_that_cannot_be_submitted_is_the_failure(source: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of the first try must not be read again: native code may have begun to write the second one's there."""
    with make(source, policy="retry") as prefetcher:
        source.before = failing(1)
        begin(prefetcher, random_ids())
        until(lambda: prefetcher.poll(1))
        monkeypatch.setattr(source, "submit_many", no_tickets)
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(OSError, match="no tickets"):
            prefetcher.drain()


def test_rule_4_gathers_lost_in_an_earlier_store_are_not_held_against_the_next(source: MemorySource) -> None:
    """They may never return: the peer that they hang in was left, and its slots with it."""
    gate, other = threading.Event(), MemorySource({"t": TABLE})
    source.before = lambda: gate.wait(20) and None
    ids = random_ids()
    with make(source, deadlines=Deadlines(decode=0.01, probe=10), max_abandoned=1) as prefetcher:
        begin(prefetcher, ids)
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(GatherDeadlineError):
            prefetcher.drain()
        with pytest.raises(PeerFailedError, match="abandoned"):
            prefetcher.begin(ids, len(ids))
        prefetcher.attach(other)
        assert prefetcher.metrics.slots_abandoned.values[("1",)] == 1
        prefetcher._deadlines = LONG
        for _ in range(3):
            begin(prefetcher, ids)
            assert whole(prefetcher.consume(1), ids, 0)
            assert whole(prefetcher.consume(14), ids, 1)
            prefetcher.drain()
        gate.set()
        prefetcher.close(timeout=20)
    other.close()


def test_a_late_replica_says_nothing_about_the_peer(source: MemorySource) -> None:
    gate, slow = threading.Event(), MemorySource({"t": TABLE})
    slow.before = lambda: gate.wait(20) and None
    source.before = failing(1)
    ids = random_ids()
    with make(source, policy="local", replica=slow, max_abandoned=1) as prefetcher:
        begin(prefetcher, ids)
        until(lambda: prefetcher.poll(1))
        prefetcher._steps[0].flights[1].limit = 0.01
        assert prefetcher.consume(1).status is RowsStatus.FAILED
        with pytest.raises(RemoteMemoryError):
            prefetcher.drain()
        begin(prefetcher, ids)
        assert whole(prefetcher.consume(1), ids, 0)
        prefetcher.drain()
        gate.set()
        prefetcher.close(timeout=20)
    slow.close()
