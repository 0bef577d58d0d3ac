# SPDX-License-Identifier: Apache-2.0
"""A graph is replayed over another node's table, and the process that owns the table is killed in the middle.

    python -m bench.device --only "owner killed"      on CUDA device 0
    python -m bench.device_owner                       on the fake device: the same steps, no torch

The owner is a process of its own on emulated node a and serves its table under a key; this process reads it on node b.
Every answer is compared with the table: right rows with status 0, or zeros with another one; there is nothing else.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import secrets
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.rows import Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Accelerator, Stream
from obmm.rows.fake_accelerator import FakeAccelerator
from obmm.rows.stream_gather import StreamGather

ROWS, ROW_BYTES, COUNT = 4096, 264, 24
RIGHT, ZEROS, OTHER = "right rows", "zeros with a status", "other bytes"
PATIENCE = 60.0  # seconds until something that must be seen is missed

Bytes = NDArray[np.uint8]
Replay = Callable[[NDArray[np.int64], int], Bytes]
"""Put those ids on the device, replay the graph so many times, and give the rows that are there at the end."""


def content() -> Bytes:
    """The table.  No byte of it is zero, so that zeros are never rows."""
    return np.random.default_rng(5).integers(1, 256, (ROWS, ROW_BYTES), np.uint8)


def own(device: str, key: str, journal: str, term: float, control: Connection) -> None:
    """The owner: exports, fills and serves until it is killed."""
    with obmm.open(device) as node:
        region = node.export_region(ROWS * ROW_BYTES, label="rows")
        with region.map("rw") as mapping:
            spec = Manifest((TableSpec("t", ROWS, ROW_BYTES, neutral_zero=True),))
            with RowStore.attach(mapping, spec, verify="none", plan=False) as store:
                store.populate("t", content())
                manifest = store.publish()
                where = "127.0.0.1"
                served = {"rows": (region, manifest.to_dict())}
                server = obmm.serve(served, host=where, port=0, key=key, journal=journal, term_s=term)
                control.send((region.mem_id, server.port))
                control.recv()  # nothing comes


def on_fake(accelerator: FakeAccelerator, gather: StreamGather) -> Replay:
    """`gather` in a captured graph of the fake device."""
    stream, ids = Stream(accelerator), np.zeros(COUNT, np.int64)
    accelerator.capture(stream)
    gather.enqueue(stream, ids)
    graph = accelerator.end_capture(stream)

    def replay(wanted: NDArray[np.int64], times: int) -> Bytes:
        ids[:] = wanted
        for _ in range(times):
            graph.replay(stream)
        accelerator.synchronize(stream.handle)
        return np.array(gather.rows)

    return replay


def on_cuda(gather: StreamGather) -> Replay:
    """`gather` in a captured graph of torch's."""
    import torch

    ids = torch.zeros(COUNT, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        gather.enqueue(torch.cuda.current_stream(), ids)
    view = torch.as_tensor(gather.rows, device="cuda")

    def replay(wanted: NDArray[np.int64], times: int) -> Bytes:
        ids.copy_(torch.from_numpy(wanted))
        for _ in range(times):
            graph.replay()
        torch.cuda.synchronize()
        found: Bytes = view.cpu().numpy()
        return found

    return replay


def said(gather: StreamGather) -> str:
    """What `check` raises now; "" while it raises nothing."""
    try:
        gather.check()
    except obmm.ObmmError as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Replays:
    """Replays with random ids; what each of them answered is counted."""

    def __init__(self, gather: StreamGather, replay: Replay) -> None:
        self._gather, self._replay = gather, replay
        self._data, self._random = content(), np.random.default_rng(6)
        self.answers: Counter[str] = Counter()

    def once(self, times: int = 1) -> str:
        """Replay, and say what is on the device then."""
        ids = self._random.integers(0, ROWS, COUNT)
        rows = self._replay(ids, times)
        if self._gather.status == 0 and np.array_equal(rows, self._data[ids]):
            answer = RIGHT
        elif self._gather.status and not rows.any():
            answer = ZEROS
        else:
            answer = OTHER
        self.answers[answer] += 1
        return answer

    def until(self, seen: Callable[[str], bool]) -> None:
        """Replay until `seen` is content with an answer."""
        end = time.monotonic() + PATIENCE
        while not seen(self.once()):
            if time.monotonic() > end:
                raise TimeoutError(f"not seen in {PATIENCE:.0f} s of replays: {self.answers}")

    def taken(self) -> dict[str, int]:
        """The answers since the last call."""
        answers, self.answers = dict(self.answers), Counter()
        return answers


def owner_killed(
    accelerator: Accelerator, capture: Callable[[StreamGather], Replay], replays: int = 1000, term: float = 3.0
) -> dict[str, Any]:
    """Replay, SIGKILL the owner while replays are queued, go on past its lease, then let its host give the memory back.

    `replays`: in each of the phases.  `term`: of the lease, seconds.
    """
    context = multiprocessing.get_context("spawn")
    with ExitStack() as life:
        folder = Path(life.enter_context(tempfile.TemporaryDirectory()))
        key = folder / "cluster.key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        fabric = life.enter_context(obmm.emulator.start(nodes=2))
        control, there = multiprocessing.Pipe()
        owner = context.Process(target=own, args=(fabric.device("a"), str(key), str(folder / "leases"), term, there))
        owner.start()
        life.callback(owner.join)
        life.callback(owner.kill)
        there.close()  # an owner that dies early is the end of the pipe, not silence
        mem_id, port = control.recv()
        facts: dict[str, Any] = {"accelerator": str(accelerator)}

        node = life.enter_context(obmm.open(fabric.device("b")))
        peer = obmm.connect(f"127.0.0.1:{port}", key=str(key))
        life.callback(peer.close, timeout=0.1, force=True)  # the other side is gone by then
        lease = peer.fetch("rows")
        region = life.enter_context(node.import_region(lease))
        store = life.enter_context(RowStore.attach([region], lease.manifest, plan=False))
        gather = life.enter_context(StreamGather(store, "t", COUNT, accelerator))
        run = Replays(gather, capture(gather))

        for _ in range(replays):
            run.once()
        gather.check()
        facts["before"] = run.taken()
        first = gather.runs

        assert owner.pid is not None
        killing = threading.Timer(0.05, os.kill, (owner.pid, signal.SIGKILL))  # from beside: replays are queued and run
        killing.start()
        while owner.is_alive():
            run.once(times=8)
        killed = time.monotonic()
        killing.join()
        facts["owner's exit code"] = owner.exitcode
        run.until(lambda _: bool(said(gather)))
        facts["check raises, once the lease is over"] = said(gather)
        facts["seconds until then"] = round(time.monotonic() - killed, 2)
        for _ in range(replays):
            run.once()
        facts["after the kill"] = run.taken()
        facts["replays"] = {"before": first, "from the kill on": gather.runs - first, "failed": gather.failed}

        with obmm.open(fabric.device("a")) as host:
            host.driver.unexport(mem_id)  # the owner's host cleans up after its dead
        run.until(ZEROS.__eq__)
        facts["status then"] = errno.errorcode[gather.status]
        facts["check raises, once the memory is gone"] = said(gather)
        for _ in range(replays):
            run.once()
        facts["after the memory went"] = run.taken()

        gather.close()
        facts["a replay after close"] = run.once()
        del run  # and the graph with it
        gather.forget()
        store.close()
        region.close()
        facts["closed"] = store.closed and region.closed
        facts["errors in the emulator"] = fabric.status()["internal_errors"]
    return facts


if __name__ == "__main__":
    fake = FakeAccelerator()
    print(json.dumps(owner_killed(fake, partial(on_fake, fake)), indent=2))
