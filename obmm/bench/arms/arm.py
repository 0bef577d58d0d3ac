# SPDX-License-Identifier: Apache-2.0
"""What an arm is: a way to reach a table, opened as a memory that the workloads use."""

from __future__ import annotations

import abc
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.bench.compiled import ffi, library
from obmm.bench.environment import memory_available
from obmm.bench.far import Far
from obmm.driver.abi import Cache
from obmm.rows import GatherEngine, RowStore
from obmm.rows.manifest import Manifest
from obmm.rows.memory import RowMemory
from obmm.rows.table import TableSpec
from obmm.sdk.standin import SENTENCE

if TYPE_CHECKING:
    from obmm.sdk import Counters, SharedObject
    from obmm.urma import Context, TargetSegment, Ticket

Kind = Literal["local", "loopback", "network", "hardware", "emulated", "modelled", "stand-in"]
Progress = Callable[[float], None]


class Unavailable(Exception):
    """An arm cannot run here, or a workload not on this arm; the text says why."""


def need_memory(nbytes: int) -> None:
    """Unavailable when a table of `nbytes` in this node's memory would push it into swapping: another node's may be larger."""
    available = memory_available()
    if nbytes > available // 2:
        raise Unavailable(f"the table has {nbytes} bytes, and of this node's memory only {available} are available")


@dataclass(frozen=True, slots=True)
class Tables:
    """Equal tables of rows that lie one after the other in a memory; `stride` is from row to row."""

    count: int
    row_bytes: int
    stride: int
    rows: int
    bases: NDArray[np.uint64]

    @classmethod
    def divide(cls, nbytes: int, count: int, row_bytes: int, stride: int) -> Tables:
        each = nbytes // count // 4096 * 4096
        return cls(count, row_bytes, stride, each // stride, np.arange(count, dtype=np.uint64) * np.uint64(each))


@dataclass(frozen=True, slots=True)
class Control:
    """What a workload needs to make and reach regions: the measuring node's device, how this arm maps, and the far node."""

    device: obmm.Device
    cache: Cache
    pmd: bool
    far: Far


@dataclass(frozen=True, slots=True)
class Objects:
    """What a workload needs to make shared objects of the SDK.  `create` takes bytes; the caller deletes."""

    create: Callable[[int], SharedObject]
    unit: int
    counts: Callable[[], Counters | None]
    """Round trips and memory system calls so far; None where the library does not count."""


class Lists:
    """What a workload needs to read in lists: an open context, a ticket, a landing that is registered, and the far node.

    `unanswered`: inside it the next read gets no answer; None where that cannot be arranged.
    """

    def __init__(
        self,
        context: Context,
        ticket: Ticket,
        landing: NDArray[np.uint8],
        peer: obmm.Peer,
        unanswered: Callable[[], AbstractContextManager[None]] | None,
    ) -> None:
        self.context, self.ticket, self.landing = context, ticket, landing
        self.peer, self.unanswered = peer, unanswered
        self._target: TargetSegment | None = None

    def target(self) -> TargetSegment:
        """The ticket attached to a queue that is alive: an error ends a queue, and the next read has a new one."""
        if self._target is None or not self._target.queue.alive:
            if self._target is not None:
                self._target.queue.close()
            self._target = self.context.queue().attach(self.ticket)
        return self._target


class Memory(abc.ABC):
    """An open table of known content (`obmm.bench.content`)."""

    nbytes: int
    backend: str
    pages: str
    address: int | None = None
    """Where plain loads reach it, if they do."""
    most_threads = 1
    plan = ""
    facts: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    """What else must be known to read its figures."""

    @abc.abstractmethod
    def tables(self, count: int, row_bytes: int, nbytes: int | None = None) -> Tables:
        """How the first `nbytes` divide into tables, as this memory needs rows to lie."""

    @abc.abstractmethod
    def gather(
        self, tables: Tables, ids: NDArray[np.int64], out: NDArray[np.uint8], threads: int
    ) -> Callable[[], object]:
        """The call to time: rows ``ids[table, i]`` of every table into ``out[table, i]``; ids are read anew each time."""

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        raise Unavailable("this arm answers rows, not ranges")

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        raise Unavailable("this arm is read only")

    def control(self) -> Control:
        """For work on regions of its own."""
        raise Unavailable("no regions: the control plane and ownership are OBMM's")

    def objects(self) -> Objects:
        """For work on shared objects of its own."""
        raise Unavailable("no objects: allocate..deallocate is the SDK's")

    def lists(self) -> Lists:
        """For lists of one-sided reads."""
        raise Unavailable("no lists: reads in lists are URMA's")


MARKS = {
    "emulated": "EMULATED: local memory of this host answers; says nothing about hardware",
    "modelled": "MODELLED: an emulated node's memory, and gathers wait as long as is calculated (docs/fabric.md): nothing was measured",
    "stand-in": f"STAND-IN: {SENTENCE.removeprefix('stand-in: ')}; its memory is local memory",
}


class Arm(abc.ABC):
    """One candidate."""

    name: str
    title: str
    kind: Kind

    @property
    def mark(self) -> str:
        """What stands beside every figure of an arm that is not hardware; "" for the others."""
        return MARKS.get(self.kind, "")

    @abc.abstractmethod
    def open(self, nbytes: int, progress: Progress) -> AbstractContextManager[Memory]:
        """A table of `nbytes`, filled.  Unavailable with the reason where it cannot be had."""


class StoreMemory(Memory):
    """A memory that plain loads reach, with rows gathered by `obmm.rows`."""

    def __init__(self, memory: RowMemory, engine: GatherEngine, pages: str) -> None:
        self._memory, self._engine = memory, engine
        self.nbytes, self.backend, self.pages = memory.nbytes, memory.backend, pages
        self.address = memory.address
        library().bench_touch(ffi.cast("uint8_t *", memory.address), memory.nbytes)
        self.most_threads = engine.threads + 1

    def tables(self, count: int, row_bytes: int, nbytes: int | None = None) -> Tables:
        return Tables.divide(nbytes or self.nbytes, count, row_bytes, -(-row_bytes // 8) * 8)

    def gather(
        self, tables: Tables, ids: NDArray[np.int64], out: NDArray[np.uint8], threads: int
    ) -> Callable[[], object]:
        specs = tuple(
            TableSpec(number, tables.rows, tables.row_bytes, tables.stride, int(base))
            for number, base in enumerate(tables.bases)
        )
        store = RowStore.attach(
            self._memory, Manifest(specs), verify="header", plan=tables.count == 1, engine=self._engine
        )
        if tables.count == 1:
            self.plan = store.explain()
            prepared = store.prepare(0, ids[0], out[0])
            return lambda: prepared(threads)
        if threads == 1:  # a thread that waits for the step anyway runs it itself
            calls = [store.prepare(number, ids[number], out[number]) for number in range(tables.count)]

            def one_by_one() -> None:
                for call in calls:
                    call(1)

            return one_by_one
        step = store.prepare_many([(number, ids[number], out[number]) for number in range(tables.count)])

        def run() -> None:
            for ticket in step.submit(threads=threads):
                ticket.result()

        return run
