# SPDX-License-Identifier: Apache-2.0
"""What may block, out of the way of who must not: a bounded queue with a thread, and loggers that go through it.

A loop that serves others must not wait for a log file, a pipe without a reader, or a slow log handler.
It puts its lines here; one thread hands them on.  A full queue drops lines, and counts them: `Background.dropped`.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from obmm.closing import in_forked_children

QUEUED = 4096
AT_EXIT_S = 1.0
BURST = 50.0  # lines about strangers at once ...
PER_SECOND = 5.0  # ... and then, each second


class Background:
    """Calls that wait for one thread, at most ``most`` of them.  `put` never blocks and never raises."""

    def __init__(self, name: str, most: int = QUEUED) -> None:
        self.dropped = 0
        self._name = name
        self._most = most
        self._calls: deque[Callable[[], object]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        in_forked_children(self._forked)
        atexit.register(self.flush, AT_EXIT_S)

    def put(self, call: Callable[[], object]) -> bool:
        """Have the thread make ``call``; False, and counted, when the queue is full or no thread can be had."""
        taken = False
        try:
            with self._wake:
                if len(self._calls) < self._most:
                    if self._thread is None:
                        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                        try:
                            self._thread.start()
                        except BaseException:
                            self._thread = None
                            raise
                    self._calls.append(call)
                    taken = True
                    self._wake.notify()
        except Exception:  # no thread, or no memory, to be had
            pass
        finally:
            if not taken:
                self.dropped += 1
        return taken

    def flush(self, timeout: float) -> bool:
        """Wait until everything was handed on; False after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._wake:
            while self._calls or self._busy:
                left = deadline - time.monotonic()
                if left <= 0 or threading.current_thread() is self._thread:
                    return False
                self._wake.wait(min(left, 0.1))
        return True

    def _run(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                while not self._calls:
                    self._wake.wait()
                call = self._calls.popleft()
                self._busy = True
            try:
                call()
            except BaseException:  # whose line it was cannot be told: it must not be told twice either
                self.dropped += 1
            del call

    def _forked(self) -> None:
        """The thread did not come along, and it may have had the lock."""
        self._wake = threading.Condition()
        self._thread = None
        self._busy = False
        self._calls.clear()


class Rate:
    """At most ``burst`` at once, then ``per_second``; what is too much is counted (`refused`)."""

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0
        self._burst = self._tokens = burst
        self._per_second = per_second
        self._clock = clock
        self._filled = clock()

    def allows(self) -> bool:
        """Whether one more may be."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        if self._tokens < 1:
            self.refused += 1
            return False
        self._tokens -= 1
        return True


LINES = Background("obmm-log")
"""All log lines of loops, in their order."""


class BackgroundLogger:
    """A logger for a loop: the same calls as `logging.Logger`'s, made by the thread of `LINES`.

    `logger` is its name, or the logger: who makes one for each object looks it up once, when its module is loaded, because an
    interrupt inside of `logging.getLogger` can leave the lock of all loggers held.

    `stranger` is for lines that any host on the network can cause: beyond `BURST` they are counted and not written.
    """

    def __init__(
        self,
        logger: str | logging.Logger,
        lines: Background | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._lines = LINES if lines is None else lines
        self._strangers = Rate(BURST, PER_SECOND, clock)
        self._told = 0

    @property
    def suppressed(self) -> int:
        """Lines about strangers that were too many."""
        return self._strangers.refused

    @property
    def dropped(self) -> int:
        """Lines dropped because the queue was full."""
        return self._lines.dropped

    def debug(self, text: str, *arguments: object) -> None:
        self._put(logging.DEBUG, text, arguments)

    def info(self, text: str, *arguments: object) -> None:
        self._put(logging.INFO, text, arguments)

    def warning(self, text: str, *arguments: object) -> None:
        self._put(logging.WARNING, text, arguments)

    def error(self, text: str, *arguments: object) -> None:
        self._put(logging.ERROR, text, arguments)

    def exception(self, text: str, *arguments: object) -> None:
        self._put(logging.ERROR, text, arguments, trace=True)

    def audit(self, level: int, text: str, extra: Mapping[str, object]) -> None:
        """A line with fields for programs: attributes of the record."""
        self._put(level, text, (), extra=extra)

    def stranger(self, text: str, *arguments: object) -> None:
        """A warning about a peer that has not proved who it is."""
        if not self._strangers.allows():
            return
        untold, self._told = self.suppressed - self._told, self.suppressed
        if untold:
            self.warning("%d more lines like these were not written", untold)
        self.warning(text, *arguments)

    def _put(
        self,
        level: int,
        text: str,
        arguments: tuple[object, ...],
        *,
        trace: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        logger = self._logger
        if not logger.isEnabledFor(level):
            return
        try:
            # made here: time and thread are the loop's, and arguments that change later are already text
            record = logger.makeRecord(
                logger.name,
                level,
                "(background)",
                0,
                text % arguments if arguments else text,
                (),
                sys.exc_info() if trace else None,
                None,
                extra,
            )
            if record.exc_info:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
                record.exc_info = None  # frames hold what the loop had in its hands
        except Exception:
            self._lines.dropped += 1
            return
        self._lines.put(lambda: logger.handle(record))
