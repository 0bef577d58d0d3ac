# SPDX-License-Identifier: Apache-2.0
"""Reads and writes between two processes (conformance list 12, 17 to 22, 24, 25, 30 to 33, 35, 36, 41)."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from obmm import urma
from obmm._native import lib
from obmm.errors import ClosedError, MappingBusyError
from obmm.urma.standin import StandIn

from .conftest import NBYTES, OwnerProcess
from .owner import content

Spawn = Callable[..., OwnerProcess]


@pytest.fixture
def queue(context: urma.Context) -> urma.Queue:
    return context.queue()


@pytest.fixture(scope="module")
def shared_dead(standin: StandIn) -> Iterator[tuple[bytes, bytes]]:
    """Tickets of a process that lives and of one that was killed."""
    owners = [OwnerProcess(standin), OwnerProcess(standin)]
    tickets = [owner.register()[1] for owner in owners]
    owners[1].kill()
    yield tickets[0], tickets[1]
    for owner in owners:
        owner.close()


def packed(whole: Any, offsets: Any, lengths: Any) -> bytes:
    return b"".join(whole[o : o + n].tobytes() for o, n in zip(offsets, lengths, strict=True))


def test_random_reads_of_any_size_and_alignment_and_the_owner_does_nothing(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess
) -> None:
    number, ticket = owner.register(7)
    target, whole, out = queue.attach(ticket), content(7, NBYTES), context.buffer(4096 * 4096)
    rng = np.random.default_rng(5)
    spent = owner.ask("cpu")
    for _ in range(25):
        lengths = rng.integers(1, 4097, 4000, dtype=np.uint32)
        offsets = rng.integers(0, NBYTES - 4096, 4000, dtype=np.uint64)
        read = target.read_many(offsets, lengths, out)
        assert read == int(lengths.sum())
        assert hashlib.sha256(out[:read]).digest() == hashlib.sha256(packed(whole, offsets, lengths)).digest()
    assert set((rng.integers(0, NBYTES - 4096, 4000) % 64).tolist()) == set(range(64))
    assert owner.ask("cpu") - spent < 0.05
    assert owner.ask("digest", number) == hashlib.sha256(whole.tobytes()).hexdigest()


@pytest.mark.parametrize("rows", [0, 1, 4096, 4097, 100_000])
def test_rows_are_those_that_numpy_takes(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess, rows: int
) -> None:
    _, ticket = owner.register(8)
    table, out = content(8, NBYTES).reshape(-1, 64), context.buffer(max(1, rows) * 64)
    ids = np.random.default_rng(rows).integers(0, len(table), rows)
    assert queue.attach(ticket).read_many(ids * 64, 64, out) == rows * 64
    assert (out[: rows * 64].reshape(-1, 64) == np.take(table, ids, axis=0)).all()


def test_a_batch_is_one_native_call_per_list(context: urma.Context, queue: urma.Queue, owner: OwnerProcess) -> None:
    _, ticket = owner.register(8)
    target, out = queue.attach(ticket), context.buffer(8192 * 8)
    before = context.library.counters()
    target.read_many(np.arange(8192) * 8, 8, out)
    after = context.library.counters()
    assert before is not None
    assert after is not None
    assert (after["posts"] - before["posts"], after["copies"] - before["copies"]) == (2, 8)


def forged(ticket: bytes, **changes: Any) -> urma.Ticket:
    return dataclasses.replace(urma.Ticket.unpack(ticket), **changes)


@pytest.mark.parametrize("change", ["token", "token_id", "zero", "target_token"])
def test_a_wrong_secret_is_refused(context: urma.Context, queue: urma.Queue, owner: OwnerProcess, change: str) -> None:
    _, ticket = owner.register()
    real = urma.Ticket.unpack(ticket)
    changes = {"token": {"token": real.token ^ 1}, "token_id": {"token_id": real.token_id + 256}, "zero": {"token": 0}}
    target = queue.attach(forged(ticket, **changes.get(change, {"target_token": real.target_token ^ 1})))
    with pytest.raises(urma.UrmaRefused) as caught:
        target.read_many([0], 8, context.buffer(8))
    assert (caught.value.code, caught.value.index) == (8, 0)
    with pytest.raises(urma.UrmaQueueDead):
        target.read_many([0], 8, context.buffer(8))


def test_writes_need_the_right_and_arrive(context: urma.Context, queue: urma.Queue, owner: OwnerProcess) -> None:
    data = context.buffer(300)
    data[:] = np.arange(300) % 251
    number, ticket = owner.register(9, access="rw")
    assert queue.attach(ticket).write_many([100, 4000], [100, 200], data) == 300
    expected = content(9, NBYTES)
    expected[100:200], expected[4000:4200] = data[:100], data[100:]
    assert owner.ask("digest", number) == hashlib.sha256(expected.tobytes()).hexdigest()
    number, ticket = owner.register(9)
    with pytest.raises(urma.UrmaRefused):
        queue.attach(ticket).write_many([0], 8, data[:8])
    assert owner.ask("digest", number) == hashlib.sha256(content(9, NBYTES).tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("offset", "length", "fits"), [(NBYTES - 8, 8, True), (NBYTES - 8, 9, False), ((1 << 64) - 8, 16, False)]
)
def test_the_bound_is_checked_before_anything_is_posted(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess, offset: int, length: int, fits: bool
) -> None:
    _, ticket = owner.register()
    target, out = queue.attach(ticket), context.buffer(64)
    before = context.library.counters()
    if fits:
        assert target.read_many([offset], length, out) == length
        return
    with pytest.raises(urma.UrmaArgumentError, match="piece 1 is") as caught:
        target.read_many(np.array([0, offset], np.uint64), length, out)
    assert caught.value.index == 1
    assert queue.alive
    after = context.library.counters()
    assert before is not None
    assert after is not None
    assert after["posts"] == before["posts"]


def test_the_owners_side_refuses_what_reaches_over_the_end(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess
) -> None:
    _, ticket = owner.register()
    target = queue.attach(forged(ticket, length=2 * NBYTES))  # the importer's own check believes this
    out = context.buffer(64)
    with pytest.raises(urma.UrmaRefused):
        target.read_many([NBYTES - 8], 64, out)
    assert not out.any()


def test_a_revoked_segment_and_its_memory_registered_anew(context: urma.Context, owner: OwnerProcess) -> None:
    number, ticket = owner.register(10)
    out = context.buffer(8)
    with context.queue() as queue:
        queue.attach(ticket).read_many([0], 8, out)
    _, fresh = owner.ask("again", number, 11)
    with context.queue() as queue, pytest.raises(urma.UrmaRefused):
        queue.attach(ticket).read_many([0], 8, out)
    with context.queue() as queue:
        queue.attach(bytes.fromhex(fresh)).read_many([0], 8, out)
    assert out.tobytes() == content(11, NBYTES)[:8].tobytes()
    assert urma.Ticket.unpack(bytes.fromhex(fresh)).generation != urma.Ticket.unpack(ticket).generation


def test_revoking_during_reads_gives_whole_rows_or_a_refusal(context: urma.Context, owner: OwnerProcess) -> None:
    whole = content(12, NBYTES).reshape(-1, 4096)
    out = context.buffer(256 * 4096)
    ids = np.random.default_rng(1).integers(0, len(whole), 256)
    for _ in range(20):
        number, ticket = owner.register(12)
        with context.queue() as queue:
            target = queue.attach(ticket)
            revoking = threading.Thread(target=owner.ask, args=("revoke", number))
            revoking.start()
            with pytest.raises(urma.UrmaRefused):
                while True:
                    target.read_many(ids * 4096, 4096, out)
                    assert (out.reshape(-1, 4096) == whole[ids]).all()
            revoking.join()


def test_a_dead_owner_is_told_in_time(context: urma.Context, spawn: Spawn) -> None:
    owner = spawn()
    _, ticket = owner.register()
    queue = context.queue()
    target = queue.attach(ticket)
    target.read_many([0], 8, context.buffer(8))
    owner.kill()
    began = time.monotonic()
    with pytest.raises(urma.UrmaError) as caught:
        target.read_many([0], 8, context.buffer(8))
    assert caught.value.code == 9
    assert time.monotonic() - began < 1.0


def test_an_owner_that_is_killed_during_lists_never_gives_foreign_bytes(context: urma.Context, spawn: Spawn) -> None:
    owner = spawn()
    _, ticket = owner.register(13)
    whole, out = content(13, NBYTES).reshape(-1, 256), context.buffer(4096 * 256)
    target = context.queue().attach(ticket)
    threading.Timer(0.1, owner.kill).start()
    with pytest.raises(urma.UrmaError) as caught:
        while True:
            target.read_many(np.arange(4096) * 256, 256, out)
            assert (out.reshape(-1, 256) == whole).all()
    assert caught.value.code in (8, 9)


def test_a_process_with_the_pid_of_a_dead_owner_is_not_read(context: urma.Context, spawn: Spawn) -> None:
    owner = spawn()
    _, ticket = owner.register()
    pid = owner.ask("pid")
    target = context.queue().attach(ticket)
    owner.kill()
    with _process_with_pid(pid), pytest.raises(urma.UrmaError) as caught:
        target.read_many([0], 8, context.buffer(8))
    assert caught.value.code == 9


@contextmanager
def _process_with_pid(pid: int) -> Iterator[None]:
    """Another process that has this number now; skips where the kernel lets no process choose."""
    started = []
    try:
        for _ in range(50):
            try:
                Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            except OSError as error:
                pytest.skip(f"the kernel does not let this user choose a pid: {error.strerror}")
            started.append(subprocess.Popen(["sleep", "60"]))
            if started[-1].pid == pid:
                break
        assert started[-1].pid == pid, "other processes took the number each time"
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_batch_is_one_native_call_and_needs_as_many_allocations_for_any_number_of_rows(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ticket = owner.register()
    target, out = queue.attach(ticket), context.buffer(4096 * 64)
    calls: list[int] = []

    class Counted:
        """The native module; what moves data is counted."""

        def __getattr__(self, name: str) -> Any:
            function = getattr(lib, name)
            return (lambda *given: (calls.append(1), function(*given))[1]) if name == "obmm_urma_transfer" else function

    def blocks(n: int) -> int:
        """The most memory blocks that a batch held beyond those of before."""
        offsets = np.arange(n, dtype=np.uint64) * 64
        target.read_many(offsets, 64, out)  # code is warm
        tracemalloc.start()
        try:
            target.read_many(offsets, 64, out)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = blocks(64), blocks(4096)
    assert many <= few + 1024, (few, many)  # bytes: 4,096 rows' numbers alone would be 32 KiB
    monkeypatch.setattr("obmm.urma.queue.lib", Counted())
    for n in (1, 64, 4096, 10_000):
        calls.clear()
        target.read_many(np.zeros(n, np.uint64), 8, out)
        assert len(calls) == 1


def test_an_unreachable_node(context: urma.Context, standin: StandIn, queue: urma.Queue, owner: OwnerProcess) -> None:
    _, ticket = owner.register()
    target = queue.attach(ticket)
    standin.reach("b", False)
    try:
        with pytest.raises(urma.UrmaError) as caught:
            target.read_many([0], 8, context.buffer(8))
    finally:
        standin.reach("b", True)
    assert caught.value.name == "ACK_TIMEOUT_ERR"


def test_silence_as_on_hardware_ends_at_the_deadline(
    standin: StandIn, context: urma.Context, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ticket = spawn().register()
    context.close()
    monkeypatch.setenv("OBMM_URMA_STANDIN_REFUSAL", "silent")
    with urma.Context(library=context.library) as silent:
        queue, out = silent.queue(), silent.buffer(8)
        target = queue.attach(forged(ticket, token=1))
        began = time.monotonic()
        with pytest.raises(urma.UrmaTimeout):
            target.read_many([0], 8, out, timeout=0.5)
        assert 0.5 <= time.monotonic() - began < 0.6 + 0.4  # the second part is for a busy machine
        with pytest.raises(urma.UrmaQueueDead):
            target.read_many([0], 8, out)
        with pytest.raises(MappingBusyError):
            silent.free(out)  # the dead queue may still write there
        queue.close()
        silent.free(out)
        with silent.queue() as second:
            assert second.attach(ticket).read(0, 8) == content(1, 8).tobytes()


@pytest.mark.parametrize("out", [np.zeros(64, np.uint8), b"x" * 64, bytearray(64), np.zeros(64, object)])
def test_a_destination_that_is_not_registered(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess, out: Any
) -> None:
    _, ticket = owner.register()
    with pytest.raises(ValueError, match=r"Context\.buffer|pass bytes"):
        queue.attach(ticket).read_many([0], 8, out)


def test_destinations_with_gaps_read_only_ones_and_short_ones(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess
) -> None:
    _, ticket = owner.register()
    target, out = queue.attach(ticket), context.buffer(64)
    frozen = out.view()
    frozen.flags.writeable = False
    for bad in (out[::2], frozen):
        with pytest.raises(ValueError):
            target.read_many([0], 8, bad)
    with pytest.raises(ValueError, match="full before piece 8"):
        target.read_many([0] * 9, 8, out)
    assert queue.alive


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [
        ([-1], 8),
        ([0.5], 8),
        ([[0]], 8),
        ([0], -1),
        ([0], [8, 8]),
        ([0], [1 << 40]),
        ([0], 1 << 32),
        (["x"], 8),
        ([0], "8"),
    ],
)
def test_pieces_that_are_none(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess, offsets: Any, lengths: Any
) -> None:
    _, ticket = owner.register()
    with pytest.raises(ValueError):
        queue.attach(ticket).read_many(offsets, lengths, context.buffer(64))
    assert queue.alive


@dataclasses.dataclass
class Held:
    """What the stand-in's registry has for all processes, and what its library has for this one."""

    standin: StandIn
    library: urma.Library

    def registry(self) -> dict[str, Any]:
        found = self.standin.status()
        return {name: found[name] for name in ("processes", "segments", "targets", "copying")}

    def references(self) -> int:
        counts = self.library.counters()
        assert counts is not None
        return counts["references"]


@pytest.fixture
def held(standin: StandIn, library: urma.Library) -> Held:
    return Held(standin, library)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
@pytest.mark.parametrize("peer", ["alive", "dead"])
def test_closing_in_any_order_and_twice_leaves_nothing(
    held: Held, shared_dead: tuple[bytes, bytes], order: tuple[int, ...], peer: str
) -> None:
    """Outer closes inner, whatever is closed first; only the context itself is left before it goes."""
    ticket = shared_dead[peer == "dead"]
    before, references = held.registry(), held.references()
    context = urma.Context(library=held.library)
    queue, buffer = context.queue(), context.buffer(64, "rw")
    target = queue.attach(ticket)
    if peer == "alive":
        target.read_many([0], 8, buffer[:8])
    else:
        with pytest.raises(urma.UrmaError):
            target.read_many([0], 8, buffer[:8])
    things: list[Any] = [queue, target, context.segment_of(buffer)[0], context]
    for place in order:
        try:
            things[place].close()
        except MappingBusyError:  # the dead queue may still write there: its end is before the segment's
            assert things[place] is things[2]
            assert peer == "dead"
    assert held.references() == references
    for thing in things:
        thing.close()
    assert held.references() == references
    assert held.registry() == before


def test_a_context_from_which_everything_is_closed_has_one_reference(held: Held, owner: OwnerProcess) -> None:
    _, ticket = owner.register()
    references = held.references()
    with urma.Context(library=held.library) as context:
        for _ in range(3):
            queue, buffer = context.queue(), context.buffer(64)
            target = queue.attach(ticket)
            target.read_many([0], 8, buffer[:8])
            assert held.references() > references + 3
            for thing in (target, queue):
                thing.close()
            context.free(buffer)
            token_id = 1  # one for all segments of a context, until its end
            assert held.references() == references + 1 + token_id
    assert held.references() == references


def test_a_forked_child_is_told_and_the_parent_goes_on(
    context: urma.Context, queue: urma.Queue, owner: OwnerProcess
) -> None:
    _, ticket = owner.register()
    target, out = queue.attach(ticket), context.buffer(8)
    pid = os.fork()
    if not pid:
        verdict = 1
        try:
            target.read_many([0], 8, out)
        except ClosedError:
            verdict = 0
        context.close()
        os._exit(verdict)
    assert os.waitpid(pid, 0)[1] == 0
    assert target.read_many([0], 8, out) == 8


def test_threads_on_one_queue_are_never_mixed(context: urma.Context, queue: urma.Queue, owner: OwnerProcess) -> None:
    _, ticket = owner.register(14)
    target, whole = queue.attach(ticket), content(14, NBYTES)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng, out = np.random.default_rng(seed), context.buffer(500 * 100)
        for _ in range(50):
            offsets = rng.integers(0, NBYTES - 100, 500)
            target.read_many(offsets, 100, out)
            if packed(whole, offsets, [100] * 500) != out.tobytes():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_secret_is_shown_anywhere(context: urma.Context, queue: urma.Queue, owner: OwnerProcess) -> None:
    _, ticket = owner.register()
    wrong = forged(ticket, token=0x1234ABCD)
    target = queue.attach(wrong)
    with pytest.raises(urma.UrmaRefused) as caught:
        target.read_many([0], 8, context.buffer(8))
    real = urma.Ticket.unpack(ticket)
    shown = " ".join(
        [repr(wrong), repr(real), repr(target), repr(queue), repr(context), str(caught.value), repr(caught.value)]
    )
    for secret in (wrong.token, real.token, real.target_token):
        assert str(secret) not in shown
        assert f"{secret:x}" not in shown
