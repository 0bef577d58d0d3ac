# SPDX-License-Identifier: Apache-2.0
"""Staging that one process fills and others copy (Engram specification 7.4): every byte, every death, no wait without end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_source import MemorySource, MemoryTable, until
from numpy.typing import NDArray

from obmm.errors import ClosedError, MappingBusyError, ObmmArgumentError, ObmmError
from obmm.prefetch import (
    Deadlines,
    EngramPrefetcher,
    GatherDeadlineError,
    PeerFailedError,
    PrefetchLayer,
    Rows,
    RowsStatus,
    SharedStaging,
    StagingFollower,
)
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec

LONG = Deadlines(decode=10, verify=10, prefill=10, probe=10)
LAYERS = (PrefetchLayer(1, "a", 4), PrefetchLayer(14, "b", 3))
TABLES = {"a": MemoryTable(700, 264), "b": MemoryTable(300, 1024, salt=9)}
MOST = 16
SPAWN = multiprocessing.get_context("spawn")


def table_rows(name: str) -> NDArray[np.uint8]:
    return TABLES[name].rows(np.arange(TABLES[name].n_rows), 2)


def ids_of(step: int, layer: PrefetchLayer, n_tokens: int) -> NDArray[np.int64]:
    """What both sides know of a step."""
    places = np.arange(n_tokens * layer.columns, dtype=np.int64).reshape(n_tokens, layer.columns)
    return (places * 7919 + step * 104_729 + layer.layer_id) % TABLES[layer.table].n_rows


def tokens_of(step: int) -> int:
    return step * 5 % (MOST + 1)


class Reader:
    """The reader's side over tables of this process."""

    def __init__(self, depth: int = 2, max_tokens: int = MOST) -> None:
        content = [table_rows(name) for name in TABLES]
        specs = []
        at = 0
        for (name, table), rows in zip(TABLES.items(), content, strict=True):
            specs.append(TableSpec(name, table.n_rows, table.row_bytes, base_offset=at))
            at += rows.nbytes
        memory = LocalMemory(np.concatenate([rows.ravel() for rows in content]))
        self.store = RowStore.attach(memory, Manifest(tuple(specs)), verify="none")
        self.staging = SharedStaging(self.store, LAYERS, max_tokens, depth)
        self.prefetcher = EngramPrefetcher(
            self.store, LAYERS, max_tokens, depth, staging=self.staging.allocate, deadlines=LONG
        )

    def begin(self, step: int, n_tokens: int | None = None) -> None:
        n = tokens_of(step) if n_tokens is None else n_tokens
        self.prefetcher.begin([ids_of(step, layer, n) for layer in LAYERS], n, max(n, MOST), step=step)
        self.prefetcher.start()

    def publish(self, step: int) -> None:
        for layer in LAYERS:
            self.staging.publish(layer.layer_id, step, self.prefetcher.consume(layer.layer_id))

    def end(self, step: int) -> None:
        self.staging.retire(step)
        self.prefetcher.drain()

    def close(self) -> None:
        self.prefetcher.close()
        self.staging.close()
        self.store.close()


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()


@pytest.fixture
def follower(reader: Reader) -> Iterator[StagingFollower]:
    with StagingFollower(reader.staging.fileno()) as made:
        yield made


class Checker:
    """Compares every byte of what a follower was handed."""

    def __init__(self, follower: StagingFollower) -> None:
        self.follower = follower
        self.tables = {name: table_rows(name) for name in TABLES}
        self.addresses = {layer.layer_id: follower.rows_u8(layer.layer_id).ctypes.data for layer in LAYERS}

    def check(self, step: int, layer: PrefetchLayer, rows: Rows, n_tokens: int | None = None) -> None:
        n = tokens_of(step) if n_tokens is None else n_tokens
        assert rows.n_tokens == n
        assert rows.status is RowsStatus.OK
        assert rows.buffer.shape[0] == max(n, MOST)
        assert rows.buffer.ctypes.data == self.addresses[layer.layer_id]
        assert np.array_equal(rows.buffer[:n], self.tables[layer.table][ids_of(step, layer, n)])
        assert not rows.buffer[n:].any()


# --- two processes ------------------------------------------------------------------------------------------------


def read_in_step(control: socket.socket, steps: int) -> None:
    """A reader's process: `steps` steps, each when the other rank says so, as a collective would."""
    reader = Reader()
    socket.send_fds(control, [b"f"], [reader.staging.fileno()])
    for step in range(steps):
        reader.begin(step)
        reader.publish(step)
        if control.recv(1) != b"n":
            return
        reader.end(step)
    control.recv(1)
    reader.close()


@contextmanager
def other_process(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[Any, socket.socket]]:
    """`target(its end of a socket pair, *arguments)` in a process of its own; killed if it is still there."""
    here, there = socket.socketpair()
    process = SPAWN.Process(target=target, args=(there, *arguments))
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        here.close()
        process.join(20)
        if process.exitcode is None:
            process.kill()
            process.join()
            pytest.fail("the other process did not end")


def received(control: socket.socket) -> StagingFollower:
    _, fds, _, _ = socket.recv_fds(control, 1, 1)
    follower = StagingFollower(fds[0])
    os.close(fds[0])
    return follower


def test_10_000_steps_arrive_in_another_process_byte_by_byte() -> None:
    steps = 10_000
    with other_process(read_in_step, steps) as (process, control), received(control) as follower:
        checker = Checker(follower)
        for step in range(steps):
            for layer in LAYERS:
                checker.check(step, layer, follower.wait(layer.layer_id, step, 20))
            follower.drain()
            control.send(b"n")
        control.send(b"e")
        process.join(20)
        assert process.exitcode == 0
        assert follower.wait(1, steps, 20).status is RowsStatus.FAILED  # closed: no more to wait for
        with pytest.raises(PeerFailedError):
            follower.drain()


def read_without_a_pause(control: socket.socket, tokens: int) -> None:
    """A reader that waits for no follower, with large rows: copies of a follower are overtaken in their middle."""
    reader = Reader(max_tokens=tokens)
    socket.send_fds(control, [b"f"], [reader.staging.fileno()])
    control.setblocking(False)
    step = 0
    while True:
        reader.begin(step, tokens)
        reader.publish(step)
        reader.end(step)
        step += 1
        try:
            if control.recv(1) == b"":
                return
        except BlockingIOError:
            pass


def test_a_reader_that_runs_ahead_is_noticed_and_never_mixed_in() -> None:
    """Rows that are handed out are of their step, whole; steps that went by are lost and say so."""
    tokens = 512
    good = lost = 0
    with other_process(read_without_a_pause, tokens) as (_, control), received(control) as follower:
        checker = Checker(follower)
        step = 0
        end = time.monotonic() + 60
        while (good < 500 or lost < 500) and time.monotonic() < end:
            rows = follower.wait(1, step, 20)
            if rows.status is RowsStatus.OK:
                checker.check(step, LAYERS[0], rows, tokens)
                follower.drain()
                good += 1
            else:
                assert not rows.buffer.any()
                with pytest.raises(ObmmError, match="retired step"):
                    follower.drain()
                lost += 1
            step += 1
    assert good >= 500
    assert lost >= 500


# --- deaths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 300])
def test_a_killed_reader_is_a_failure_in_time(steps: int) -> None:
    """kill -9 before the follower comes: it waits once, and never again."""
    with other_process(read_in_step, 1_000_000) as (process, control), received(control) as follower:
        checker = Checker(follower)
        for step in range(steps):
            for layer in LAYERS:
                checker.check(step, layer, follower.wait(layer.layer_id, step, 20))
            control.send(b"n")
        assert follower.wait(1, steps, 20).status is RowsStatus.OK
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        began = time.monotonic()
        rows = follower.wait(1, steps + 1, 0.2)
        assert rows.status is RowsStatus.FAILED
        assert not rows.buffer.any()
        with pytest.raises(PeerFailedError, match=r"reader .* is gone"):
            follower.drain()
        assert follower.wait(14, steps + 1, 3600).status is RowsStatus.FAILED
        assert time.monotonic() - began < 30
        assert "gone" in repr(follower)


def test_polling_ends_when_the_reader_was_killed() -> None:
    """`wait` would know that the rows never come: a loop around `poll` must end too."""
    with other_process(read_in_step, 1_000_000) as (process, control), received(control) as follower:
        until(lambda: follower.poll(1, 0))
        assert not follower.poll(1, 1)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        until(lambda: follower.poll(1, 1))
        assert follower.wait(1, 1, 3600).status is RowsStatus.FAILED


@pytest.mark.parametrize("step", [-1, -(2**70), 2**64 - 1, float("nan")])
def test_a_step_that_no_flag_can_show_is_refused(reader: Reader, follower: StagingFollower, step: Any) -> None:
    rows = Rows(np.zeros((0, 4, 264), np.uint8), 0, RowsStatus.OK)
    for call in (
        lambda: follower.wait(1, step, 0),
        lambda: follower.poll(1, step),
        lambda: reader.staging.publish(1, step, rows),
        lambda: reader.staging.retire(step),
    ):
        with pytest.raises(ObmmArgumentError, match="step"):
            call()
    reader.begin(0)
    reader.publish(0)
    assert follower.wait(1, 0, 20).status is RowsStatus.OK
    reader.end(0)


def test_rule_3_a_wait_that_never_ends_is_refused(follower: StagingFollower) -> None:
    with pytest.raises(ObmmArgumentError, match="timeout"):
        follower.wait(1, 0, float("nan"))


def test_a_reader_killed_at_any_moment_leaves_no_wrong_byte_and_no_endless_wait() -> None:
    random = np.random.default_rng(6)
    for delay in random.uniform(0.0, 0.1, 6):
        with other_process(read_without_a_pause, 64) as (process, control), received(control) as follower:
            checker = Checker(follower)
            assert follower.wait(1, 0, 20).status in (RowsStatus.OK, RowsStatus.FAILED)
            killer = threading.Timer(delay, os.kill, (process.pid, signal.SIGKILL))
            killer.start()
            step = 0
            while "gone" not in repr(follower):
                for layer in LAYERS:
                    rows = follower.wait(layer.layer_id, step, 0.3)
                    if rows.status is RowsStatus.OK:
                        checker.check(step, layer, rows, 64)
                    else:
                        assert not rows.buffer.any()
                step += 1
            killer.join()
            with pytest.raises(ObmmError):
                follower.drain()


def follow(control: socket.socket, memory: Any) -> None:
    """A follower's process: says how many steps it has seen."""
    fd = memory.detach()
    with StagingFollower(fd) as follower:
        checker = Checker(follower)
        step = 0
        while control.recv(1) == b"n":
            for layer in LAYERS:
                checker.check(step, layer, follower.wait(layer.layer_id, step, 20))
            control.send(b"d")
            step += 1


def test_a_killed_follower_costs_the_reader_and_the_other_ranks_nothing(reader: Reader) -> None:
    """kill -9 between copies and in the middle of a wait."""
    with ExitStack() as undo:
        mine = undo.enter_context(StagingFollower(reader.staging.fileno()))
        checker = Checker(mine)
        others = []
        for _ in range(2):
            here, there = socket.socketpair()
            process = SPAWN.Process(target=follow, args=(there, DupFd(reader.staging.fileno())))
            process.start()
            there.close()
            undo.callback(process.join)
            undo.callback(here.close)
            others.append((process, here))
        for step in range(600):
            for _, control in others:
                control.send(b"n")  # they wait before the reader has begun
            if step in (200, 400):
                process, control = others.pop()
                os.kill(process.pid, signal.SIGKILL)
                process.join()
            reader.begin(step)
            reader.publish(step)
            for layer in LAYERS:
                checker.check(step, layer, mine.wait(layer.layer_id, step, 20))
            for _, control in others:
                assert control.recv(1) == b"d"
            reader.end(step)
        mine.drain()
        assert reader.prefetcher.metrics.steps.values == {("decode", "ok"): 600}


def test_a_child_that_outlives_the_reader_is_not_taken_for_it() -> None:
    with other_process(read_and_fork) as (process, control), received(control) as follower:
        child = int.from_bytes(control.recv(4), "little")
        try:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            assert follower.wait(1, 0, 0.05).status is RowsStatus.FAILED
            with pytest.raises(PeerFailedError, match="is gone"):
                follower.drain()
        finally:
            os.kill(child, signal.SIGKILL)


def read_and_fork(control: socket.socket) -> None:
    reader = Reader()
    child = os.fork()
    if not child:
        signal.pause()
    socket.send_fds(control, [b"f"], [reader.staging.fileno()])
    control.send(child.to_bytes(4, "little"))
    control.recv(1)


# --- the flag -----------------------------------------------------------------------------------------------------


def test_a_flag_that_does_not_come_ends_at_the_deadline(reader: Reader, follower: StagingFollower) -> None:
    """The reader lives, whatever else became of descriptors of its memory."""
    os.close(os.dup(reader.staging.fileno()))
    StagingFollower(reader.staging.fileno()).close()
    assert not follower.poll(1, 0)
    assert follower.wait(1, 0, 0.02).status is RowsStatus.FAILED
    with pytest.raises(GatherDeadlineError, match="layer 1, step 0 within 20 ms"):
        follower.drain()
    follower.drain()
    reader.begin(0, 3)
    reader.publish(0)
    assert follower.poll(1, 0)
    Checker(follower).check(0, LAYERS[0], follower.wait(1, 0, 20), 3)
    follower.drain()
    reader.end(0)


def test_a_waiting_follower_is_woken(reader: Reader, follower: StagingFollower) -> None:
    found: list[Rows] = []
    thread = threading.Thread(target=lambda: found.append(follower.wait(14, 0, 60)))
    thread.start()
    reader.begin(0, 5)
    reader.publish(0)
    thread.join(20)
    Checker(follower).check(0, LAYERS[1], found[0], 5)
    reader.end(0)


def test_a_step_that_is_retired_while_it_is_copied_is_lost(
    reader: Reader, follower: StagingFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check after the copy is what keeps the next step's bytes out."""
    copyto = np.copyto

    def overtaken(out: Any, source: Any) -> None:
        reader.end(0)
        reader.begin(1, MOST)
        reader.publish(1)
        copyto(out, source)

    reader.begin(0, MOST)
    reader.publish(0)
    monkeypatch.setattr(np, "copyto", overtaken)
    rows = follower.wait(1, 0, 20)
    monkeypatch.undo()
    assert rows.status is RowsStatus.FAILED
    assert not rows.buffer.any()
    with pytest.raises(ObmmError, match="retired step 0 before layer 1 was copied"):
        follower.drain()
    Checker(follower).check(1, LAYERS[0], follower.wait(1, 1, 20), MOST)
    reader.end(1)


def test_a_cancelled_step_is_known_at_once(reader: Reader, follower: StagingFollower) -> None:
    reader.begin(0, 4)
    reader.staging.retire(0)
    reader.prefetcher.cancel()
    assert follower.poll(1, 0)
    assert follower.wait(1, 0, 3600).status is RowsStatus.FAILED
    with pytest.raises(ObmmError, match="retired"):
        follower.drain()


def test_steps_may_overlap(reader: Reader, follower: StagingFollower) -> None:
    """Two steps begun at once: their rows come from other slots, at the follower's one address."""
    checker = Checker(follower)
    reader.begin(0, 7)
    for step in range(50):
        reader.begin(step + 1, 7)
        reader.publish(step)
        for layer in LAYERS:
            checker.check(step, layer, follower.wait(layer.layer_id, step, 20), 7)
        reader.end(step)
    reader.publish(50)
    checker.check(50, LAYERS[0], follower.wait(1, 50, 20), 7)
    reader.end(50)


def test_a_follower_that_came_first_sees_memory_that_was_added(reader: Reader) -> None:
    staging = SharedStaging(reader.store, LAYERS, MOST)
    with StagingFollower(staging.fileno()) as follower:
        with EngramPrefetcher(reader.store, LAYERS, MOST, staging=staging.allocate, deadlines=LONG) as prefetcher:
            prefetcher.begin([ids_of(0, layer, 6) for layer in LAYERS], 6, MOST)
            prefetcher.start()
            staging.publish(14, 0, prefetcher.consume(14))
            Checker(follower).check(0, LAYERS[1], follower.wait(14, 0, 20), 6)
            staging.retire(0)
            prefetcher.drain()
        staging.close()


def test_every_status_reaches_the_followers() -> None:
    source = MemorySource({"t": MemoryTable(100, 264, neutral_zero=True)})
    layer = PrefetchLayer(3, "t", 2)
    staging = SharedStaging(source, [layer], 8)
    with (
        StagingFollower(staging.fileno()) as follower,
        EngramPrefetcher(source, [layer], 8, staging=staging.allocate, deadlines=LONG) as prefetcher,
    ):
        out = staging.allocate(8 * 2 * 264)
        buffer = np.frombuffer(out, np.uint8).reshape(8, 2, 264)
        buffer[:] = 5
        mask = np.array([True, False, True, False])
        told = [
            Rows(buffer, 4, RowsStatus.ZEROED, mask),
            Rows(buffer, 4, RowsStatus.REPLICA),
            Rows(np.zeros_like(buffer), 4, RowsStatus.ZEROED, np.ones(4, np.bool_)),
            Rows(buffer, 4, RowsStatus.FAILED),
            prefetcher.consume(3),
        ]
        assert told[-1].status is RowsStatus.EMPTY
        for step, rows in enumerate(told):
            staging.publish(3, step, rows)
            seen = follower.wait(3, step, 20)
            assert (seen.status, seen.n_tokens) == (rows.status, rows.n_tokens)
            if rows.failed_tokens is None:
                assert seen.failed_tokens is None
            else:
                assert np.array_equal(seen.failed_tokens, rows.failed_tokens)
            assert (seen.buffer == (5 if step < 2 else 0)).all()
            if rows.status is RowsStatus.FAILED:
                with pytest.raises(PeerFailedError, match="reader's gather of layer 3"):
                    follower.drain()
            follower.drain()
            staging.retire(step)
        del out, buffer, told, rows
    staging.close()
    source.close()


# --- refusals and ends --------------------------------------------------------------------------------------------


def test_what_breaks_the_order_is_refused(reader: Reader, follower: StagingFollower) -> None:
    reader.begin(0, 2)
    rows = reader.prefetcher.consume(1)
    for layer, step, given, text in (
        (2, 0, rows, "layer 2"),
        (1, -1, rows, "step -1"),
        (1, 0, Rows(np.ones((2, 4, 264), np.uint8), 2, RowsStatus.OK), "memory of their own"),
    ):
        with pytest.raises(ObmmArgumentError, match=text):
            reader.staging.publish(layer, step, given)
    reader.publish(0)
    for step in (0, 2):  # twice; another step in its place
        with pytest.raises(ObmmArgumentError, match="retire"):
            reader.staging.publish(1, step, rows)
    with pytest.raises(ObmmArgumentError, match=r"retire\(2\)"):
        reader.staging.retire(2)
    with pytest.raises(MappingBusyError, match="retire"):
        reader.staging.close()
    reader.end(0)
    with pytest.raises(ObmmArgumentError, match="0 was retired last"):
        reader.staging.publish(1, 0, rows)
    with pytest.raises(ObmmArgumentError, match="layer 2"):
        follower.wait(2, 0, 0)
    with pytest.raises(ObmmArgumentError, match="depth=0"):
        SharedStaging(reader.store, LAYERS, 8, 0)
    with pytest.raises(ObmmArgumentError, match="max_tokens"):
        EngramPrefetcher(reader.store, LAYERS, MOST + 1, staging=reader.staging.allocate)


def test_memory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"x" * 100, b"OBMMSTG1" + bytes(200)):
        file = tmp_path / "file"
        file.write_bytes(content)
        with file.open("rb") as opened, pytest.raises(ObmmArgumentError, match="descriptor of a SharedStaging"):
            StagingFollower(opened.fileno())


def test_a_closed_reader_is_known_at_once(follower: StagingFollower, reader: Reader) -> None:
    reader.close()
    reader.staging.close()
    assert follower.wait(1, 0, 3600).status is RowsStatus.FAILED
    with pytest.raises(PeerFailedError):
        follower.drain()
    for call in (
        lambda: reader.staging.allocate(MOST * 4 * 264),
        lambda: reader.staging.retire(0),
        reader.staging.fileno,
    ):
        with pytest.raises(ClosedError):
            call()
    follower.close()
    with pytest.raises(ClosedError):
        follower.wait(1, 0, 0)


def test_a_forked_child_uses_neither_side(reader: Reader, follower: StagingFollower) -> None:
    child = os.fork()
    if not child:
        refused = 0
        for call in (reader.staging.fileno, lambda: follower.poll(1, 0)):
            try:
                call()
            except ClosedError:
                refused += 1
        reader.staging.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert not follower.poll(1, 0)


def test_nothing_is_left_open(reader: Reader) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def once() -> None:
        made = Reader()
        with StagingFollower(made.staging.fileno()) as follower:
            made.begin(0, 2)
            made.publish(0)
            follower.wait(1, 0, 20)
            made.end(0)
        made.close()

    once()
    gc.collect()
    before = descriptors()
    for _ in range(5):
        once()
    Reader()  # dropped without a close
    gc.collect()
    until(lambda: descriptors() == before)
