# SPDX-License-Identifier: Apache-2.0
"""Calls from any thread into the one thread of an event loop."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar

from obmm.driver.descriptor import Descriptor
from obmm.errors import ClosedError
from obmm.exchange.errors import DeadlineError
from obmm.undisturbed import is_interrupt

T = TypeVar("T")


class Mailbox:
    """Functions wait here for the loop; `fileno` is readable while there are any."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._event = Descriptor.eventfd()
        self.ending = False
        """Somebody wants the loop to end; it looks at each of its turns."""

    def fileno(self) -> int:
        return self._event.fileno()

    def post(self, call: Callable[[], Any]) -> Future[Any]:
        """Have the loop run ``call``; its future is cancelled if the loop has ended."""
        future: Future[Any] = Future()
        with self._mutex:
            if self.fileno() < 0:
                future.cancel()
                return future
            self._event.ring()  # first: a call without a bell would wait for ever, and hold what it is made of
            self._calls.append((call, future))
        return future

    def end(self) -> None:
        """Have the loop end: for finalizers, which must hold little and may run in the middle of anything.

        Who has the mutex now rings the bell himself, or is the loop, which looks before it waits again.
        """
        self.ending = True
        if self._mutex._is_owned():  # type: ignore[attr-defined]  # this thread, in the middle of `post`
            return
        try:
            if self._mutex.acquire(blocking=False):
                self._event.ring()
        finally:  # an interrupt may have come with the mutex in hand
            try:  # noqa: SIM105 - the making of a `suppress` can be interrupted, with the mutex in hand
                self._mutex.release()
            except RuntimeError:  # somebody else has it
                pass

    def run(self) -> None:
        """In the loop's thread: run what waits.  A call that returns a future of its own answers when that does."""
        failure: BaseException | None = None
        with self._mutex:
            try:  # under the mutex, and first: a call that is posted now rings again
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.fileno())
            except BaseException as error:  # it stays readable, and the next turn finds nothing to do
                failure = error
            calls, self._calls = self._calls, deque()
        for call, future in calls:
            try:
                _answer(call, future)
            except KeyboardInterrupt as interrupt:
                failure = interrupt
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """In a forked child, where some other thread may have had the mutex for ever."""
        self._mutex = threading.RLock()
        self.close()

    def close(self) -> None:
        """Cancel what waits and everything that comes later."""
        with self._mutex:
            calls, self._calls = self._calls, deque()
            self._event.close()
        for _, future in calls:
            future.cancel()


def _answer(call: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
        if isinstance(result, Future):
            result.add_done_callback(partial(_copy, future))
        else:
            future.set_result(result)
    except BaseException as error:
        if not future.done():
            future.set_exception(error)
        if is_interrupt(error):
            raise


def _copy(outer: Future[Any], inner: Future[Any]) -> None:
    if outer.done():
        return
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
