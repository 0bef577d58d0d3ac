# SPDX-License-Identifier: Apache-2.0
"""Makes one system call, or one callback, of one thread fail.

A profile function sees every call of a function written in C before it is made; what it raises stands in place of the
call.  So *every* call into the system is found, in any module, and each can be made to fail in turn.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

# Functions of these modules go to the system; so do methods of sockets, selectors, files and TLS objects.
MODULES = {"posix", "_socket", "select", "fcntl", "_ssl", "_io", "time", "_thread"}
HARMLESS = {
    "monotonic",
    "time",
    "perf_counter",
    "perf_counter_ns",
    "get_ident",
    "fileno",
    "allocate_lock",
    "fspath",
    "getpid",
}
METHODS = {"socket", "epoll", "MemoryBIO", "_SSLSocket", "FileIO"}


def is_system_call(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    if name in HARMLESS:
        return False
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
    return module in MODULES or type(owner).__name__ in METHODS


class Injector:
    """In the thread that calls `arm`: the call number ``at`` (from 0) raises ``error``; `calls` names those seen."""

    def __init__(self, at: int, error: BaseException, spared: tuple[str, ...] = ()) -> None:
        self.at = at
        self.error = error
        self._spared = spared  # close(2), say: it closes also when it fails, and in here it would not
        self.calls: list[str] = []
        self.hit = ""
        self._disarmed = threading.Event()

    def arm(self) -> None:
        sys.setprofile(self._see)

    def disarm(self) -> None:
        sys.setprofile(None)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, armed while it runs in this thread."""

        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.arm()
            try:
                return call(*arguments, **options)
            finally:
                self.disarm()

        return wrapped

    def callback(self, name: str, call: Callable[[], Any]) -> Any:
        """Run a callback of a test's own, or fail in its place."""
        self._count(name)
        return call()

    def _see(self, frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and is_system_call(function) and function.__name__ not in self._spared:
            self._count(f"{frame.f_code.co_qualname}: {getattr(function, '__name__', '?')}")

    def _count(self, what: str) -> None:
        if self.hit:
            return
        self.calls.append(what)
        if len(self.calls) - 1 == self.at:
            self.hit = what
            raise type(self.error)(*self.error.args)  # one of its own: its frames hold what was open there
