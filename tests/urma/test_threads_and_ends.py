# SPDX-License-Identifier: Apache-2.0
"""Who closes while others close, make or read: one end each, nothing is taken away under a transfer, nothing is left.

Also what a transfer posts when another thread writes its offsets meanwhile.
"""

from __future__ import annotations

import dataclasses
import mmap
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from obmm import ObmmError, urma

ROUNDS = 40


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(*calls: Callable[[], object]) -> list[BaseException]:
    """Make all calls at the same time, each in its thread -> what they raised that is none of ours."""
    wrong: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        start.wait()
        try:
            call()
        except ObmmError:
            pass
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@pytest.fixture
def ticket(context: urma.Context) -> bytes:
    return context.register(mmap.mmap(-1, 4096)).ticket(context.queue())


THINGS: dict[str, Callable[[urma.Context, bytes], Any]] = {
    "Context": lambda context, _: urma.Context(library=context.library),
    "Queue": lambda context, _: context.queue(64, 64),
    "Segment": lambda context, _: context.register(mmap.mmap(-1, 4096)),
    "TargetSegment": lambda context, ticket: context.queue(64, 64).attach(ticket),
    "UrmaMemory": lambda context, ticket: urma.UrmaMemory(context, ticket, header=False),
}


@pytest.mark.parametrize("kind", THINGS)
def test_three_threads_close_one_and_it_ends_once(context, ticket, kind):
    """Twice would free twice in the library, or take its initialisation from other contexts."""
    for _ in range(ROUNDS):
        thing = THINGS[kind](context, ticket)
        assert not at_once(thing.close, thing.close, thing.close)
        assert thing.closed
    assert context.queue(64, 64).attach(ticket).read(0, 8) == bytes(8)


def test_what_is_made_from_a_context_that_closes_is_closed_with_it_or_refused(context):
    for _ in range(ROUNDS):
        other = urma.Context(library=context.library)
        assert not at_once(other.close, lambda o=other: o.queue(64, 64), lambda o=other: o.buffer(4096))
        assert other.closed
        assert "queues=0 segments=0" in repr(other)


def test_what_is_attached_to_a_queue_that_closes_goes_with_it(context, ticket):
    for _ in range(ROUNDS):
        queue = context.queue(64, 64)
        target = queue.attach(ticket)
        assert not at_once(queue.close, target.close, lambda q=queue: q.attach(ticket), lambda t=target: t.read(0, 8))
        queue.close()
        assert queue.closed
        assert target.closed


@pytest.mark.parametrize("what", ["target", "landing"])
def test_nothing_goes_away_under_a_transfer(context, ticket, what):
    """Who closes waits for it, so every batch ends with right bytes or with a refusal before it began."""
    for _ in range(ROUNDS):
        target, landing = context.queue(64, 64).attach(ticket), context.buffer(65536)
        landing[:] = 0xA5
        refused = []

        def read(target: Any = target, landing: Any = landing, refused: list[int] = refused) -> None:
            for _ in range(20):
                try:
                    target.read_many(np.zeros(16, np.int64), 4096, landing)
                    assert not landing.any()
                except urma.UrmaArgumentError:  # the landing is gone
                    refused.append(1)

        end = target.close if what == "target" else lambda landing=landing: context.free(landing)
        assert not at_once(read, end)
        assert target.queue.alive  # no batch failed
        target.queue.close()


def test_landings_of_failed_reads_go_with_their_queue(context, standin, ticket):
    before = repr(context)
    queue = context.queue(64, 64)
    target = queue.attach(ticket)
    standin.inject("at=0,drop")
    with pytest.raises(urma.UrmaTimeout):
        target.read(0, 8, timeout=0.05)
    queue.close()
    assert repr(context) == before


def test_a_read_asks_for_nothing_outside_although_another_thread_writes_its_offsets(context):
    pages = mmap.mmap(-1, 32768)
    pages[:] = b"S" * 4096 * 8
    pages[:4096] = b"A" * 4096
    whole = urma.Ticket.unpack(context.register(pages).ticket(context.queue()))
    first_page = dataclasses.replace(whole, length=4096)
    landing, offsets = context.buffer(32768), np.zeros(4096, np.uint64)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            offsets[:] = 16384
            offsets[:] = 0

    thread = threading.Thread(target=write)
    thread.start()
    target = context.queue().attach(first_page)
    end, read = time.monotonic() + 1.0, 0
    try:
        while time.monotonic() < end or not read:
            try:
                target.read_many(offsets, 8, landing)
                read += 1
                assert (landing == ord("A")).all()
            except urma.UrmaArgumentError:
                if not target.queue.alive:
                    target.queue.close()
                    target = context.queue().attach(first_page)
    finally:
        over.set()
        thread.join()


BAD = [True, 1.5, "1", None, -1, 1 << 40, 1 << 70, float("nan"), b"1", [], (1,), np.array([1, 2]), 1j]


def unless(value: Any, fits: Any, instead: Any) -> Any:
    """`value`, but for the one that this argument can be."""
    return instead if type(value) is type(fits) and value == fits else value


CALLS: dict[str, Callable[[urma.Context, bytes, Any], object]] = {
    "buffer": lambda c, _, x: c.buffer(unless(x, 1 << 40, 1 << 62)),
    "register": lambda c, _, x: c.register(x),
    "access": lambda c, _, x: c.buffer(4096, x),
    "free": lambda c, _, x: c.free(x),
    "depth": lambda c, _, x: c.queue(x),
    "priority": lambda c, _, x: c.queue(64, 64, "ctp", unless(x, None, -1)),
    "attach": lambda c, _, x: c.queue(64, 64).attach(x),
    "ticket's queue": lambda c, _, x: c.register(mmap.mmap(-1, 4096)).ticket(x),
    "offset": lambda c, t, x: c.queue(64, 64).attach(t).read(x, 8),
    "length": lambda c, t, x: c.queue(64, 64).attach(t).read(0, x),
    "offsets": lambda c, t, x: c.queue(64, 64).attach(t).read_many([unless(x, [], 1j)], 1 << 20, c.buffer(64)),
    "target": lambda c, _, x: c.queue(64, 64).read_many(x, [0], 8, c.buffer(64)),
    "library": lambda c, _, x: urma.Context(library=unless(x, None, 5)),
    "device": lambda c, _, x: urma.Context(unless(x, None, 5), library=c.library),
    "landing": lambda c, t, x: urma.UrmaMemory(c, t, header=False, landing=unless(x, 1 << 40, 1 << 62)),
    "timeout": lambda c, t, x: urma.UrmaMemory(c, t, header=False, timeout=unless(x, 1.5, 0)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", BAD, ids=repr)
def test_what_cannot_be_is_refused_by_an_error_of_ours(context, ticket, name, value):
    with pytest.raises(ObmmError):
        CALLS[name](context, ticket, value)
