# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end, between two processes on two nodes (``obmm demo``).

The exporter lends a table of 12 x 10,000 rows of 341 float32, element i of the whole table = i * 0.001; the importer
fetches its handle over TCP, imports it through a window, verifies every byte with its own loads, and measures reads.
Each side is ``python -m obmm.demo export|import ...``: nothing is shared but the TCP port.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

import obmm
from obmm import ObmmError
from obmm.exchange import connect, serve
from obmm.mapping.mapping import Mapping

TABLES, ROWS, DIM = 12, 10_000, 341
ROW_BYTES = DIM * 4
NAME = "demo"
BATCHES = (1, 32, 64, 128, 256)
TOKENS = (32, 64, 128, 256)
ROUNDS = 200
CHUNK_ROWS = 4096
MANIFEST = {"format": "obmm-array", "version": 1, "dtype": "<f4", "shape": [TABLES, ROWS, DIM]}


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one kind of read: `rows` of 1,364 bytes each (0: a single 8-byte load)."""

    what: str
    rows: int
    p50_us: float
    p99_us: float


def expected(first: int, count: int) -> npt.NDArray[np.float32]:
    """Elements [first, first + count) of the table as float32."""
    return (np.arange(first, first + count, dtype=np.float64) * 0.001).astype("<f4")


def export(device: str) -> None:
    """Node A: export, fill, publish, serve until standard input ends.  Prints the port as a JSON line."""
    with obmm.open(device) as dev, dev.export_region(TABLES * ROWS * ROW_BYTES, label=NAME) as region:
        with region.map("rw") as mapping:
            step = CHUNK_ROWS * DIM
            for first in range(0, TABLES * ROWS * DIM, step):
                mapping.write(first * 4, expected(first, min(step, TABLES * ROWS * DIM - first)))
                _progress("filled", first + step, TABLES * ROWS * DIM)
            mapping.publish()
        with serve({NAME: (region, MANIFEST)}, host="127.0.0.1", port=0, plain=True) as server:
            print(json.dumps({"port": server.port, "length": region.length}), flush=True)
            sys.stdin.read()


def import_(device: str, address: str) -> None:
    """Node B: fetch, import, verify, measure.  Prints one JSON line."""
    with obmm.open(device) as dev, connect(address, plain=True) as peer:
        lease = peer.fetch(NAME)
        shape = tuple(lease.manifest["shape"])
        with dev.import_region(lease) as region, region.map("r") as mapping:
            verified = verify(mapping)
            timings = [asdict(timing) for timing in measure(mapping)]
            print(json.dumps({"rows": shape[0] * shape[1], "bytes_verified": verified, "timings": timings}), flush=True)


def verify(mapping: Mapping) -> int:
    """Compare every byte of the table with what it must be -> bytes compared."""
    total = TABLES * ROWS * DIM
    buffer = np.empty(CHUNK_ROWS * DIM, "<f4")
    for first in range(0, total, len(buffer)):
        part = buffer[: total - first]
        mapping.read_into(part, first * 4)
        if part.tobytes() != expected(first, len(part)).tobytes():
            wrong = int(np.flatnonzero(part.view("u4") != expected(first, len(part)).view("u4"))[0])
            raise SystemExit(f"element {first + wrong} is {part[wrong]}, not {(first + wrong) * 0.001}")
        _progress("verified", first + len(part), total)
    return total * 4


def measure(mapping: Mapping) -> Iterator[Timing]:
    """p50 and p99 of single loads and of row gathers, random rows, ids made before the clock starts."""
    random = np.random.default_rng(7)
    offsets = (random.integers(0, mapping.nbytes // 64, 2000) * 64).tolist()
    yield _timed("one 8-byte load", 0, [partial(mapping.load, "<u8", offset) for offset in offsets])
    rows = mapping.rows(ROW_BYTES)
    for what, count, top in (
        *((f"{n} rows" if n > 1 else "one row", n, TABLES * ROWS) for n in BATCHES),
        *((f"{TABLES} tables x {n} tokens", TABLES * n, TABLES * ROWS) for n in TOKENS),
    ):
        out = np.empty((count, ROW_BYTES), "u1")
        batches = [random.integers(0, top, count) for _ in range(ROUNDS)]
        if count > max(BATCHES):  # tokens: each table is asked for its own rows
            starts = np.repeat(np.arange(TABLES) * ROWS, count // TABLES)
            batches = [random.integers(0, ROWS, count) + starts for _ in range(ROUNDS)]
        yield _timed(what, count, [partial(rows.gather, ids, out) for ids in batches])


def _timed(what: str, rows: int, calls: list[Callable[[], object]]) -> Timing:
    times = []
    for call in calls:
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    p50, p99 = np.percentile(times, [50, 99])
    return Timing(what, rows, float(p50), float(p99))


def _progress(what: str, done: int, total: int) -> None:
    """One line per step on standard error, for a progress bar."""
    print(f"{what} {min(done, total)} {total}", file=sys.stderr, flush=True)


def main() -> None:
    """``python -m obmm.demo``: one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["export", "import"])
    parser.add_argument("device")
    parser.add_argument("address", nargs="?")
    arguments = parser.parse_args()
    try:
        if arguments.side == "export":
            export(arguments.device)
        else:
            import_(arguments.device, arguments.address)
    except ObmmError as error:  # the command shows what this process says
        sys.exit(error.strerror)


if __name__ == "__main__":
    main()
