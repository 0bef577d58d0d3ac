# SPDX-License-Identifier: Apache-2.0
"""How much memory a figure is measured over, and what it may therefore be called (docs/benchmark.md)."""

from __future__ import annotations

from dataclasses import dataclass

from obmm.bench.environment import last_level_cache, memory_available

GRANULE = 4 << 20
COLD_FACTOR = 4
SHARE = 0.2
"""Of the available memory: up to three tables are there at once, and must never push the machine into swapping."""
HOT_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Footprint:
    """`nbytes` of table on a machine with `cache` bytes of last-level cache."""

    nbytes: int
    cache: int

    @classmethod
    def choose(cls, wanted: int | None = None) -> Footprint:
        """`wanted` bytes, or 4 times the last-level cache, capped by the memory that is available."""
        cache = last_level_cache()
        nbytes = wanted or COLD_FACTOR * (cache or 64 << 20)
        nbytes = min(nbytes, int(memory_available() * SHARE))
        nbytes = -(-nbytes // GRANULE) * GRANULE
        return cls(max(nbytes, GRANULE), cache)

    def temperature(self, working_set: int) -> str:
        """ "cold" only when the working set is at least 4 times a cache whose size is known."""
        if working_set <= HOT_BYTES:
            return "hot"
        return "cold" if self.cache and working_set >= COLD_FACTOR * self.cache else "hot/limited"
