# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus, through the `prometheus-client` package (extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from obmm.exposition import Families
from obmm.prefetch.metrics import BUCKETS, Counter, Histogram, PrefetchMetrics


class PrometheusCollector:
    """Register it once per prefetcher: ``REGISTRY.register(PrometheusCollector(prefetcher.metrics))``.

    It reads the numbers when it is scraped; recording costs nothing extra.  `constant_labels` tell prefetchers apart.

    `metrics`: of a prefetcher.  ImportError without the package (extra ``metrics``).

    >>> try:
    ...     collector = obmm.prefetch.PrometheusCollector(obmm.prefetch.PrefetchMetrics(), {"rank": "0"})
    ...     print(len(list(collector.collect())) > 10)
    ... except ImportError:
    ...     print("True, with the package prometheus_client installed")
    True...
    """

    def __init__(self, metrics: PrefetchMetrics, constant_labels: dict[str, str] | None = None) -> None:
        self._metrics = metrics
        self._families = Families(constant_labels=constant_labels)

    def collect(self) -> Iterator[Any]:
        """The families of metrics, as prometheus_client wants them."""
        show = self._families
        for family in self._metrics.families():
            if isinstance(family, Histogram):
                shown = show.core.HistogramMetricFamily(family.name, family.help, labels=[*show.names, *family.labels])
                for key in list(family.counts):
                    bounds = [*(f"{bound:.3g}" for bound in BUCKETS), "+Inf"]
                    buckets = list(zip(bounds, family.cumulative(key), strict=True))
                    shown.add_metric([*show.values, *key], buckets, family.sums[key])
                yield shown
            else:
                kind = show.counter if isinstance(family, Counter) else show.gauge
                yield kind(family.name, family.help, dict(family.values), *family.labels)
