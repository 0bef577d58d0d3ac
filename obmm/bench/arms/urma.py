# SPDX-License-Identifier: Apache-2.0
"""URMA: one-sided reads of a segment that the far node has registered; listed with its reason without a library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm import urma
from obmm.bench.arms.arm import Arm, Kind, Lists, Memory, Progress, Tables, Unavailable
from obmm.bench.arms.direct import FarNode
from obmm.bench.own_far import NoFarNode
from obmm.bench.twonodes import TABLE
from obmm.errors import ObmmError
from obmm.rows import GatherEngine, Manifest, RowStore, TableSpec
from obmm.urma.standin import SENTENCE, one_unanswered

PIECE = 1 << 20
LANDING = 16 << 20


class UrmaMemory(Memory):
    """A segment of the far node, gathered by the same engine as OBMM regions: lists of reads, then a copy to the result."""

    pages = "4K"

    def __init__(
        self, rows: urma.UrmaMemory, context: urma.Context, ticket: urma.Ticket, engine: GatherEngine, peer: obmm.Peer
    ) -> None:
        self._rows, self._engine = rows, engine
        self.nbytes, self.backend = rows.nbytes, f"{context.library.kind} {context.library.path}"
        self.most_threads = engine.threads + 1
        self._piece = context.buffer(PIECE)
        unanswered = one_unanswered if context.library.kind == "stand-in" else None
        self._lists = Lists(context, ticket, context.buffer(LANDING), peer, unanswered)
        queue = rows.queue
        guess = " (guessed)" if queue.priority_guessed else ""
        self.facts = {
            "library": context.library.path,
            "kind": context.library.kind,
            "profile": context.library.profile,
            "device": context.device,
            "EID index": str(context.eid_index),
            "transport": queue.transport.name,
            "priority": f"{queue.priority}{guess}",
            "list_max": str(queue.list_max),
            "depth": str(queue.depth),
        }

    def tables(self, count: int, row_bytes: int, nbytes: int | None = None) -> Tables:
        return Tables.divide(nbytes or self.nbytes, count, row_bytes, -(-row_bytes // 8) * 8)

    def gather(
        self, tables: Tables, ids: NDArray[np.int64], out: NDArray[np.uint8], threads: int
    ) -> Callable[[], object]:
        specs = tuple(
            TableSpec(number, tables.rows, tables.row_bytes, tables.stride, int(base))
            for number, base in enumerate(tables.bases)
        )
        store = RowStore.attach(self._rows, Manifest(specs), verify="header", plan=False, engine=self._engine)
        calls = [store.prepare(number, ids[number], out[number]) for number in range(tables.count)]

        def one_by_one() -> None:
            for call in calls:
                call(1)  # one queue: another thread would only wait for it

        return one_by_one

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        part = self._piece[: len(out)]
        self._lists.target().read_many([offset], len(out), part)
        out[:] = part

    def lists(self) -> Lists:
        return self._lists


class UrmaArm(Arm):
    """`far` is the node whose memory is registered.  A stand-in of the library is marked."""

    name, title = "urma", "URMA, one-sided reads"
    kind: Kind = "hardware"

    def __init__(self, far: FarNode) -> None:
        self._far = far

    @property
    def mark(self) -> str:
        return f"STAND-IN: {SENTENCE.removeprefix('stand-in: ')}" if self.kind == "stand-in" else ""

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        with ExitStack() as stack:
            engine = GatherEngine()
            stack.callback(engine.close)
            try:
                context = stack.enter_context(urma.Context())
                self.kind = "stand-in" if context.library.kind == "stand-in" else "hardware"
                peer = self._far(progress).peer
                found = urma.fetch(peer, TABLE)
                rows = stack.enter_context(urma.UrmaMemory(context, found.ticket, header=False))
                rows.version()
            except NoFarNode as reason:
                raise Unavailable(str(reason)) from reason
            except ObmmError as error:
                raise Unavailable(error.strerror or str(error)) from error
            yield UrmaMemory(rows, context, found.ticket, engine, peer)
