# SPDX-License-Identifier: Apache-2.0
"""Where random tests begin: `make test` repeats itself, long runs look elsewhere each time."""

from __future__ import annotations

import os
import random

#: A number repeats a run, "random" looks elsewhere; without it every run is the same.
CHOSEN = os.environ.get("OBMM_SEED", "1")

#: Which steps of an operation, or calls of a command, fail in `make test`; `make interrupts` and `make every-call` take all.
INJECT = int(os.environ.get("OBMM_INJECT_SEED", "1"))


def seed() -> int:
    """The seed of a random test: a failure prints it, and OBMM_SEED repeats it."""
    return random.SystemRandom().getrandbits(32) if CHOSEN == "random" else int(CHOSEN)
