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
from obmm.closing import Closing, in_forked_children
from obmm.errors import MappingBusyError, ObmmError
from obmm.rows.errors import refused

MAX_THREADS: int = lib.OBMM_MAX_THREADS
TICKETS: int = lib.OBMM_TICKETS
DEFAULT_THREADS = 63
EXPECTED = 300e-6  # seconds: from the begin of a step to its gather, hashing and all
_MOST_CPUS = (1 << 31) - 1
_LONGEST = 1e9  # seconds that fit


class GatherEngine(Closing):
    """A fixed pool of C threads with a fixed set of tickets.  No Python runs in them.

    `threads`: workers (default: one less than the CPUs this process may use, at least 1, at most 63).  `cpus`: where to
    pin them, for example the CPUs of the staging memory's NUMA node; default: nowhere.  `spin`: seconds that a worker
    looks for more work before it sleeps, when none is expected (`expect`); the default is not at all.

    ObmmArgumentError for numbers that cannot be, ObmmError when threads cannot be started.

    >>> engine = obmm.rows.GatherEngine(2)
    >>> engine.threads, engine.pinned, engine.in_use, engine.abandoned
    (2, 0, 0, 0)
    >>> engine.expect(0.0001) >= 0, len(engine.spun)
    (True, 2)
    >>> engine.reap(), engine.close(timeout=10)
    (None, None)
    """

    def __init__(
        self, threads: int | None = None, *, cpus: Sequence[int] | None = None, spin: float | None = None
    ) -> None:
        allowed = len(os.sched_getaffinity(0))
        if threads is None:
            threads = max(1, min(allowed - 1, DEFAULT_THREADS))
        threads = whole("ENGINE", "threads", threads)
        spin = seconds("ENGINE", "spin", 0.0 if spin is None else spin)
        if not 1 <= threads <= MAX_THREADS or not 0 <= spin <= 1:
            raise refused(f"threads={threads}, spin={spin}", f"1..{MAX_THREADS} threads, 0..1 seconds", "13.2")
        # freed with the last reference: stores and tickets hold this object
        self._made = out = ffi.gc(ffi.new("struct obmm_engine **"), lib.obmm_engine_drop)
        places = [whole("ENGINE", "cpu", cpu, low=0, high=_MOST_CPUS) for cpu in cpus or ()]
        result = lib.obmm_engine_create(threads, int(spin * 1e9), places, len(places), out)
        if result:
            raise ObmmError(-result, f"ENGINE: {threads} threads on cpus={places}: {os.strerror(-result)}")
        self.pointer: Any = out[0]
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

    def expect(self, within: float = EXPECTED) -> int:
        """A gather comes within so many seconds: workers wake up and spin until it is there -> how many were told.

        Half a millisecond at most, no more workers than this process has CPUs to spare (its affinity and control group,
        shared with the other processes of this user that gather here), and fewer where CPUs turn out to be busy.  Returns
        at once.  A gather that does not come costs that time on those CPUs.
        """
        return int(
            lib.obmm_engine_expect(self.pointer, int(min(max(seconds("ENGINE", "within", within), 0.0), 1.0) * 1e9))
        )

    @property
    def spun(self) -> tuple[float, float]:
        """Seconds that workers have spent spinning so far, and those of them that no gather followed."""
        self._check_open()
        in_vain = ffi.new("uint64_t *")
        spun = lib.obmm_engine_spun_ns(self.pointer, in_vain)
        return spun * 1e-9, in_vain[0] * 1e-9

    @property
    def in_use(self) -> int:
        """Tickets that are not given back, abandoned gathers included."""
        self._check_open()
        return int(lib.obmm_engine_in_use(self.pointer))

    @property
    def abandoned(self) -> int:
        """Abandoned gathers that have not come back."""
        self.reap()
        return len(self._abandoned)

    def let_go(self, ticket: int, memory: Any) -> None:
        """Between rooms: give back a ticket without a holder; `memory` lives on while its gather runs."""
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

        MappingBusyError when a worker does not come back from a load in `timeout` seconds; then close again later.
        """
        wait = min(max(seconds("ENGINE", "timeout", timeout), 0.0), _LONGEST)
        result = lib.obmm_engine_stop(self.pointer, int(wait * 1e9))
        if result:
            raise MappingBusyError(
                errno.EBUSY, f"ENGINE: a worker is still inside a load after {timeout} s; fix: close() again later"
            )
        self._open = False

    def __repr__(self) -> str:
        if not self._open:
            return "<GatherEngine closed>"
        isa = ffi.string(lib.obmm_gather_isa()).decode()
        return f"<GatherEngine {self.threads} threads, {self.pinned} pinned, {isa}>"


_default: GatherEngine | None = None
_default_lock = threading.Lock()


def default_engine() -> GatherEngine:
    """The process's engine, made at first use; a forked child makes its own.

    >>> obmm.rows.default_engine() is obmm.rows.default_engine()
    True
    """
    global _default
    with _default_lock:
        if _default is None or not _default._open or _default._owner != os.getpid():
            _default = GatherEngine()
            atexit.register(_end_quietly, _default)
        return _default


@in_forked_children
def _forked() -> None:
    global _default_lock
    _default_lock = threading.Lock()


def _end_quietly(engine: GatherEngine) -> None:
    """At exit: the workers must not write into memory that the interpreter frees."""
    if engine._owner == os.getpid():
        with contextlib.suppress(MappingBusyError):
            engine.close(timeout=1.0)
