# SPDX-License-Identifier: Apache-2.0
"""What the prefetcher counts (Engram specification 12), in plain Python; `obmm.prefetch.exposition` shows it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import accumulate

from obmm.prefetch.source import Hot, RowSource

BUCKETS = tuple(10 ** (i / 4 - 6) for i in range(25))
"""Upper bounds: 1 us to 1 s, or one millionth to 1, four per decade."""

Labels = tuple[str, ...]


class Counter:
    """A family of sums: added to by its owner, or looked up when somebody reads them."""

    def __init__(self, name: str, help: str, labels: Labels) -> None:
        self.name, self.help, self.labels = name, help, labels
        self._values: defaultdict[Labels, float] = defaultdict(float)
        self._sources: dict[Labels, Callable[[], float]] = {}

    def add(self, *labels: str, by: float = 1) -> None:
        self._values[labels] += by

    def watch(self, *labels: str, source: Callable[[], float]) -> None:
        """Add what `source` says, which grows from now on, until `settle`."""
        self._values[labels] -= source()
        self._sources[labels] = source

    def settle(self) -> None:
        """Look at no source any more: what they said stays."""
        self._values = defaultdict(float, self.values)
        self._sources.clear()

    @property
    def values(self) -> dict[Labels, float]:
        return dict(self._values) | {key: self._values[key] + source() for key, source in list(self._sources.items())}


class Gauge:
    """A family of current values: set by its owner, or looked up when somebody reads them."""

    def __init__(self, name: str, help: str, labels: Labels) -> None:
        self.name, self.help, self.labels = name, help, labels
        self._values: dict[Labels, float] = {}
        self._sources: dict[Labels, Callable[[], float | None]] = {}

    def set(self, *labels: str, to: float) -> None:
        self._values[labels] = to

    def watch(self, *labels: str, source: Callable[[], float | None]) -> None:
        """`source` may say None: no value yet."""
        self._sources[labels] = source

    def forget(self) -> None:
        """Remove all values."""
        self._values.clear()
        self._sources.clear()

    @property
    def values(self) -> dict[Labels, float]:
        looked_up = {labels: source() for labels, source in list(self._sources.items())}
        return self._values | {labels: value for labels, value in looked_up.items() if value is not None}


class Histogram:
    """A family of distributions over `BUCKETS`: of seconds, or of ratios up to 1."""

    def __init__(self, name: str, help: str, labels: Labels) -> None:
        self.name, self.help, self.labels = name, help, labels
        self.counts: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self.sums: defaultdict[Labels, float] = defaultdict(float)

    def observe(self, *labels: str, value: float) -> None:
        self.counts[labels][bisect_left(BUCKETS, value)] += 1
        self.sums[labels] += value

    def record(self, label: str, value: float) -> None:
        """`observe`, for a callback that knows its label."""
        self.observe(label, value=value)

    def cumulative(self, labels: Labels) -> list[int]:
        """How many values were at most each bound; the last entry is all of them."""
        return list(accumulate(self.counts[labels]))


class PrefetchMetrics:
    """One prefetcher's numbers.  The model thread writes them, any thread may read."""

    def __init__(self) -> None:
        self.steps = Counter("obmm_prefetch_steps", "Drained or cancelled steps.", ("phase", "result"))
        self.rows = Counter("obmm_rows", "Rows gathered.", ("table", "path"))
        self.bytes = Counter("obmm_bytes", "Bytes gathered.", ("table", "path"))
        self.gather = Histogram(
            "obmm_gather_seconds", "A gather from submission to its end.", ("table", "path", "tokens")
        )
        self.unique = Histogram(
            "obmm_unique_rows_ratio",
            "Rows read per row asked for: less than 1 where repeats are read once, or come from the hot-row cache.",
            ("table",),
        )
        self.attach = Histogram("obmm_attach_seconds", "Mapping, checking and measuring a store.", ("region",))
        self.h2d = Histogram("obmm_h2d_seconds", "A copy to the device, as the device measured it.", ("layer",))
        self.hash = Histogram("obmm_hash_seconds", "Hashing, recorded by the engine.", ("where",))
        self.blocked = Histogram("obmm_blocked_seconds", "Time in consume.", ("layer",))
        self.hidden = Gauge("obmm_hidden_ratio", "1 - blocked / gather of the last step.", ("layer",))
        self.unused = Counter("obmm_unused_prefetch", "Layers gathered for nothing.", ("reason",))
        self.sync_fallback = Counter("obmm_sync_fallback", "Layers gathered inside consume.", ("reason",))
        self.zero_rows = Counter("obmm_zero_rows", "Rows replaced by zeros.", ("table", "reason"))
        self.hot_hits = Counter("obmm_hot_cache_hits", "Rows taken from the hot-row cache.", ("table",))
        self.hot_misses = Counter("obmm_hot_cache_misses", "Rows that the hot-row cache did not have.", ("table",))
        self.hot_bytes = Gauge("obmm_hot_cache_bytes", "Memory of the hot-row cache.", ("table",))
        self.errors = Counter("obmm_errors", "Failed gathers and refused batches.", ("kind",))
        self.slots_in_use = Gauge("obmm_slots_in_use", "Staging slots that hold a step.", ("layer",))
        self.slots_abandoned = Gauge("obmm_slots_abandoned", "Slots given up to a late gather.", ("layer",))
        self.mapping_state = Gauge(
            "obmm_mapping_state", "0 closed, 1 half-open, 2 open (circuit breaker).", ("region",)
        )
        self.generation = Gauge("obmm_generation", "Content version at the last begin.", ("region",))
        self.heartbeat_age = Gauge(
            "obmm_heartbeat_age_seconds",
            "Since the owner was last heard from: its lease or its heartbeat.",
            ("region",),
        )

    def watch_region(self, store: RowSource) -> None:
        """Between rooms: the region is `store`'s from now on."""
        self.attach.observe(store.region, value=store.attach_seconds)
        for family in (self.mapping_state, self.generation, self.heartbeat_age):
            family.forget()
        self.heartbeat_age.watch(store.region, source=lambda: store.heartbeat_age)

    def watch_hot(self, store: RowSource) -> None:
        """Between rooms: show the hot-row caches of `store`, in place of an earlier store's."""
        watched = (self.hot_hits, self.hot_misses, self.rows, self.bytes)
        for family in watched:
            family.settle()
        self.hot_bytes.forget()
        for table, hot in store.hot.items():
            row_bytes, label = store.tables[table].row_bytes, str(table)
            self.hot_hits.watch(label, source=partial(getattr, hot, "hits"))
            self.hot_misses.watch(label, source=partial(getattr, hot, "misses"))
            self.hot_bytes.watch(label, source=partial(getattr, hot, "nbytes"))
            self.rows.watch(label, "cache", source=partial(getattr, hot, "hits"))
            self.bytes.watch(label, "cache", source=partial(_bytes_of, hot, row_bytes))

    def families(self) -> list[Counter | Gauge | Histogram]:
        """All numbers, each with its name, kind, labels and help."""
        return [family for family in vars(self).values() if isinstance(family, Counter | Gauge | Histogram)]


def _bytes_of(hot: Hot, row_bytes: int) -> int:
    return hot.hits * row_bytes


def token_bucket(n_tokens: int) -> str:
    """The smallest power of two that holds `n_tokens`: a label of few values."""
    return str(1 << max(0, n_tokens - 1).bit_length()) if n_tokens else "0"
