# SPDX-License-Identifier: Apache-2.0
"""Three ranks on one node: rank 0 gathers from another node's memory, the others copy from its shared staging."""

import os
import socket

import numpy as np

import obmm
from obmm import prefetch
from obmm.rows import Manifest, RowStore, TableSpec

ROWS, ROW_BYTES, COLUMNS, TOKENS, STEPS, RANKS = 20_000, 264, 8, 64, 200, 3
LAYERS = [prefetch.PrefetchLayer(layer, "engram", COLUMNS) for layer in (1, 14)]
TABLE = np.random.default_rng(1).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)


def ids_of(step: int) -> np.ndarray:  # every rank hashes the same tokens: here, numbers that all of them know
    return np.random.default_rng(step).integers(0, ROWS, (TOKENS, len(LAYERS), COLUMNS))


def follow(control: socket.socket) -> None:  # a rank that has no part in the fabric
    _, (fd,), _, _ = socket.recv_fds(control, 1, 1)
    with prefetch.StagingFollower(fd) as follower:
        for step in range(STEPS):
            for place, layer in enumerate(LAYERS):
                assert (follower.wait(layer.layer_id, step, timeout=10).buffer == TABLE[ids_of(step)[:, place]]).all()
            follower.drain()  # raises if a layer's rows did not come
            control.send(b".")  # a model's collectives keep its ranks together; here, this byte does


controls = []
for _ in range(1, RANKS):
    ours, theirs = socket.socketpair()
    if not os.fork():
        follow(theirs)
        os._exit(0)
    theirs.close()
    controls.append(ours)

with obmm.emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
    with a.export_region(TABLE.nbytes) as region, region.map("rw") as mapping:
        with RowStore.attach(mapping, Manifest((TableSpec("engram", ROWS, ROW_BYTES),)), verify="none") as owner:
            owner.populate("engram", TABLE)
            published = owner.publish()
        with b.import_region(region.handle()) as imported, RowStore.attach([imported], published) as store:
            staging = prefetch.SharedStaging(store, LAYERS, TOKENS)
            with staging, prefetch.EngramPrefetcher(store, LAYERS, TOKENS, staging=staging.allocate) as prefetcher:
                for control in controls:
                    socket.send_fds(control, [b"f"], [staging.fileno()])
                for step in range(STEPS):
                    prefetcher.begin(ids_of(step), TOKENS, step=step, phase="prefill")
                    prefetcher.start()
                    for layer in LAYERS:
                        staging.publish(layer.layer_id, step, prefetcher.consume(layer.layer_id))
                    assert all(control.recv(1) for control in controls), "a rank is gone"
                    staging.retire(step)
                    prefetcher.drain()
            print(f"{RANKS} ranks, {STEPS} steps, {store.stats().rows} rows gathered by one of them, every byte right")
