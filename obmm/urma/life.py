# SPDX-License-Identifier: Apache-2.0
"""What all objects of the library have in common: one owner, an ordered end, nothing in a forked child."""

from __future__ import annotations

import abc

from obmm.closing import Closing, tell_of_forks
from obmm.undisturbed import undisturbed
from obmm.urma.calls import Calls


class Owned(Closing):
    """An object of the library that this one owns."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._open = True
        tell_of_forks(self)

    def check(self) -> None:
        """ClosedError once closed, and in a forked child."""
        self._check_open()

    def close(self) -> None:
        """Give it back to the library.  Idempotent; can be repeated when it failed.  Nothing in a forked child."""
        if self._open:
            undisturbed(self._close)

    def _close(self) -> None:
        self._end()
        self._open = False

    @abc.abstractmethod
    def _end(self) -> None:
        """Give back what is left of it."""
