# SPDX-License-Identifier: Apache-2.0
"""What a row number costs: C and NumPy, both models, from one decode token to a prefill chunk.

    python -m bench.hash [--json FILE]

Ids are made before the clock runs; the implementations take turns within one run; each figure is the best round, since
other work on the machine only adds, and both implementations' row numbers are compared after timing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from obmm.prefetch import EngramHasher, NgramHasher, PolyHasher, engram_layers, token_map_digest
from obmm.prefetch.hashing.ngram_native import kernel

TOKENS = (1, 8, 64, 256, 1024, 8192)
VOCABULARY, COMPRESSED = 129_280, 99_092


def engram(impl: Any) -> EngramHasher:
    """DeepSeek-V4.1: two layers of 24 columns, tokens through a map of the real size (its content does not matter)."""
    token_map = np.random.default_rng(0).integers(0, COMPRESSED, VOCABULARY).astype(np.int32)
    token_map[-1] = COMPRESSED - 1
    layers = engram_layers([1, 14], vocabulary=COMPRESSED, bases=[16_000_000] * 3, heads=8)
    manifest = {
        "algorithm": "engram-xor",
        "layers": [layer.to_manifest() for layer in layers],
        "pad_id": 2,
        "dead_ids": [129_264],
        "token_map": {"size": COMPRESSED, "sha256": token_map_digest(token_map)},
    }
    return EngramHasher(manifest, impl, token_map=token_map)


def poly(impl: Any) -> PolyHasher:
    """LongCat-Flash-Lite: twelve columns."""
    return PolyHasher(131_072, 10_223_616, 4, 4, 2, impl)


MODELS: dict[str, Callable[[Any], NgramHasher]] = {"engram V4.1": engram, "poly LongCat": poly}


def measure(model: str, rounds: int) -> list[dict[str, Any]]:
    """One record per batch size and implementation; seconds are of one call."""
    hashers = {impl: MODELS[model](impl) for impl in ("c", "numpy")}
    random = np.random.default_rng(1)
    records = []
    for n in TOKENS:
        tokens = random.integers(0, VOCABULARY - 100, n)
        # decode: one token per request; from 1024 on, prefill: chunks of 512
        starts = np.arange(0, n + 1, 1 if n < 1024 else 512)
        history = random.integers(0, VOCABULARY - 100, (len(starts) - 1, hashers["c"].order - 1))
        outs = {impl: np.empty((n, hasher.layers, hasher.columns), np.int64) for impl, hasher in hashers.items()}
        times: dict[str, list[float]] = {impl: [] for impl in hashers}
        repeat = max(1, 2000 // n)
        for _ in range(rounds):
            for impl, hasher in hashers.items():
                calls = repeat if impl == "c" else max(1, repeat // 20)
                began = time.perf_counter()
                for _ in range(calls):
                    hasher.hash(tokens, starts, history, out=outs[impl])
                times[impl].append((time.perf_counter() - began) / calls)
        if not np.array_equal(outs["c"], outs["numpy"]):
            raise AssertionError(f"{model}, {n} tokens: the implementations differ")
        columns = hashers["c"].layers * hashers["c"].columns
        for impl, taken in times.items():
            seconds = min(taken)
            records.append(
                {
                    "model": model,
                    "impl": impl,
                    "tokens": n,
                    "columns": columns,
                    "call_us": seconds * 1e6,
                    "call_us_median": statistics.median(taken) * 1e6,
                    "token_us": seconds / n * 1e6,
                    "row_number_ns": seconds / n / columns * 1e9,
                }
            )
    return records


def table(records: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'model':<14}{'tokens':>7}{'C us/call':>11}{'C us/token':>12}{'C ns/row':>10}{'NumPy us/token':>16}{'ratio':>7}"
    ]
    for c, numpy in zip(records[::2], records[1::2], strict=True):
        lines.append(
            f"{c['model']:<14}{c['tokens']:>7}{c['call_us']:>11.2f}{c['token_us']:>12.4f}{c['row_number_ns']:>10.2f}"
            f"{numpy['token_us']:>16.3f}{numpy['token_us'] / c['token_us']:>7.1f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hash", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the records there")
    options = parser.parse_args(arguments)
    records = [record for model in MODELS for record in measure(model, options.rounds)]
    print(f"n-gram hashing, C kernel {kernel()}, NumPy {np.__version__}, {platform.machine()}; best rounds")
    print(table(records))
    if options.json:
        report = {
            "benchmark": "hash",
            "version": 1,
            "kernel": kernel(),
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "rounds": options.rounds,
            "records": records,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
