# SPDX-License-Identifier: Apache-2.0
"""The module from the tests' side: loading, debug files, faults on request."""

from __future__ import annotations

import os
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


class Log:
    """What the hardware is asked for: cache operations and UMMU calls with their fields.

    Keeps the file open between looks; a reload of the module makes it open the new one.
    """

    def __init__(self) -> None:
        self._fd = -1

    def take(self) -> list[tuple[str, dict[str, str]]]:
        """Everything since the last look; nothing while no module is loaded."""
        entries = []
        for line in self._read().splitlines():
            name, *fields = line.split()
            entries.append((name, dict(field.split("=") for field in fields)))
        return entries

    def forget(self) -> None:
        """The module goes away."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> str:
        if self._fd < 0:
            if not DEBUG.exists():
                return ""
            self._fd = os.open(DEBUG / "log", os.O_RDONLY)
        return os.read(self._fd, 1 << 16).decode()
