# SPDX-License-Identifier: Apache-2.0
"""The wait of a loop that must not end: one that fails is repeated, and one that fails for ever is an error."""

from __future__ import annotations

import selectors
import time

from obmm.background import BackgroundLogger
from obmm.undisturbed import is_interrupt

STUMBLES = 20  # failed waits in a row, after which there is no point in going on


class Waiter(selectors.DefaultSelector):
    """The system's selector with `wait`."""

    def __init__(self, log: BackgroundLogger) -> None:
        super().__init__()
        self._log = log
        self._stumbles = 0

    def wait(self, longest: float) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready.  A failure is logged and followed by a pause; after `STUMBLES` in a row it is raised."""
        try:
            ready = self.select(longest)
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._stumbles += 1
            if self._stumbles >= STUMBLES:
                raise
            self._log.error("waiting for connections failed: %r", error)
            time.sleep(0.005 * self._stumbles)
            return []
        self._stumbles = 0
        return ready
