# SPDX-License-Identifier: Apache-2.0
"""Where a benchmark ran: without it a figure means nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> dict[str, object]:
    """CPU, kernel, versions and load of this machine."""
    import numpy

    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("model name", "cpu part")):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "load": os.getloadavg()[0],
    }
