# SPDX-License-Identifier: Apache-2.0
"""Blocks in another (emulated) node's memory against a plain copy of the same bytes, and LMCache's own adapters, in one run.

    python -m bench.blocks [--rounds N] [--only PART] [--json FILE] [--lmcache PYTHON]

* Load and store: 64 blocks of 256 KiB and 1,024 of 16 KiB, by `BlockStore` and by plain copies between the same two
  pieces of memory, on one thread and on as many as the store uses.  All take turns; a figure is the median of the
  rounds, a ratio the median of the rounds' ratios.  Every block is checked after the clock has stopped.
* 128 lookups that are known here (hot), and that the owner has to be asked for (cold).
* Eight users on one owner at once.
* From an owner's death to the first block that is stored and loaded with the next one.
* With --lmcache: `lmcache bench l2` of that interpreter over obmm, its fs adapter on /dev/shm, and its mock, in turns.

The memory is this host's (the emulator maps it): what a fabric adds is not in these figures.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import obmm
from obmm import Device, emulator
from obmm.bench.timing import percentiles
from obmm.blocks import BlockStore, Namespace, Pieces, SlotLayout
from obmm.exchange import Key
from obmm.rows.engine import default_engine

SIZES = ((64, 256 << 10), (1024, 16 << 10))
USERS, LOOKUPS = 8, 128
PARTS = ("transfers", "lookups", "users", "recovery", "lmcache")


class Place:
    """An owner on node a, in a process of its own; what users on node b need."""

    def __init__(self, folder: Path, owner_device: str, b: Device) -> None:
        self.folder, self.owner_device, self.b = folder, owner_device, b
        self.key = folder / "key"
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self, block_bytes: int, slots: int, term: float = 10.0) -> None:
        stride = SlotLayout.for_blocks(block_bytes, 1).stride
        command = [sys.executable, "-P", "-m", "obmm.cli.main", "blocks", "serve", "--json", "--host", "127.0.0.1"]
        command += ["--device", self.owner_device, "--key", str(self.key), "--journal", str(self.folder / "journal")]
        command += ["--port", str(self.port), "--block-bytes", str(block_bytes), "--size", str(slots * stride)]
        command += ["--user-term", str(term)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        facts = json.loads(self._process.stdout.readline())
        self.port = facts["port"]

    def kill(self) -> None:
        """Without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)
        self.port = 0

    def user(self, stack: ExitStack, name: str = "bench") -> BlockStore:
        peer = stack.enter_context(obmm.connect(f"127.0.0.1:{self.port}", key=self.key))
        return stack.enter_context(BlockStore(peer, self.b, Namespace(model=name)))


def plain_copy(targets: list[Any], sources: list[Any], pool: ThreadPoolExecutor | None) -> None:
    """Block by block; with a pool, a share for each of its threads."""
    if pool is None:
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source)
        return
    shares = pool._max_workers
    list(pool.map(lambda i: plain_copy(targets[i::shares], sources[i::shares], None), range(shares)))


def touch_slots(store: BlockStore, pieces: Pieces, times: int) -> None:
    """Store once in every slot, and forget it: untouched memory costs a page fault each, which an owner's has behind it."""
    keys = [[b"touch %d %d" % (number, i) for i in range(pieces.count)] for number in range(times)]
    for some in keys:
        assert store.put(some, pieces).all()
    for some in keys:
        store.delete(some)


class Transfers:
    """Load and store of one size, and plain copies between the same kinds of memory."""

    def __init__(self, place: Place, stack: ExitStack, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.threads = default_engine().threads + 1
        self.pool = stack.enter_context(ThreadPoolExecutor(self.threads))
        self.store = place.user(stack)
        self.source = np.random.default_rng(1).integers(0, 256, (count, size), dtype=np.uint8)
        self.landing, self.plain = np.zeros_like(self.source), np.zeros_like(self.source)
        # the other side of the plain copies: memory of the emulated owner as well, cut as the slots are
        region = stack.enter_context(obmm.open(place.owner_device)).export_region(count * (size + 64))
        stack.callback(region.close, force=True)
        self.mapping = stack.enter_context(region.map("rw", cache="nc"))
        cut = np.frombuffer(self.mapping.view(), np.uint8)[: count * (size + 64)].reshape(count, size + 64)
        self.slots = list(cut[:, 64:])
        self.rows, self.out = list(self.source), list(self.plain)
        self.keys: list[bytes] = []
        self.from_pool = Pieces.of_slots(self.source.ctypes.data, size, np.arange(count), size)
        self.to_pool = Pieces.of_slots(self.landing.ctypes.data, size, np.arange(count), size)
        self.took: dict[str, list[float]] = {}

    def arms(self) -> dict[str, Callable[[], object]]:
        return {
            "store": lambda: self.store.put(self.keys, self.from_pool),
            "load": lambda: self.store.get(self.keys, self.to_pool),
            "in 1": lambda: plain_copy(self.slots, self.rows, None),
            "in all": lambda: plain_copy(self.slots, self.rows, self.pool),
            "out 1": lambda: plain_copy(self.out, self.slots, None),
            "out all": lambda: plain_copy(self.out, self.slots, self.pool),
        }

    def round(self, number: int) -> None:
        self.keys = [b"%d %d" % (number, i) for i in range(self.count)]
        order = list(self.arms().items())
        for name, call in order if number % 2 else order[2:] + order[:2]:
            start = time.perf_counter()
            call()
            self.took.setdefault(name, []).append(time.perf_counter() - start)
        assert np.array_equal(self.landing, self.source), "wrong bytes"

    def results(self) -> list[dict[str, Any]]:
        nbytes, found = self.source.nbytes, []
        for kind, way in (("store", "in"), ("load", "out")):
            ours, one, every = (self.took[name][2:] for name in (kind, f"{way} 1", f"{way} all"))
            found.append(
                {
                    "what": f"{kind} {self.count} x {self.size >> 10} KiB",
                    "GB/s": nbytes / median(ours) / 1e9,
                    "copy on 1 thread GB/s": nbytes / median(one) / 1e9,
                    f"copy on {self.threads} GB/s": nbytes / median(every) / 1e9,
                    "of the copy on 1": median(c / o for c, o in zip(one, ours, strict=True)),
                    f"of the copy on {self.threads}": median(c / o for c, o in zip(every, ours, strict=True)),
                }
            )
        return found

    def close(self) -> None:
        """Views first: the mapping cannot be closed under them."""
        self.slots = []


def transfers(place: Place, rounds: int) -> list[dict[str, Any]]:
    """Load and store of both sizes."""
    results = []
    for count, size in SIZES:
        place.start(size, 32 * count)
        with ExitStack() as stack:
            both = Transfers(place, stack, count, size)
            touch_slots(both.store, both.from_pool, 32)
            stack.callback(both.close)
            for number in range(rounds + 2):
                both.round(number)
            results += both.results()
        place.stop()
    return results


def lookups(place: Place) -> dict[str, Any]:
    """128 keys at a time."""
    place.start(64, 4096)
    with ExitStack() as stack:
        store = place.user(stack)
        keys = [b"%032d" % i for i in range(2048)]
        store.put(keys, [bytes(64)] * len(keys))
        hot, cold = [], []
        some = keys[:LOOKUPS]
        for _ in range(500):
            start = time.perf_counter()
            store.exists(some)
            hot.append((time.perf_counter() - start) * 1e6)
        reader = place.user(stack)
        for i in range(len(keys) // LOOKUPS):
            some = keys[i * LOOKUPS : (i + 1) * LOOKUPS]
            start = time.perf_counter()
            assert reader.exists(some).all()
            cold.append((time.perf_counter() - start) * 1e6)
    place.stop()
    return {
        "what": "128 lookups",
        "hot us p50/p99": percentiles(hot, 50, 99),
        "cold us p50/p99": percentiles(cold, 50, 99),
    }


def many_users(place: Place, seconds: float = 3.0) -> dict[str, Any]:
    """Eight users, each with a connection, a mapping and a thread: store a batch, load it and another one's."""
    count, size = 16, 256 << 10
    place.start(size, USERS * count * 4)
    totals, waits = [0] * USERS, [[] for _ in range(USERS)]  # type: ignore[var-annotated]
    with ExitStack() as stack:
        users = [place.user(stack) for _ in range(USERS)]
        stop = threading.Event()

        def work(me: int) -> None:
            data = np.full((count, size), me, np.uint8)
            out = np.zeros_like(data)
            turn = 0
            while not stop.is_set():
                keys = [b"%d %d %d" % (me, turn, i) for i in range(count)]
                start = time.perf_counter()
                users[me].put(keys, list(data))
                got = users[me].get(keys, list(out))
                waits[me].append(time.perf_counter() - start)
                assert not got.any() or out[int(np.argmax(got))][0] == me
                totals[me] += (count + int(got.sum())) * size
                turn += 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(USERS)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        time.sleep(seconds)  # the length of the measurement
        stop.set()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - start
    place.stop()
    each = [total / took / 1e9 for total in totals]
    every = [wait * 1e3 for list_ in waits for wait in list_]
    return {
        "what": f"{USERS} users, 16 x 256 KiB stored and loaded",
        "GB/s": sum(each),
        "slowest user's share of the fastest's": min(each) / max(each),
        "ms a turn p50/p99": percentiles(every, 50, 99),
    }


def recovery(place: Place, times: int = 5) -> dict[str, Any]:
    """The owner goes without a word, another one starts at once on the same address."""
    found = []
    place.start(4096, 64, term=1.0)
    port = place.port
    with ExitStack() as stack:
        store = place.user(stack)
        for i in range(times):
            place.kill()
            place.port = port
            place.start(4096, 64, term=1.0)
            start = time.perf_counter()
            while not (store.put([b"%d" % i], [bytes(4096)]).all() and store.get([b"%d" % i], [bytearray(4096)]).all()):
                time.sleep(0.001)
            found.append((time.perf_counter() - start) * 1e3)
    place.stop()
    return {
        "what": "a new owner: ms until a block is stored and loaded (term 1 s)",
        "ms": sorted(round(each, 1) for each in found),
    }


def lmcache(place: Place, python: str, rounds: int) -> list[dict[str, Any]]:
    """LMCache's benchmark over three of its adapters, in turns."""
    count, size = 64, 256 << 10
    place.start(size, 16 * count)
    with ExitStack() as stack:
        data = np.zeros((count, size), np.uint8)
        touch_slots(place.user(stack), Pieces.of_slots(data.ctypes.data, size, np.arange(count), size), 16)
    shm = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="obmm-bench-"))
    arms: dict[str, dict[str, Any]] = {
        "obmm": {
            "type": "native_plugin",
            "module_path": "obmm.integrations.lmcache",
            "class_name": "Connector",
            "adapter_params": {
                "source": f"127.0.0.1:{place.port}/kv",
                "key": str(place.key),
                "device": str(place.b.backend),
            },
        },
        "fs on /dev/shm": {"type": "fs", "base_path": str(shm)},
        "mock": {"type": "mock", "max_size_gb": 1, "mock_bandwidth_gb": 1000},
    }
    speeds: dict[str, dict[str, list[float]]] = {}
    try:
        for _ in range(rounds):
            for name, adapter in arms.items():
                for what, value in _lmcache_run(python, adapter).items():
                    speeds.setdefault(name, {}).setdefault(what, []).append(value)
    finally:
        subprocess.run(["rm", "-rf", str(shm)], check=False)
        place.stop()
    return [
        {"what": f"lmcache bench l2, 64 x 256 KiB, {name}"} | {what: median(values) for what, values in found.items()}
        for name, found in speeds.items()
    ]


def _lmcache_run(python: str, adapter: dict[str, Any]) -> dict[str, float]:
    command = [str(Path(python).with_name("lmcache")), "bench", "l2", "--l2-adapter", json.dumps(adapter)]
    command += ["--num-keys", "64", "--data-size-kb", "256", "--rounds", "5", "--no-skip-verify", "--format", "json"]
    environment = os.environ | {"LMCACHE_DISABLE_BANNER": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode or "{" not in done.stdout:
        print(f"lmcache bench failed for {adapter['type']}: {done.stderr[-500:]} {done.stdout[-500:]}", file=sys.stderr)
        return {}
    found, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])
    return dict(_throughputs(found))


def _throughputs(found: Any, name: str = "") -> Any:
    """(operation MB/s, value) wherever the report has them."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key == "throughput_avg_mbps":
                yield f"{name} MB/s", float(value)
            else:
                yield from _throughputs(value, key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable; default: all)")
    parser.add_argument("--lmcache", metavar="PYTHON", help="an interpreter whose environment has lmcache")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    results: list[dict[str, Any]] = []

    def add(found: dict[str, Any]) -> None:
        results.append(found)
        facts = ", ".join(f"{key} {_shown(value)}" for key, value in found.items() if key != "what")
        print(f"{found['what']}: {facts}", flush=True)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        Key.generate(folder / "key")
        fabric = stack.enter_context(emulator.start(nodes=2))
        b = stack.enter_context(obmm.open(fabric.device("b")))
        print(f"emulated: {b.backend}; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {default_engine()!r}")
        place = Place(folder, fabric.device("a"), b)
        parts = options.only or PARTS
        for each in transfers(place, options.rounds) if "transfers" in parts else ():
            add(each)
        for name, measure in (("lookups", lookups), ("users", many_users), ("recovery", recovery)):
            if name in parts:
                add(measure(place))
        if options.lmcache and "lmcache" in parts:
            for each in lmcache(place, options.lmcache, max(1, options.rounds // 5)):
                add(each)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, tuple):
        return "/".join(f"{each:.1f}" for each in value)
    return str(value)


if __name__ == "__main__":
    main()
