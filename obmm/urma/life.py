# SPDX-License-Identifier: Apache-2.0
"""What all objects of the library have in common: one owner, an ordered end, nothing in a forked child."""

from __future__ import annotations

import abc
import errno
import threading
import time
from collections.abc import Sequence
from typing import Final

from obmm.closing import Closing, Living, tell_of_forks
from obmm.errors import MappingBusyError
from obmm.undisturbed import undisturbed
from obmm.urma.calls import Calls

_PATIENCE: Final = 1.0
_PAUSE: Final = 5e-4


class Transfer:
    """A transfer under way in this thread.  Whoever it uses knows it by weak reference."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Owned(Closing):
    """An object of the library that this one owns.  Any number of threads may close it: one of them does."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._transfers: Living[Transfer] = Living()
        self._one_end = threading.RLock()
        self._ending = False
        """Its end has begun: nothing new is made from it."""
        self._open = True
        tell_of_forks(self)

    def check(self) -> None:
        """ClosedError once closed, and in a forked child."""
        self._check_open()

    def close(self) -> None:
        """Give it back to the library.  Idempotent; can be repeated when it failed.  Nothing in a forked child."""
        if self._open:
            self._forget_own_transfers()
            undisturbed(self._close)

    def _parts(self) -> Sequence[Owned]:
        """What is closed with it."""
        return ()

    def _forget_own_transfers(self) -> None:
        """A thread that closes is in no transfer, even if an interrupt came in its last line and the traceback lives."""
        for transfer in self._transfers.snapshot():
            if transfer.thread == threading.get_ident():
                self._transfers.discard(transfer)
        for part in self._parts():
            part._forget_own_transfers()

    def _close(self) -> None:
        with self._one_end:
            if not self._open:
                return  # another thread was faster
            try:
                self._ending = True
                self._end()
                self._open = False
            finally:
                self._ending = not self._open

    def _check_usable(self) -> None:
        """As `check`, and ClosedError also while another thread closes it; with the context's lock."""
        self._check_open()
        if self._ending:
            raise self._is_closed()

    def _wait_for_transfers(self) -> None:
        """MappingBusyError when one of them is still under way after a second."""
        deadline = time.monotonic() + _PATIENCE
        while self._transfers.snapshot():
            if time.monotonic() > deadline:
                raise MappingBusyError(
                    errno.EBUSY, f"{self!r}: a transfer is under way; fix: close it again when that has ended"
                )
            time.sleep(_PAUSE)

    @abc.abstractmethod
    def _end(self) -> None:
        """Give back what is left of it."""
