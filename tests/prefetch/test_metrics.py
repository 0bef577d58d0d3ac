# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_source import MemorySource, MemoryTable
from played_device import PlayedDevice
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from obmm.prefetch import (
    CircuitBreaker,
    Deadlines,
    EngramPrefetcher,
    PrefetchLayer,
    PrefetchMetrics,
    PrometheusCollector,
)
from obmm.prefetch.metrics import BUCKETS, Counter, Gauge, Histogram, token_bucket
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec


def test_prometheus_shows_what_the_prefetcher_counted() -> None:
    source = MemorySource({"t": MemoryTable(100, 264)})
    with EngramPrefetcher(source, [PrefetchLayer(1, "t", 4)], 8, deadlines=Deadlines(decode=10)) as prefetcher:
        registry = CollectorRegistry()
        registry.register(PrometheusCollector(prefetcher.metrics, {"rank": "0"}))
        for _ in range(5):
            prefetcher.begin(np.zeros((3, 1, 4), np.int64), 3)
            prefetcher.start()
            prefetcher.consume(1)
            prefetcher.drain()
        families = {
            family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())
        }
    source.close()
    (rows,) = families["obmm_rows"].samples
    assert rows.name == "obmm_rows_total"
    assert rows.labels == {"rank": "0", "table": "t", "path": "cacheable"}
    assert rows.value == 5 * 12
    assert families["obmm_bytes"].samples[0].value == 5 * 12 * 264
    assert families["obmm_prefetch_steps"].samples[0].labels == {"rank": "0", "phase": "decode", "result": "ok"}
    blocked = families["obmm_blocked_seconds"].samples
    assert [s.value for s in blocked if s.name.endswith("_count")] == [5]
    assert [s.value for s in blocked if s.labels.get("le") == "+Inf"] == [5]
    assert families["obmm_generation"].samples[0].value == 2
    assert families["obmm_generation"].samples[0].labels == {"rank": "0", "region": "memory"}
    assert attach_labels(families) == {"rank": "0", "region": "memory"}
    unique = families["obmm_unique_rows_ratio"].samples
    assert [s.value for s in unique if s.name.endswith("_sum")] == [5]  # this source reads repeats again
    attach = families["obmm_attach_seconds"].samples
    assert [s.value for s in attach if s.name.endswith("_sum")] == [0.25]


def attach_labels(families: dict[str, Any]) -> dict[str, str]:
    return {key: value for key, value in families["obmm_attach_seconds"].samples[0].labels.items() if key != "le"}


def listed() -> dict[str, tuple[str, str]]:
    """Name -> (type, labels) in the table of docs/prefetch.md."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "prefetch.md").read_text()
    rows = re.findall(r"^\| `(obmm_\w+)` \| (\w+) \| ([\w, ]+) \|", page, re.MULTILINE)
    return {name: (kind, labels) for name, kind, labels in rows}


SPECIFIED = {
    "obmm_prefetch_steps_total": ("counter", "phase, result"),
    "obmm_rows_total": ("counter", "table, path"),
    "obmm_bytes_total": ("counter", "table, path"),
    "obmm_unique_rows_ratio": ("histogram", "table"),
    "obmm_hash_seconds": ("histogram", "where"),
    "obmm_gather_seconds": ("histogram", "table, path, tokens"),
    "obmm_h2d_seconds": ("histogram", "layer"),
    "obmm_blocked_seconds": ("histogram", "layer"),
    "obmm_hidden_ratio": ("gauge", "layer"),
    "obmm_unused_prefetch_total": ("counter", "reason"),
    "obmm_sync_fallback_total": ("counter", "reason"),
    "obmm_zero_rows_total": ("counter", "table, reason"),
    "obmm_errors_total": ("counter", "kind"),
    "obmm_hot_cache_hits_total": ("counter", "table"),
    "obmm_hot_cache_misses_total": ("counter", "table"),
    "obmm_hot_cache_bytes": ("gauge", "table"),
    "obmm_slots_in_use": ("gauge", "layer"),
    "obmm_slots_abandoned": ("gauge", "layer"),
    "obmm_mapping_state": ("gauge", "region"),
    "obmm_generation": ("gauge", "region"),
    "obmm_heartbeat_age_seconds": ("gauge", "region"),
    "obmm_attach_seconds": ("histogram", "region"),
}
"""Engram specification 12."""


def test_what_is_exposed_is_what_is_specified_and_documented() -> None:
    """Every name, type and label, and nothing else (Engram specification 12)."""
    metrics = PrefetchMetrics()
    for family in metrics.families():
        labels = tuple(f"some {label}" for label in family.labels)
        if isinstance(family, Counter):
            family.add(*labels)
        elif isinstance(family, Gauge):
            family.set(*labels, to=1)
        else:
            family.observe(*labels, value=0.5)
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    text = generate_latest(registry).decode()
    exposed = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        sample = re.search(rf"^{name}(?:_bucket)?{{(.*)}} ", text, re.MULTILINE)
        assert sample is not None, name
        exposed[name] = kind, set(re.findall(r'(\w+)="', sample[1])) - {"le"}
    assert exposed == told(SPECIFIED)
    assert told(listed()) == exposed


def told(families: dict[str, tuple[str, str]]) -> dict[str, tuple[str, set[str]]]:
    return {name: (kind, set(labels.split(", "))) for name, (kind, labels) in families.items()}


def test_every_metric_of_the_prefetcher_is_counted() -> None:
    """A family that nothing writes to is a name without a number."""
    source = MemorySource({"t": MemoryTable(100, 264, neutral_zero=True)}, heartbeat_age=0.5)
    device = PlayedDevice()
    breaker = CircuitBreaker(threshold=100)
    layers = [PrefetchLayer(1, "t", 4)]
    slow = Deadlines(decode=10)
    with EngramPrefetcher(source, layers, 8, device=device, policy="zero", deadlines=slow, breaker=breaker) as made:

        def step() -> None:
            made.begin(np.zeros((3, 1, 4), np.int64), 3)
            made.start()
            made.consume(1)
            device.run()
            made.drain()

        step()
        source.flip = True
        step()
        source.flip = False
        made.begin(np.zeros((3, 1, 4), np.int64), 3)
        made.consume(1)  # not started
        device.run()
        made.drain()
        made.begin(np.zeros((3, 1, 4), np.int64), 3)
        made.start()
        made.cancel()
        made.metrics.hash.observe("host", value=1e-5)  # the engine's to record
        silent = {family.name for family in made.metrics.families() if not samples(family)}
        assert silent == {"obmm_hot_cache_hits", "obmm_hot_cache_misses", "obmm_hot_cache_bytes"}  # there is none here
        assert made.metrics.heartbeat_age.values == {("memory",): 0.5}
    source.close()


def samples(family: Counter | Gauge | Histogram) -> Any:
    return family.counts if isinstance(family, Histogram) else family.values


def test_another_store_takes_the_place_of_the_region() -> None:
    first, second = (
        MemorySource({"t": MemoryTable(100, 264)}, region=name, heartbeat_age=age)
        for name, age in (("first", 0.5), ("second", None))
    )
    with EngramPrefetcher(first, [PrefetchLayer(1, "t", 4)], 8, deadlines=Deadlines(decode=10)) as prefetcher:
        metrics = prefetcher.metrics
        prefetcher.begin(np.zeros((3, 1, 4), np.int64), 3)
        prefetcher.cancel()
        assert metrics.generation.values == {("first",): 2}
        prefetcher.attach(second)
        assert not metrics.heartbeat_age.values
        prefetcher.begin(np.zeros((3, 1, 4), np.int64), 3)
        prefetcher.cancel()
        assert metrics.generation.values == {("second",): 2}
        assert metrics.mapping_state.values == {("second",): 0}
        assert set(metrics.attach.counts) == {("first",), ("second",)}
    first.close()
    second.close()


def shown(prefetcher: EngramPrefetcher) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(prefetcher.metrics))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        f"{sample.name} {','.join(sorted(sample.labels.values()))}": sample.value
        for f in families
        for sample in f.samples
    }


def cached_store(first: int = 0) -> RowStore:
    """A table of 500 rows of 264 bytes with a cache of 64, of which rows `first` to `first` + 3 were gathered twice."""
    spec = TableSpec("t", 500, 264, neutral_zero=True)
    memory = bytearray(4096 + spec.end)
    LocalMemory.format(memory, generation=3)
    owner = RowStore.attach(LocalMemory(memory, header=True), Manifest((spec,)), verify="none")
    owner.populate("t", np.zeros((500, 264), np.uint8))
    manifest = owner.publish()
    store = RowStore.attach(LocalMemory(memory, header=True), manifest, plan=False, hot_rows=64)
    for _ in range(2):
        store.gather("t", np.arange(first, first + 4))
    return store


def test_the_hot_row_cache_is_shown_with_what_it_did_for_this_prefetcher() -> None:
    store = cached_store()
    with EngramPrefetcher(store, [PrefetchLayer(1, "t", 4)], 8, deadlines=Deadlines(decode=10)) as prefetcher:

        def step(first: int) -> None:
            prefetcher.begin(np.arange(first, first + 4).reshape(1, 1, 4), 1)
            prefetcher.start()
            prefetcher.consume(1)
            prefetcher.drain()

        step(2)
        step(2)
        numbers = shown(prefetcher)
        assert numbers["obmm_hot_cache_hits_total t"] == 2 + 4
        assert numbers["obmm_hot_cache_misses_total t"] == 2
        assert numbers["obmm_hot_cache_bytes t"] == store.hot["t"].nbytes
        assert numbers["obmm_rows_total cache,t"] == 6
        assert numbers["obmm_bytes_total cache,t"] == 6 * 264
        assert numbers["obmm_rows_total shm,t"] == 2
        # another store: what was counted stays, what the new one did before is not ours
        prefetcher.attach(cached_store(first=100))
        step(101)
        numbers = shown(prefetcher)
        assert numbers["obmm_hot_cache_hits_total t"] == 6 + 3
        assert numbers["obmm_hot_cache_misses_total t"] == 2 + 1
        source = MemorySource({"t": MemoryTable(500, 264)})
        prefetcher.attach(source)
        step(2)
        numbers = shown(prefetcher)
        assert numbers["obmm_hot_cache_hits_total t"] == 9
        assert "obmm_hot_cache_bytes t" not in numbers
    source.close()


def test_without_a_cache_none_is_shown() -> None:
    source = MemorySource({"t": MemoryTable(100, 264)})
    with EngramPrefetcher(source, [PrefetchLayer(1, "t", 4)], 8) as prefetcher:
        assert not [name for name in shown(prefetcher) if "hot_cache" in name or " cache," in name]
    source.close()


def test_buckets_run_from_a_microsecond_to_a_second_four_per_decade() -> None:
    assert len(BUCKETS) == 25
    assert BUCKETS[0] == pytest.approx(1e-6)
    assert BUCKETS[4] == pytest.approx(1e-5)
    assert BUCKETS[-1] == pytest.approx(1.0)


def test_a_histogram_counts_each_value_once() -> None:
    histogram = Histogram("h", "", ())
    for seconds in (0, 1e-6, 1.5e-6, 0.5, 3.0):
        histogram.observe(value=seconds)
    cumulative = histogram.cumulative(())
    assert cumulative[0] == 2
    assert cumulative[1] == 3
    assert cumulative[-2:] == [4, 5]
    assert histogram.sums[()] == pytest.approx(3.5000025)


@pytest.mark.parametrize(("tokens", "bucket"), [(0, "0"), (1, "1"), (2, "2"), (3, "4"), (64, "64"), (65, "128")])
def test_token_buckets_are_powers_of_two(tokens: int, bucket: str) -> None:
    assert token_bucket(tokens) == bucket


def test_importing_the_package_loads_no_optional_one() -> None:
    code = (
        "import sys, obmm.prefetch\n"
        "assert not {'prometheus_client', 'torch', 'tokenizers'} & set(sys.modules), 'imported eagerly'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
