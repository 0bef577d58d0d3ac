# SPDX-License-Identifier: Apache-2.0
"""Calls from any thread into the one thread of an event loop."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar

from obmm.errors import ClosedError
from obmm.exchange.errors import DeadlineError

T = TypeVar("T")


class Mailbox:
    """Functions wait here for the loop; `fileno` is readable while there are any."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def post(self, call: Callable[[], Any]) -> Future[Any]:
        """Have the loop run ``call``; its future is cancelled if the loop has ended."""
        future: Future[Any] = Future()
        with self._mutex:
            if self._fd < 0:
                future.cancel()
                return future
            self._calls.append((call, future))
            os.eventfd_write(self._fd, 1)
        return future

    def run(self) -> None:
        """In the loop's thread: run what waits.  A call that returns a future of its own answers when that does."""
        with self._mutex:
            calls, self._calls = self._calls, deque()
            if calls:
                os.eventfd_read(self._fd)
        for call, future in calls:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                if isinstance(result, Future):
                    result.add_done_callback(partial(_copy, future))
                else:
                    future.set_result(result)

    def abandon(self) -> None:
        """In a forked child, where some other thread may have had the mutex for ever."""
        self._mutex = threading.Lock()
        self.close()

    def close(self) -> None:
        """Cancel what waits and everything that comes later."""
        with self._mutex:
            calls, self._calls = self._calls, deque()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        for _, future in calls:
            future.cancel()


def _copy(outer: Future[Any], inner: Future[Any]) -> None:
    error = inner.exception()
    if error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())


def result_of(who: object, future: Future[T], timeout: float, hint: str = "") -> T:
    """What the loop of ``who`` answered; ClosedError when the loop has ended, DeadlineError when it does not answer."""
    try:
        return future.result(max(0.0, timeout))
    except CancelledError:
        raise ClosedError.of(who) from None
    except TimeoutError as error:
        if isinstance(error, DeadlineError):
            raise
        raise DeadlineError(f"{who!r} did not answer within {timeout:.0f} s{hint}") from None
