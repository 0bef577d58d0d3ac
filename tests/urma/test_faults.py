# SPDX-License-Identifier: Apache-2.0
"""Injected faults: right bytes or an error, and never a wait without an end (URMA specification 11.3; conformance list 34)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from obmm import urma
from obmm.urma.abi import ffi
from obmm.urma.standin import StandIn

from .conftest import NBYTES, OwnerProcess
from .owner import content
from .raw import COMP_ORDER
from .test_lists import SEED, Reader

BATCHES = 1000
ROW = 64


class Batches:
    """Reads rows again and again, with a new queue after each error."""

    def __init__(self, context: urma.Context, ticket: bytes, seed: int, timeout: float) -> None:
        self._context, self._ticket, self._timeout = context, ticket, timeout
        self._table = content(seed, NBYTES).reshape(-1, ROW)
        self._rng = np.random.default_rng(seed)
        self.right = self.wrong = 0
        self.errors: list[urma.UrmaError] = []

    def run(self, batches: int, rows: int = 8) -> None:
        target: Any = None
        for _ in range(batches):
            ids, out = self._rng.integers(0, len(self._table), rows), self._context.buffer(rows * ROW)
            out[:] = 0xA5
            try:
                target = target or self._context.queue().attach(self._ticket)
                target.read_many(ids * ROW, ROW, out, self._timeout)
            except urma.UrmaError as error:
                self.errors.append(error)
                if target is not None:
                    target.queue.close()
                target = None
            else:
                good = bool((out.reshape(-1, ROW) == self._table[ids]).all())
                self.right, self.wrong = self.right + good, self.wrong + (not good)
            self._context.free(out)


@pytest.mark.parametrize(
    ("rule", "errors"),
    [
        ("every=50,status=1", {1}),
        ("every=50,status=3", {3}),
        ("every=50,status=5", {5}),
        ("every=50,status=10", {10}),
        ("every=50,status=15", {15}),
        ("every=50,status=16", {16}),
        ("every=4000,drop", {110}),
        ("every=40,delay=200", set()),
        ("every=40,late=200", set()),
        ("every=40,list=3", {12}),
        ("every=40,poll", {32}),
        ("every=40,duplicate", set()),
    ],
)
def test_right_bytes_or_an_error(
    context: urma.Context, standin: StandIn, owner: OwnerProcess, rule: str, errors: set[int]
) -> None:
    _, ticket = owner.register(21)
    standin.inject(rule)
    batches = Batches(context, ticket, 21, timeout=0.02 if "drop" in rule else 1.0)
    batches.run(BATCHES, rows=7)  # a rule strikes requests anywhere in a list, not the signalled one alone
    assert batches.wrong == 0
    assert {error.code for error in batches.errors} == errors
    assert batches.right + len(batches.errors) == BATCHES
    assert batches.right > BATCHES // 2
    assert standin.status()["seen"][0] > 0


def test_records_before_their_data_are_caught_by_looking_at_the_data(
    context: urma.Context, standin: StandIn, owner: OwnerProcess
) -> None:
    """Nothing in a completion tells: who must know compares contents (7.4)."""
    _, ticket = owner.register(22)
    standin.inject("every=40,early")
    batches = Batches(context, ticket, 22, timeout=1.0)
    batches.run(100)
    assert batches.wrong == 20
    assert not batches.errors


def test_only_completion_order_waits_for_what_is_late(
    library: urma.Library, owner: OwnerProcess, standin: StandIn
) -> None:
    """7.4: without it the last record may be there before the data of earlier reads."""
    _, ticket = owner.register(SEED, NBYTES)
    expected = content(SEED, NBYTES)[8:16].tobytes()
    assert library.raw.urma_init(ffi.NULL) == 0
    try:
        for order in (False, True):
            reader = Reader(library.raw, urma.Ticket.unpack(ticket))
            standin.inject("at=1,late=20000")
            wrs = [reader.read(i, 8 * i, signalled=i == 2) for i in range(3)]
            wrs[2].flag |= COMP_ORDER * order
            assert reader.post(reader.queue, *wrs) == (0, None)
            records = []
            while not records:
                records = reader.poll(reader.queue_jfc)
            assert records == [(0, 2)]
            assert (reader.landed(1) == expected) is order
            standin.mend()
    finally:
        library.raw.urma_uninit()


def test_records_of_two_queues_swapped(context: urma.Context, standin: StandIn, owner: OwnerProcess) -> None:
    _, ticket = owner.register(23)
    first, second = Batches(context, ticket, 23, timeout=0.05), Batches(context, ticket, 23, timeout=0.05)
    for _ in range(20):
        standin.inject("at=7,swap")
        first.run(1)
        second.run(2)
        standin.mend()
    assert (first.wrong, second.wrong) == (0, 0)
    assert {error.code for error in [*first.errors, *second.errors]} == {110}


def test_an_import_that_is_refused_without_a_reason(
    context: urma.Context, standin: StandIn, owner: OwnerProcess
) -> None:
    _, ticket = owner.register(24)
    standin.inject("at=1,import")
    queue = context.queue()
    with pytest.raises(urma.UrmaError, match="without a reason") as caught:
        queue.attach(ticket)
    assert caught.value.operation == "import_jetty"
    assert queue.attach(ticket).read(0, 8) == content(24, 8).tobytes()


def test_the_owner_is_killed_before_a_request(
    context: urma.Context, standin: StandIn, spawn: Callable[..., OwnerProcess]
) -> None:
    _, ticket = spawn().register(25)
    standin.inject("at=30,kill")
    batches = Batches(context, ticket, 25, timeout=1.0)
    batches.run(5)
    assert (batches.right, batches.wrong) == (3, 0)
    assert {error.code for error in batches.errors} == {9}


def test_faults_of_the_environment(
    standin: StandIn, context: urma.Context, owner: OwnerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ticket = owner.register(26)
    context.close()
    monkeypatch.setenv("OBMM_URMA_STANDIN_FAULTS", "node=b,at=0,drop;node=a,at=0,status=16")
    with urma.Context(library=context.library) as other, pytest.raises(urma.UrmaError, match="REM_DATA_POISON"):
        other.queue().attach(ticket).read(0, 8)


@pytest.mark.parametrize(
    "rule",
    ["status", "status=x", "drop=1", "every=0,drop", "drop,early", "at=1", "node", "nothing", "status=-1", "a" * 300],
)
def test_a_text_that_is_no_rule(standin: StandIn, rule: str) -> None:
    with pytest.raises(OSError, match="inject"):
        standin.inject(rule)
