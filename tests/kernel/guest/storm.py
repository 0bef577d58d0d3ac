# SPDX-License-Identifier: Apache-2.0
"""The storm (tests/kernel/storm): many processes, every call, for as many seconds as the host says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import simulator

PROGRAM = Path("/payload/storm")


def main(seconds: str, seed: str) -> bool:
    # when memory runs out after all, it is the storm's own processes that go, not this one
    Path("/proc/self/oom_score_adj").write_text("-1000")
    return subprocess.run([PROGRAM, simulator.MODULE, seconds, seed], check=False).returncode == 0
