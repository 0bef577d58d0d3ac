# SPDX-License-Identifier: Apache-2.0
"""What names a boot of this host, and a process on it."""

from __future__ import annotations

import os
import uuid
from functools import cache
from pathlib import Path

_ENDED = ("Z", "X")
"""States of a thread that ran to its end (proc(5))."""


@cache
def boot_id() -> bytes:
    """This boot of this host: 16 bytes."""
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes


def start_time(pid: int | str) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none, or none that we may see.

    The same number in every time namespace.  A process whose main thread ended is there while another thread of it is.
    """
    process = Path(f"/proc/{pid}")
    try:
        fields = _stat(process)
    except OSError:
        return None
    if fields[0] in _ENDED and living_task(process) is None:
        return None  # a zombie holds nothing any more
    return int(fields[19]) - _boot_offset()


def living_task(process: Path) -> Path | None:
    """The folder in /proc of a thread of `process` (``/proc/<pid>``) that runs; None when there is none, or none that
    we may see.

    A main thread that ended shows neither descriptors nor maps, though the process has both: another thread shows them.
    """
    try:
        if _stat(process)[0] not in _ENDED:
            return process
        tasks = list((process / "task").iterdir())
    except OSError:
        return None
    for task in tasks:
        try:
            if _stat(task)[0] not in _ENDED:
                return task
        except OSError:  # it ended while we looked
            continue
    return None


def _stat(task: Path) -> list[str]:
    """The fields of its ``stat`` behind the name: state first."""
    text = (task / "stat").read_text(errors="replace")
    return text[text.rindex(")") + 2 :].split()


@cache
def _boot_offset() -> int:
    """Clock ticks that this time namespace adds to the time since boot."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:
        return 0
    seconds = next((int(line.split()[1]) for line in lines if line.startswith("boottime")), 0)
    return seconds * os.sysconf("SC_CLK_TCK")
