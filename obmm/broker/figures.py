# SPDX-License-Identifier: Apache-2.0
"""What a broker has answered, counted for a monitor."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any


class Answers:
    """How many answers of each kind; any thread may count."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, event: str, errno: str) -> None:
        """One more: ``granted`` or ``denied``, with the errno's name or ""."""
        with self._mutex:
            self._counts[event, errno] += 1

    def all(self) -> dict[tuple[str, str], int]:
        """(event, errno) -> how many since the start."""
        with self._mutex:
            return dict(self._counts)


class BrokerFigures:
    """A collector of `prometheus_client`: what ``obmm open-broker --metrics`` shows."""

    def __init__(
        self, answers: Callable[[], dict[tuple[str, str], int]], connections: Callable[[], int],
        dropped: Callable[[], dict[str, int]],
    ) -> None:  # fmt: skip
        self._answers = answers
        self._connections = connections
        self._dropped = dropped

    def describe(self) -> Iterator[Any]:
        """Nothing is asked before somebody looks."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """The figures of this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily("obmm_broker_connections", "open connections", value=self._connections())
        answers = CounterMetricFamily(
            "obmm_broker_answers", "requests by how they were answered", labels=["event", "errno"]
        )
        for (event, errno), count in sorted(self._answers().items()):
            answers.add_metric([event, errno], count)
        yield answers
        dropped = CounterMetricFamily(
            "obmm_broker_lines_dropped", "audit lines that were not written: no reader took them, or strangers cause too many",
            labels=["log"],
        )  # fmt: skip
        for log, count in self._dropped().items():
            dropped.add_metric([log], count)
        yield dropped
