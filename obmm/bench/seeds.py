# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a run: every case and every thread has its own, and all follow from one recorded number."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Self

SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seeds that follow from the number `run`."""

    run: int

    @classmethod
    def new(cls) -> Self:
        """A new seed for each run: no sequence meets lines that an earlier one has left in a cache."""
        return cls(secrets.randbits(SEED_BITS))

    def of(self, *words: object) -> int:
        """The seed of what `words` name (repetition, arm, workload, case, thread): others give others."""
        text = "\x1f".join(map(str, (self.run, *words)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
