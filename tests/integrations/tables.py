# SPDX-License-Identifier: Apache-2.0
"""An owner process on node a that publishes, publishes anew, withdraws and dies as it is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.rows import Manifest, RowStore, TableSpec

ROWS, ROW_BYTES = 3000, 264
TABLES = ("layer1", "layer3")


def content(table: str, rows: Any, edition: int) -> NDArray[np.uint8]:
    """Every byte says which table, row and edition it is of; no row is zeros."""
    number = np.asarray(rows, np.uint64)[..., None]
    place = np.arange(ROW_BYTES, dtype=np.uint64)
    salt = np.uint64(TABLES.index(table) * 7919 + edition * 104729 + 1)
    return ((number * np.uint64(2654435761) + place * np.uint64(40503) + salt) >> np.uint64(7)).astype(np.uint8) | 1


def specs(rows: int = ROWS) -> tuple[TableSpec, ...]:
    return tuple(
        TableSpec(name, rows, ROW_BYTES, base_offset=place << 21, neutral_zero=True, layer_id=int(name[5:]))
        for place, name in enumerate(TABLES)
    )


def fill(store: RowStore, edition: int) -> Manifest:
    for spec in specs():
        store.populate(spec.table_id, content(str(spec.table_id), np.arange(ROWS), edition))
    return store.publish(model="toy", engram={"family": "toy", "fingerprint": f"{edition:064x}"})


def own(device: str, control: Connection, port: int, journal: str, term: float) -> None:
    """The owner's loop: "publish N" (in place or anew), "withdraw", "stop"."""
    with ExitStack() as stack:
        opened = stack.enter_context(obmm.open(device))
        region = stack.enter_context(opened.export_region(max(spec.end for spec in specs())))
        mapping = stack.enter_context(region.map("rw"))
        store = stack.enter_context(RowStore.attach(mapping, Manifest(specs()), verify="none", plan=False))
        server = stack.enter_context(obmm.serve({}, port=port, plain=True, journal=journal, term_s=term))
        control.send(server.port)
        served = False
        while True:
            command, *rest = control.recv()
            if command == "publish":
                if served:
                    server.revoke("toy")
                manifest = fill(store, *rest)
                server.publish("toy", region, manifest.to_dict())
                served = True
            elif command == "overwrite":  # readers are not asked, and the server knows nothing of it
                fill(store, *rest)
            elif command == "withdraw":
                server.revoke("toy")
                served = False
            elif command == "stop":
                control.send("stopping")
                return
            control.send("done")


class Owner:
    def __init__(self, device: str, folder: Any, port: int = 0, term: float = 60.0) -> None:
        self._control, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=own, args=(device, there, port, str(folder / "journal"), term))
        self.process.start()
        there.close()
        self.port: int = self._control.recv()
        self.source = f"127.0.0.1:{self.port}/toy"

    def do(self, *command: Any) -> None:
        self.ask(*command)
        assert self._control.recv() == "done"

    def ask(self, *command: Any) -> None:
        self._control.send(command)

    def done(self) -> None:
        assert self._control.recv() == "done"

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(10)

    def close(self) -> None:
        if self.process.is_alive():
            self._control.send(("stop",))
            self.process.join(40)
            assert self.process.exitcode == 0


@contextmanager
def owner(device: str, folder: Any, **options: Any) -> Iterator[Owner]:
    made = Owner(device, folder, **options)
    try:
        yield made
    finally:
        made.close()
