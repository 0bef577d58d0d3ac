# SPDX-License-Identifier: Apache-2.0
"""A call of a library and the note of its result, with no interrupt in between.

Python raises out of signal handlers in the main thread only, after any instruction.  So a call of that thread that makes
or removes something is made, and noted, on a thread of its own; an interrupt of the waiting one comes through afterwards.

The waiting thread trusts neither `threading.Thread.start` nor `join`: an interrupt inside of them leaves it unknown
whether the thread began, and one of Python 3.11 in `join` makes a running thread count as ended.
"""

from __future__ import annotations

import _thread
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def undisturbed(work: Callable[[], T]) -> T:
    """What `work` returns or raises; a KeyboardInterrupt is raised when it has ended, and then it *has* ended."""
    if threading.get_ident() != threading.main_thread().ident:
        return work()
    call = _Call(work)
    interrupt: BaseException | None = None
    while not call.over:
        try:
            call.go_on()
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return call.result()


def joined(thread: threading.Thread, timeout: float | None = None) -> bool:
    """Wait until `thread` ends, at most `timeout` seconds -> whether it has ended.

    An interrupt is raised afterwards: in the middle of `Thread.join` it would let a thread that runs count as ended.
    """
    undisturbed(lambda: thread.join(timeout))
    return not thread.is_alive()


def is_interrupt(error: BaseException) -> bool:
    """Whether `error` is the program's own interrupt: such come in the main thread only, and are nobody else's to keep."""
    return isinstance(error, KeyboardInterrupt) and threading.get_ident() == threading.main_thread().ident


class _Call(Generic[T]):
    """One call on a thread of its own, whatever interrupts the one that waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._turns = itertools.count()
        self.over = False
        self._answer: T | None = None
        self._error: BaseException | None = None
        self._running = _thread.allocate_lock()
        self._running.acquire()
        self._began = False

    def go_on(self) -> None:
        """Begin it, unless it is known to have begun; wait for its end.  Again after an interrupt, until it is over."""
        if not self._began:
            try:
                _thread.start_new_thread(self._run, ())
                self._began = True  # else it is begun again: one of them goes on
            except RuntimeError:  # none can be started: a limit, or the interpreter's end
                self._run()
        while not self.over:
            self._running.acquire()

    def _run(self) -> None:
        if next(self._turns):
            return  # it was begun twice
        if (trace := threading.gettrace()) is not None:
            sys.settrace(trace)
        try:
            self._answer = self._work()
        except BaseException as error:
            self._error = error
        finally:
            _forget_this_thread()
            self.over = True
            self._running.release()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]


def _forget_this_thread() -> None:
    """`threading.current_thread` noted it as a dummy, which Python 3.11 keeps for ever."""
    active: dict[int, threading.Thread] = getattr(threading, "_active", {})
    if isinstance(active.get(threading.get_ident()), threading._DummyThread):
        active.pop(threading.get_ident(), None)
