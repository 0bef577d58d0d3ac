# SPDX-License-Identifier: Apache-2.0
"""Fuzz the parsers: ``python -m tests.fuzz.run [--runs 1000000] [--target NAME] [--blind] [--corpus FOLDER]``.

Coverage-guided with atheris where it is installed (``pip install atheris``; one process per target, because libFuzzer
ends its process).  Without it, and with --blind, a fuzzer that mutates good input without looking at coverage; which
one ran is said.  The number of executions is divided among the targets.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Coverage is worth most where the structure is deep.
SHARES = {
    "frames": 0.3,
    "payloads": 0.2,
    "handle": 0.2,
    "header": 0.05,
    "manifest": 0.1,
    "session": 0.05,
    "server_handshake": 0.05,
    "client_handshake": 0.05,
}


def guided(target: str, runs: int, corpus: Path, seed: int) -> None:
    """In this process, with atheris; ends it."""
    import atheris

    with atheris.instrument_imports(include=["obmm"]):
        from tests.fuzz.targets import TARGETS, seeds
    folder = corpus / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds()[target]):
        (folder / f"seed-{number}").write_bytes(data)
    options = [f"-runs={runs}", f"-seed={seed}", "-max_len=1024", "-timeout=10", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], str(folder), *options, f"-artifact_prefix={corpus}/{target}-"], TARGETS[target])
    atheris.Fuzz()


def blind(target: str, runs: int, seed: int) -> int:
    """Mutate good input; the number of executions."""
    from tests.fuzz.targets import TARGETS, seeds

    generator = random.Random(seed)
    good = seeds()[target]
    for number in range(runs):
        data = bytearray(generator.choice(good))
        for _ in range(generator.randrange(6)):
            _mutate(data, generator, good)
        try:
            TARGETS[target](bytes(data))
        except BaseException:
            print(f"finding in {target}, execution {number}: {bytes(data).hex()}", file=sys.stderr)
            raise
    return runs


def _mutate(data: bytearray, generator: random.Random, good: list[bytes]) -> None:
    where = generator.randrange(len(data) + 1)
    match generator.randrange(6):
        case 0 if data:
            data[where % len(data)] ^= 1 << generator.randrange(8)
        case 1 if data:
            data[where % len(data)] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
        case 2:
            del data[where : where + generator.randrange(1, 17)]
        case 3:
            data[where:where] = generator.randbytes(generator.randrange(1, 17))
        case 4:
            other = generator.choice(good)
            data[where:] = other[generator.randrange(len(other) + 1) :]
        case _:
            data[where : where + 4] = generator.choice((0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)).to_bytes(4, "little")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--target", choices=SHARES)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        guided(arguments.target, arguments.runs, arguments.corpus, arguments.seed)
        return
    with_coverage = not arguments.blind and importlib.util.find_spec("atheris") is not None
    how = "coverage-guided (atheris)" if with_coverage else "coverage-blind"
    print(f"fuzzing, {how}")
    chosen = [arguments.target] if arguments.target else list(SHARES)
    total = 0
    with tempfile.TemporaryDirectory() as scratch:
        corpus = (arguments.corpus or Path(scratch)).absolute()
        for target in chosen:
            runs = arguments.runs if arguments.target else max(1, round(arguments.runs * SHARES[target]))
            began = time.perf_counter()
            done = (
                _guided_process(target, runs, corpus, arguments.seed)
                if with_coverage
                else blind(target, runs, arguments.seed)
            )
            total += done
            print(f"  {target:<17} {done:>9,} executions in {time.perf_counter() - began:6.1f} s", flush=True)
    print(f"fuzz ok: executions={total} targets={len(chosen)} {how}")
    if total < arguments.runs * 0.999:
        sys.exit("fewer executions than asked for")


def _guided_process(target: str, runs: int, corpus: Path, seed: int) -> int:
    command = [sys.executable, "-m", "tests.fuzz.run", "--inside", "--target", target, "--runs", str(runs)]
    command += ["--corpus", str(corpus), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        sys.exit(f"finding in {target}: the input is in {corpus} or above (--corpus FOLDER keeps it)")
    found = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()
