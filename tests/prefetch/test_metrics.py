# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from memory_source import MemorySource, MemoryTable
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, PrometheusCollector
from obmm.prefetch.metrics import BUCKETS, Histogram, token_bucket


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
    unique = families["obmm_unique_rows_ratio"].samples
    assert [s.value for s in unique if s.name.endswith("_sum")] == [5]  # this source reads repeats again
    attach = families["obmm_attach_seconds"].samples
    assert [s.value for s in attach if s.name.endswith("_sum")] == [0.25]


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
