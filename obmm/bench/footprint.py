# SPDX-License-Identifier: Apache-2.0
"""How much memory a figure is measured over, and what it may therefore be called (docs/benchmark.md)."""

from __future__ import annotations

from dataclasses import dataclass

from obmm.bench.compiled import ffi, library
from obmm.bench.environment import last_level_cache, memory_available

GRANULE = 4 << 20
COLD_FACTOR = 4
SHARE = 0.2
"""Of the available memory: up to three tables are there at once, and must never push the machine into swapping."""
HOT_BYTES = 256 << 10


COLD_LOADS = 20_000
NEAR = 2.0
"""A chase over the table that takes less than so many times one over cached lines does not leave the caches."""
QUICK = 0.5
"""Loads, one at a time, that take less than this part of the chase were in a cache."""


@dataclass(frozen=True, slots=True)
class Chase:
    """Nanoseconds of one load of a pointer chase in the same run: over the whole table, and over lines that are cached."""

    cold_ns: float
    hot_ns: float

    @classmethod
    def over(cls, address: int, nbytes: int, seed: int) -> Chase:
        """Measured at `address`: each load's address follows from the load before, and no line is met before."""
        ns = [0.0, 0.0]
        for place, (size, loads) in enumerate(((nbytes, COLD_LOADS), (min(HOT_BYTES // 8, nbytes), 2 * COLD_LOADS))):
            ns[place] = float(library().bench_chase(ffi.cast("uint8_t *", address), size // 64, loads, seed | 1))
        return cls(*ns)

    @property
    def leaves_caches(self) -> bool:
        """Whether the table is seen to be slower than a cache."""
        return self.cold_ns >= NEAR * self.hot_ns


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

    def temperature(self, working_set: int, chase: Chase | None = None, load_ns: float | None = None) -> str:
        """ "cold" only when the working set is at least 4 times a level 3 cache whose size is known, when the `chase` of
        the same run leaves the caches, and when loads one at a time (`load_ns` each) take about what the chase took.
        """
        if working_set <= HOT_BYTES:
            return "hot"
        if not self.cache or working_set < COLD_FACTOR * self.cache:
            return "hot/limited"
        if chase is not None and not chase.leaves_caches:
            return "hot/limited"
        if chase is not None and load_ns is not None and load_ns < QUICK * chase.cold_ns:
            return "hot/limited"
        return "cold"
