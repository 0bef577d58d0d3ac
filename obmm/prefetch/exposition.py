# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus, through the `prometheus-client` package (extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from obmm.prefetch.metrics import BUCKETS, Counter, Histogram, PrefetchMetrics


class PrometheusCollector:
    """Register it once per prefetcher: ``REGISTRY.register(PrometheusCollector(prefetcher.metrics))``.

    It reads the numbers when it is scraped; recording costs nothing extra.  `constant_labels` tell prefetchers apart.
    """

    def __init__(self, metrics: PrefetchMetrics, constant_labels: dict[str, str] | None = None) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ImportError("exposing metrics needs prometheus-client: pip install prometheus-client") from error
        self._core = core
        self._metrics = metrics
        constant = constant_labels or {}
        self._names = list(constant)
        self._values = list(constant.values())

    def collect(self) -> Iterator[Any]:
        for family in self._metrics.families():
            labels = [*self._names, *family.labels]
            shown: Any
            if isinstance(family, Histogram):
                shown = self._core.HistogramMetricFamily(family.name, family.help, labels=labels)
                for key in list(family.counts):
                    bounds = [*(f"{bound:.3g}" for bound in BUCKETS), "+Inf"]
                    buckets = list(zip(bounds, family.cumulative(key), strict=True))
                    shown.add_metric([*self._values, *key], buckets, family.sums[key])
            else:
                kind = self._core.CounterMetricFamily if isinstance(family, Counter) else self._core.GaugeMetricFamily
                shown = kind(family.name, family.help, labels=labels)
                for key, value in list(family.values.items()):
                    shown.add_metric([*self._values, *key], value)
            yield shown
