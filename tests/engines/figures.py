# SPDX-License-Identifier: Apache-2.0
"""How long SGLang's own code takes for rows of its own table, and for rows of another node: both in one run.

    .venv-engines/bin/python tests/engines/figures.py [--rows 2000000] [--json OUT]

The engine's arms: its row stager over its tables in this process's memory (prefill), and its lookup of a table on the CPU
(decode).  Ours: the same calls after the door has replaced both classes, rows on another emulated node.  Arms take turns; times
are medians.  The emulator's memory is this machine's: the figures say what the code costs, not what a fabric does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "on_sglang"), str(HERE.parent / "engram"), str(HERE.parents[1])]

from stand_ins import without_a_device, without_torchvision  # noqa: E402

without_torchvision()
without_a_device()

import numpy as np  # noqa: E402
import sglang_world as world  # noqa: E402
import torch  # noqa: E402
from publisher import Publisher  # noqa: E402
from sglang.srt.layers import engram, engram_staging  # noqa: E402
from toy_checkpoints import deepseek  # noqa: E402

from obmm import emulator  # noqa: E402

TOKENS = (64, 512, 2048, 8192)
REQUESTS = (1, 8, 64)
COLUMNS = 24


def turns(arms: dict[str, Callable[[], Any]], seconds: float = 4.0, least: int = 7) -> dict[str, float]:
    """The median seconds of each arm; they take turns, so that a busy machine is busy for both."""
    taken: dict[str, list[float]] = {name: [] for name in arms}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(next(iter(taken.values()))) < least:
        for name, call in arms.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=2_000_000, help="of each of the two tables")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    world.BASE, world.HEADS, world.ORDER = chosen.rows // COLUMNS, 8, 4
    found: dict[str, Any] = {
        "rows": chosen.rows,
        "columns": COLUMNS,
        "cpus": len(os.sched_getaffinity(0)),
        "arms": "one run",
    }
    with tempfile.TemporaryDirectory() as folder, emulator.start(nodes=2) as fabric, world.parallel():
        toy = Path(folder) / "model"
        deepseek(toy, base=world.BASE, heads=world.HEADS, order=world.ORDER)
        began = time.perf_counter()
        for file in toy.glob("*.safetensors"):
            shutil.copyfile(file, Path(folder) / file.name)
        copied = time.perf_counter() - began
        began = time.perf_counter()
        for file in toy.glob("*.safetensors"):
            with file.open("rb") as opened:
                hashlib.file_digest(opened, "sha256")
        hashed = time.perf_counter() - began
        served = Publisher(fabric, toy, "--journal", Path(folder) / "journal", "--port", 0)
        try:
            found["publish"] = {
                "bytes": served.facts["bytes"],
                "seconds": served.facts["seconds"],
                "copy_seconds": copied,
                "sha256_seconds": hashed,  # of one thread: a tensor's digest cannot be shared out
                "rate_of_copy": copied / served.facts["seconds"],
            }
            measure(found, toy, served.source, fabric.device("b"))
        finally:
            served.stop()
    print(json.dumps(found, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2))


def resident() -> int:
    """KiB of memory of its own that this process holds now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def measure(found: dict[str, Any], toy: Path, source: str, device: str) -> None:
    before = resident()
    own = world.embeddings(toy)
    own_model = world.Model(own, world.hasher())
    # The engine stages from a table in shared host memory; where the bytes lie is all that its stager sees.
    own_stager = engram_staging.EngramRowStager(own_model.hasher, own, torch.device("cpu"))
    held_own = resident() - before
    os.environ["SGLANG_OBMM_ENGRAM"] = json.dumps(
        {"source": source, "plain": True, "device": device, "decode_ms": 5000, "prefill_ms": 5000}
    )
    world.load_plugins()
    before = resident()
    ours = world.embeddings(None)
    model = world.Model(ours, world.hasher())
    stager = engram_staging.EngramRowStager(model.hasher, ours, torch.device("cpu"))
    held = resident() - before
    random = np.random.default_rng(0)
    found["prefill"], found["decode"] = {}, {}
    for tokens in TOKENS:
        batch = world.extend_batch([(random.integers(0, world.VOCABULARY, tokens).tolist(), 0)])
        arms = {"engine": lambda b=batch: own_stager.stage(b), "obmm": lambda b=batch: stager.stage(b)}
        for name, both in zip(own_model.layers, model.layers, strict=True):
            assert type(name.embed) is not type(both.embed)
        found["prefill"][tokens] = compared(turns(arms))
    for requests in REQUESTS:
        ids = [torch.from_numpy(random.integers(0, embed.rows, (requests, COLUMNS))) for embed in own]
        arms = {
            "engine": lambda i=ids: [embed(x) for embed, x in zip(own, i, strict=True)],
            "obmm": lambda i=ids: [embed(x) for embed, x in zip(ours, i, strict=True)],
        }
        assert all(
            torch.equal(a.view(torch.int16), b.view(torch.int16))
            for a, b in zip(*(c() for c in arms.values()), strict=True)
        )
        found["decode"][requests] = compared(turns(arms))
    found["own_memory_kib"] = {"engine": held_own, "obmm": held, "obmm_after": resident() - before}
    assert engram.EngramEmbedding.__module__.startswith("obmm")
    world.close_doors()


def compared(medians: dict[str, float]) -> dict[str, float]:
    return {
        **{f"{name}_us": round(value * 1e6, 1) for name, value in medians.items()},
        "ratio": round(medians["obmm"] / medians["engine"], 3),
    }


if __name__ == "__main__":
    main()
