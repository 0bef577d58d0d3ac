# SPDX-License-Identifier: Apache-2.0
"""One guest with two processors and a storm in it (tests/kernel/storm)."""

from __future__ import annotations

import os
import random

from .machine import Boot, Machine

#: Of storm, when KERNEL_STORM_SECONDS does not say otherwise.
SECONDS = 180
#: To boot, and for the last calls to end, on a machine that is busy besides.
ASIDE_S = 300.0


def run_storm(boot: Boot) -> bool:
    """Whether the guest stood it.  The seed repeats the calls, not how they meet."""
    seconds = int(os.environ.get("KERNEL_STORM_SECONDS", SECONDS))
    seed = int(os.environ.get("KERNEL_STORM_SEED", random.randrange(1 << 32)))
    name = f"storm-{boot.architecture.name}"
    print(f"== {name}: {seconds} s, seed {seed}", flush=True)
    limit = seconds * 2 + ASIDE_S
    machine = Machine(boot, f"storm:{seconds}+{seed}", f"console-{name}", memory_mib=1024, cpus="2", limit_s=limit + 30)
    verdict = machine.finish(limit)
    print(machine.text, flush=True)
    print(f"== {name}: guest verdict {verdict} after {machine.seconds:.0f} s", flush=True)
    return verdict == 0
