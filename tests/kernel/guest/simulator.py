# SPDX-License-Identifier: Apache-2.0
"""The module from the tests' side: loading, debug files, faults on request."""

from __future__ import annotations

import subprocess
from pathlib import Path

MODULE = Path("/payload/obmm_sim.ko")
DEBUG = Path("/sys/kernel/debug/obmm_sim")


def load(**parameters: str | int) -> None:
    """Load the module afresh with these parameters."""
    if DEBUG.exists():
        unload()
    words = [f"{key}={value}" for key, value in parameters.items()]
    subprocess.run(["insmod", str(MODULE), *words], check=True)


def unload() -> None:
    """Fails while a region or an open file exists, as the driver does."""
    subprocess.run(["rmmod", "obmm_sim"], check=True)


def counters() -> dict[str, int]:
    """Page faults by kind, cache operations by kind, since the module was loaded."""
    lines = (DEBUG / "counters").read_text().splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def inject(name: str, *values: int) -> None:
    """An injection of the driver transcript, or ``reset``."""
    (DEBUG / "inject").write_text(" ".join([name, *map(str, values)]))


def decoder(address: int, length: int, tokenid: int) -> None:
    """Let window bytes [address, address + length) lead to this host's own export with that token; length 0 removes."""
    (DEBUG / "decoder").write_text(f"{address:#x} {length:#x} {tokenid}")


def sigbus(mem_id: int, start: int, end: int) -> None:
    """Let the next touch of region bytes [start, end) raise SIGBUS; start == end heals."""
    (DEBUG / "sigbus").write_text(f"{mem_id} {start} {end}")


def log() -> list[tuple[str, dict[str, str]]]:
    """What the hardware was asked for since the last look: cache operations and UMMU calls with their fields."""
    entries = []
    with (DEBUG / "log").open() as lines:
        for line in lines:
            name, *fields = line.split()
            entries.append((name, dict(field.split("=") for field in fields)))
    return entries
