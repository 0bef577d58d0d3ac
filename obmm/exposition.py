# SPDX-License-Identifier: Apache-2.0
"""Families of metrics for Prometheus, through the `prometheus-client` package (extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = float | Mapping[Any, float]
"""One value, or one for each tuple of a family's own labels."""


class Families:
    """Makes families whose names begin with `prefix`; every metric carries `constant_labels`.

    ImportError without the package.
    """

    def __init__(self, prefix: str = "", constant_labels: Mapping[str, str] | None = None) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ImportError("exposing metrics needs prometheus-client: pip install 'obmm[metrics]'") from error
        self.core: Any = core
        self.names, self.values = list(constant_labels or {}), list((constant_labels or {}).values())
        self._prefix = prefix

    def counter(self, name: str, text: str, values: Values, *labels: str) -> Any:
        """What only grows."""
        return self._filled(self.core.CounterMetricFamily, name, text, values, labels)

    def gauge(self, name: str, text: str, values: Values, *labels: str) -> Any:
        """What goes up and down."""
        return self._filled(self.core.GaugeMetricFamily, name, text, values, labels)

    def summary(self, name: str, text: str, count: int, total: float) -> Any:
        """How many there were, and the sum of what each of them was."""
        family = self.core.SummaryMetricFamily(self._prefix + name, text, labels=self.names)
        family.add_metric(self.values, count, total)
        return family

    def _filled(self, kind: Any, name: str, text: str, values: Values, labels: tuple[str, ...]) -> Any:
        family = kind(self._prefix + name, text, labels=[*self.names, *labels])
        for key, value in values.items() if isinstance(values, Mapping) else (((), values),):
            family.add_metric([*self.values, *key], value)
        return family
