# SPDX-License-Identifier: Apache-2.0
"""What else the machine did while a case ran: other processes, a hypervisor, the clock of its cores."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

BUSY_OTHERS = 0.10
"""Part of all cores that others may use before a case is marked."""
BUSY_STEAL = 0.02
SLACK_TICKS = 3
"""The kernel counts in ticks of 10 ms: less than so many of them say nothing."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Of the time of all cores: `others`, used by processes that are not the benchmark's, and `steal`, given to other
    guests.  `load` is the load average at the end, `mhz` the mean clock of the cores (None: not told).
    """

    others: float
    steal: float
    load: float
    mhz: float | None

    @property
    def busy(self) -> bool:
        """Whether a figure measured meanwhile is the machine's as much as the path's."""
        return self.others > BUSY_OTHERS or self.steal > BUSY_STEAL


class Watch:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._cores = os.cpu_count() or 1
        self._began = time.monotonic()
        self._used, self._stolen = _machine()
        self._ours = _ours()

    def end(self) -> Surroundings:
        """What happened since."""
        used, stolen = _machine()
        ticks = max(1.0, (time.monotonic() - self._began) * os.sysconf("SC_CLK_TCK") * self._cores)
        # a helper that ended meanwhile takes its ticks with it: never more than what was used
        ours = max(0, _ours() - self._ours)
        others = max(0, used - self._used - ours - SLACK_TICKS)
        steal = max(0, stolen - self._stolen - SLACK_TICKS)
        return Surroundings(min(1.0, others / ticks), min(1.0, steal / ticks), os.getloadavg()[0], _megahertz())


def _machine(path: str = "/proc/stat") -> tuple[int, int]:
    """Ticks of all cores: in use, stolen."""
    fields = [int(word) for word in Path(path).read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal, *_ = [*fields, *[0] * 8]
    return user + nice + system + irq + softirq, steal


def _ours() -> int:
    """Ticks of this process, of its living descendants, and of those that were waited for."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
        children[int(fields[1])].append(int(entry.name))
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children[pid]
    return total


def _megahertz() -> float | None:
    found = [
        float(line.partition(":")[2])
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.lower().startswith("cpu mhz")
    ]
    return sum(found) / len(found) if found else None
