# SPDX-License-Identifier: Apache-2.0
"""When to stop asking a sick peer (Engram specification 11.3, rule 6)."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable


class BreakerState(enum.Enum):
    """Whether gathers run (Engram specification 11.3-6).

    >>> obmm.prefetch.BreakerState.CLOSED.name
    'CLOSED'
    """

    CLOSED = "closed"
    """Gathers run."""
    OPEN = "open"
    """Gathers are refused."""
    HALF_OPEN = "half-open"
    """Gathers are refused while one probe is out."""


class CircuitBreaker:
    """Opens after `threshold` failures in a row or on `trip`; a probe that came back whole closes it.

    It runs no thread: the owner asks `probe_due` when it passes by, sends the probe and reports how it went.

    `probe_interval`: seconds between probes; `clock`: gives seconds.

    >>> now = [0.0]
    >>> breaker = obmm.prefetch.CircuitBreaker(threshold=2, probe_interval=1.0, clock=lambda: now[0])
    >>> breaker.failed("no answer"), breaker.succeeded(), breaker.failed("no answer"), breaker.failed("no answer")
    (None, None, None, None)
    >>> breaker.state.name, breaker.probe_due()
    ('OPEN', False)
    >>> now[0] = 1.0
    >>> breaker.probe_due(), breaker.probing(), breaker.probe_failed()
    (True, None, None)
    >>> now[0] = 2.0
    >>> breaker.probing(), breaker.probe_succeeded(), breaker.state.name
    (None, None, 'CLOSED')
    >>> breaker.trip("the lease is lost")
    """

    def __init__(
        self, threshold: int = 3, probe_interval: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = threshold
        self._interval = probe_interval
        self._clock = clock
        self._failures = 0
        self._next_probe = 0.0
        self.state = BreakerState.CLOSED
        self.reason = ""

    def succeeded(self) -> None:
        """A gather came back with rows."""
        if self.state is BreakerState.CLOSED:
            self._failures = 0

    def failed(self, reason: str) -> None:
        """A gather failed, for that `reason`."""
        self._failures += 1
        if self._failures >= self._threshold:
            self.trip(f"{self._failures} failed gathers in a row, the last one: {reason}")

    def trip(self, reason: str) -> None:
        """Open at once; what is open keeps its first reason and its probe."""
        if self.state is BreakerState.CLOSED:
            self.state = BreakerState.OPEN
            self.reason = reason
            self._next_probe = self._clock() + self._interval

    def probe_due(self) -> bool:
        """Whether it is time to send a probe."""
        return self.state is BreakerState.OPEN and self._clock() >= self._next_probe

    def probing(self) -> None:
        """A probe was sent."""
        self.state = BreakerState.HALF_OPEN

    def probe_succeeded(self) -> None:
        """It came back whole: gathers run again."""
        self.state = BreakerState.CLOSED
        self.reason = ""
        self._failures = 0

    def probe_failed(self) -> None:
        """It did not: the next one is due after the interval."""
        self.state = BreakerState.OPEN
        self._next_probe = self._clock() + self._interval
