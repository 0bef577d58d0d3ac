# SPDX-License-Identifier: Apache-2.0
"""The native worker threads that gather rows: one set per process, shared by all stores."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from obmm._native import ffi, lib
from obmm.arguments import seconds, whole
from obmm.errors import ClosedError, MappingBusyError, ObmmError
from obmm.rows.errors import refused

MAX_THREADS: int = lib.OBMM_MAX_THREADS
TICKETS: int = lib.OBMM_TICKETS
DEFAULT_THREADS = 16
_MOST_CPUS = (1 << 31) - 1
_LONGEST = 1e9  # seconds that fit


class GatherEngine:
    """A fixed pool of C threads with a fixed set of tickets.  No Python runs in them.

    `threads`: workers (default: one less than the CPUs this process may use, at least 1, at most 16).  `cpus`: where to
    pin them, for example the CPUs of the staging memory's NUMA node; default: nowhere.  `spin`: seconds that a worker
    looks for more work before it sleeps; waking a sleeping one costs about 10 microseconds, spinning costs a CPU.
    """

    def __init__(
        self, threads: int | None = None, *, cpus: Sequence[int] | None = None, spin: float | None = None
    ) -> None:
        allowed = len(os.sched_getaffinity(0))
        if threads is None:
            threads = max(1, min(allowed - 1, DEFAULT_THREADS))
        threads = whole("ENGINE", "threads", threads)
        if spin is None:
            spin = 20e-6 if allowed > threads else 0.0
        spin = seconds("ENGINE", "spin", spin)
        if not 1 <= threads <= MAX_THREADS or not 0 <= spin <= 1:
            raise refused(f"threads={threads}, spin={spin}", f"1..{MAX_THREADS} threads, 0..1 seconds", "13.2")
        out = ffi.new("struct obmm_engine **")
        places = [whole("ENGINE", "cpu", cpu, low=0, high=_MOST_CPUS) for cpu in cpus or ()]
        result = lib.obmm_engine_create(threads, int(spin * 1e9), places, len(places), out)
        if result:
            raise ObmmError(-result, f"ENGINE: {threads} threads on cpus={places}: {os.strerror(-result)}")
        # freed when nobody can call it any more: stores and tickets hold this object
        self.pointer: Any = ffi.gc(out[0], lib.obmm_engine_free)
        self._open = True
        # no lock: tickets come here from finalisers, which may run anywhere
        self._abandoned: deque[tuple[int, Any]] = deque()
        self._owner = os.getpid()

    @property
    def threads(self) -> int:
        """Workers; 0 in a forked child, where gathers run on the caller's thread."""
        self._check_open()
        return int(lib.obmm_engine_threads(self.pointer))

    @property
    def pinned(self) -> int:
        """How many workers could be pinned."""
        self._check_open()
        return int(lib.obmm_engine_pinned(self.pointer))

    @property
    def in_use(self) -> int:
        """Tickets that are not given back, gathers that nobody waits for included."""
        self._check_open()
        return int(lib.obmm_engine_in_use(self.pointer))

    @property
    def abandoned(self) -> int:
        """Abandoned gathers that have not come back."""
        self.reap()
        return len(self._abandoned)

    def let_go(self, ticket: int, memory: Any) -> None:
        """Give a ticket back that nobody holds; `memory` lives on while its gather runs."""
        if lib.obmm_ticket_release(self.pointer, ticket) == -errno.EBUSY:
            lib.obmm_ticket_abandon(self.pointer, ticket)
            self._abandoned.append((ticket, memory))

    def reap(self) -> None:
        """Give back the tickets of abandoned gathers that have ended."""
        for _ in range(len(self._abandoned)):
            try:
                ticket, memory = self._abandoned.popleft()
            except IndexError:
                return
            if lib.obmm_ticket_release(self.pointer, ticket) == -errno.EBUSY:
                self._abandoned.append((ticket, memory))

    def close(self, timeout: float = 30.0) -> None:
        """End the workers; queued gathers are abandoned.  Idempotent.

        MappingBusyError when a worker does not come back from a load in time; then close again later.
        """
        wait = min(max(seconds("ENGINE", "timeout", timeout), 0.0), _LONGEST)
        result = lib.obmm_engine_stop(self.pointer, int(wait * 1e9))
        if result:
            raise MappingBusyError(
                errno.EBUSY, f"ENGINE: a worker is still inside a load after {timeout} s; fix: close() again later"
            )
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError.of(self)

    def __repr__(self) -> str:
        if not self._open:
            return "<GatherEngine closed>"
        isa = ffi.string(lib.obmm_gather_isa()).decode()
        return f"<GatherEngine {self.threads} threads, {self.pinned} pinned, {isa}>"


_default: GatherEngine | None = None
_default_lock = threading.Lock()


def default_engine() -> GatherEngine:
    """The process's engine, made at first use; a forked child makes its own."""
    global _default
    with _default_lock:
        if _default is None or not _default._open or _default._owner != os.getpid():
            _default = GatherEngine()
            atexit.register(_end_quietly, _default)
        return _default


def _forked() -> None:
    global _default_lock
    _default_lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _end_quietly(engine: GatherEngine) -> None:
    """At exit: the workers must not write into memory that the interpreter frees."""
    if engine._owner == os.getpid():
        with contextlib.suppress(MappingBusyError):
            engine.close(timeout=1.0)
