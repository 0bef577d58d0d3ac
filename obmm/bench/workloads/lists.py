# SPDX-License-Identifier: Apache-2.0
"""One-sided reads in lists, into registered memory and no further; and what making the way to them costs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from obmm.bench import content, mortal
from obmm.bench.arms.arm import Lists, Memory, Unavailable
from obmm.bench.footprint import Footprint
from obmm.bench.presets import Preset
from obmm.bench.timing import Series
from obmm.bench.workloads.workload import WHOLE, Case, Workload, working_sets
from obmm.errors import ObmmError
from obmm.urma import Context, Ticket, UrmaError

SIZES = (320, 1364)
PASS = "and one pass over them"
MIB = 1 << 20


class ReadLists(Workload):
    """`count` reads of new random rows in one call, packed where they land; every byte of each is compared.

    Once more with one pass over the result: rows that are not looked at have not reached a core.
    """

    name, title = "lists", "reads in lists"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for size in working_sets(preset, memory):
            for row_bytes in SIZES:
                for count in preset.lists:
                    for rest in ("", f" {PASS}"):
                        label = f"{count} read{'s' if count > 1 else ''}{rest}"
                        yield Case(label, row_bytes, count=count, working_set=size)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        lists = memory.lists()
        tables = memory.tables(1, case.row_bytes, case.working_set)
        if case.nbytes > len(lists.landing):
            raise Unavailable(f"the landing has {len(lists.landing)} bytes")
        random, target = series.random(), lists.target()
        out = lists.landing[: case.nbytes]
        rows = out.reshape(1, case.count, case.row_bytes)
        ids = np.zeros((1, case.count), np.int64)
        places = np.zeros(case.count, np.uint64)
        words = out[: len(out) // 8 * 8].view(np.uint64)
        verified = 0

        def draw() -> None:
            nonlocal target
            target = lists.target()
            ids[:] = random.integers(0, tables.rows, ids.shape)
            np.multiply(ids[0].astype(np.uint64), np.uint64(tables.stride), out=places)

        def call() -> object:
            return target.read_many(places, case.row_bytes, out)

        def call_and_pass() -> object:
            target.read_many(places, case.row_bytes, out)
            return np.bitwise_xor.reduce(words)

        def check() -> None:
            nonlocal verified
            verified += content.check_rows(rows, ids, tables.bases, tables.stride)

        timed = call_and_pass if case.label.endswith(PASS) else call
        series.loop(draw, timed, check, preset.iterations, preset.seconds)
        return verified


class UrmaCycle(Workload):
    """context..register..queue..attach..first read..close of this side; how soon a refused read is an error; and, once, how
    soon a read from an owner that was killed and one without an answer are.
    """

    name, title = "control-urma", "context..register..queue..attach..read..close"
    plane = "control"
    steps = (
        *("context", "token id", "register 1 MiB", "queue", "attach", "first read"),
        *("close queue", "unregister", "close context"),
    )

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case(f"{WHOLE}, 1 MiB", MIB, working_set=MIB)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        lists = memory.lists()
        for number in range(preset.cycles + 1):
            try:
                took = _cycle(lists)
                refused = _refused(lists)
            except ObmmError as error:
                series.failed(error)
                continue
            if number:  # the first one also loads code
                series.add(sum(took))
                for step, ns in zip(self.steps, took, strict=True):
                    series.step(step).add(ns)
                series.step(REFUSED).add(refused)
        series.step(DEAD).add(_dead(lists))
        deadline = _deadline(lists)
        if deadline is not None:
            series.step(UNANSWERED).add(deadline)
        return 0


REFUSED = "refused read to error"
DEAD = "owner killed, read to error"
DEADLINE_S = 0.1
UNANSWERED = f"no answer, read to error (deadline {DEADLINE_S * 1000:.0f} ms)"


def _cycle(lists: Lists) -> tuple[int, ...]:
    """ns of each step."""
    clock, open_one, marks = time.perf_counter_ns, lists.context, [time.perf_counter_ns()]
    with Context(open_one.device, open_one.eid_index, library=open_one.library) as context:
        marks.append(clock())
        context.token_id()
        marks.append(clock())
        landing: NDArray[np.uint8] = context.buffer(MIB)
        marks.append(clock())
        queue = context.queue()
        marks.append(clock())
        target = queue.attach(lists.ticket)
        marks.append(clock())
        target.read_many([0], 64, landing[:64])
        marks.append(clock())
        content.check_words(landing[:64].view(np.uint64), 0)
        checking = clock() - marks[-1]
        queue.close()
        marks.append(clock())
        context.free(landing)
        marks.append(clock())
    marks.append(clock())
    steps = [later - sooner for sooner, later in itertools.pairwise(marks)]
    steps[6] -= checking
    return tuple(steps)


def _refused(lists: Lists) -> int:
    """Nanoseconds from a read with a wrong token to its error."""
    return _until_error(lists, replace(lists.ticket, token=lists.ticket.token ^ 1), "with a wrong token")


def _dead(lists: Lists) -> int:
    """Nanoseconds from a read of a killed process's memory to its error."""
    ticket = mortal.start(lists.peer)
    with lists.context.queue() as queue:
        queue.attach(ticket).read_many([0], 64, lists.landing[:64])
        content.check_words(lists.landing[:64].view(np.uint64), 0)
    mortal.kill(lists.peer)
    return _until_error(lists, ticket, "of a dead process")


def _deadline(lists: Lists) -> int | None:
    """Nanoseconds from a read without an answer to its error; None where all reads, the wrong ones too, are answered."""
    if lists.unanswered is not None:
        with lists.unanswered():
            return _until_error(lists, lists.ticket, "that was lost", DEADLINE_S)
    wrong = replace(lists.ticket, token=lists.ticket.token ^ 1)
    took = _until_error(lists, wrong, "with a wrong token", DEADLINE_S)
    return took if took >= DEADLINE_S * 1e9 else None


def _until_error(lists: Lists, ticket: Ticket, which: str, timeout: float = 1.0) -> int:
    with lists.context.queue() as queue:
        target = queue.attach(ticket)
        began = time.perf_counter_ns()
        try:
            target.read_many([0], 64, lists.landing[:64], timeout)
        except UrmaError:
            return time.perf_counter_ns() - began
    raise content.VerificationError(f"a read {which} was served")
