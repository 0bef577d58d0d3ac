# SPDX-License-Identifier: Apache-2.0
"""The protocol as it is meant: an owner revokes, publishes again and grants anew, at any moment of a reader's steps.

On hosts that do not snoop each other; every byte is of the publication that the step began with.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from fabric_tables import LAYERS, WANTED, content, described, fill

import obmm
from obmm import emulator
from obmm.errors import ObmmError
from obmm.prefetch import CircuitBreaker, Deadlines, EngramPrefetcher, RowsStatus
from obmm.rows import RowStore

LONG = Deadlines(decode=10, verify=10, prefill=10, probe=10)
ROUNDS, TOKENS = 8, 32


class Reader:
    """Steps without a pause; attaches anew whenever it has lost the lease.  One prefetcher for all of it."""

    def __init__(self, device: obmm.Device, port: int, hot_rows: int) -> None:
        self.stop = threading.Event()
        self.good: dict[int, int] = {}
        self.lost = 0
        self.error: BaseException | None = None
        self._device, self._port, self._hot_rows = device, port, hot_rows
        self._random = np.random.default_rng(17)
        self._prefetcher: EngramPrefetcher | None = None

    def run(self) -> None:
        try:
            with obmm.connect(f"127.0.0.1:{self._port}", plain=True) as peer:
                while not self.stop.is_set():
                    self._one_lease(peer)
                if self._prefetcher is not None:
                    self._prefetcher.close()
        except BaseException as error:
            self.error = error

    def _one_lease(self, peer: Any) -> None:
        with ExitStack() as undo:
            try:
                lease = peer.fetch("engram")
                region = undo.enter_context(self._device.import_region(lease))
                store = undo.enter_context(
                    RowStore.attach([region], lease.manifest, plan=False, hot_rows=self._hot_rows)
                )
            except ObmmError:  # revoked before it was attached
                return
            if self._prefetcher is None:
                self._prefetcher = EngramPrefetcher(store, WANTED, TOKENS, deadlines=LONG)
            else:
                self._prefetcher.attach(store, CircuitBreaker())
            while lease.usable and not self.stop.is_set():
                self._step(self._prefetcher)
            self.lost += not lease.usable

    def _step(self, prefetcher: EngramPrefetcher) -> None:
        ids = [
            self._random.integers(0, layer.rows // 4, (TOKENS, wanted.columns))
            for layer, wanted in zip(LAYERS, WANTED, strict=True)
        ]
        try:
            prefetcher.begin(ids, TOKENS)
        except ObmmError:
            return
        generation = int(next(iter(prefetcher.metrics.generation.values.values())))
        prefetcher.start()
        for layer, layer_ids in zip(LAYERS, ids, strict=True):
            rows = prefetcher.consume(layer.layer_id)
            if rows.status is RowsStatus.OK:
                assert np.array_equal(rows.buffer, content(layer.layer_id, layer_ids, generation))
                self.good[generation] = self.good.get(generation, 0) + 1
            else:
                assert not rows.buffer.any()
        try:
            prefetcher.drain()
        except ObmmError:
            return


@pytest.mark.parametrize("hot_rows", [0, 512])
def test_every_byte_is_of_its_steps_publication_whenever_the_owner_revokes(hot_rows: int) -> None:
    with (
        emulator.start(nodes=2, strict=True, seed=11) as fabric,
        obmm.open(fabric.device("a")) as a,
        obmm.open(fabric.device("b")) as b,
        a.export_region(described().nbytes) as region,
        region.map("rw", cache="cc") as mapping,
        RowStore.attach(mapping, described(), verify="none") as owner,
    ):
        manifest = fill(owner, 2)
        with obmm.serve({"engram": (region, manifest.to_dict())}, port=0, plain=True) as server:
            reader = Reader(b, server.port, hot_rows)
            thread = threading.Thread(target=reader.run)
            thread.start()
            try:
                for generation in range(4, 4 + 2 * ROUNDS, 2):
                    until_read(reader, generation - 2)
                    server.revoke("engram", timeout=20)  # returns when the reader has closed what it imported
                    manifest = fill(owner, generation)
                    server.publish("engram", region, manifest.to_dict())
                until_read(reader, generation)
            finally:
                reader.stop.set()
                thread.join(30)
            assert not thread.is_alive()
            if reader.error is not None:
                raise reader.error
            assert set(reader.good) == set(range(2, 4 + 2 * ROUNDS, 2))
            assert reader.lost >= ROUNDS


def until_read(reader: Reader, generation: int) -> None:
    for _ in range(20_000):
        if reader.good.get(generation) or reader.error is not None:
            return
        reader.stop.wait(0.001)
    pytest.fail(f"publication {generation} was never read: {reader.good}")
