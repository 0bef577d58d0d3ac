# SPDX-License-Identifier: Apache-2.0
"""The native worker threads that gather rows: one set per process, shared by all stores."""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import os
import threading
import weakref
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


class Running:
    """Gathers under way.  What native threads use is noted before they have it, and until native code gives it back: no
    finalizer that an interrupt cuts short can free it.  Who still wants them is looked up.
    """

    __slots__ = ("abandoned", "ended", "key", "memory", "numbers", "owners")

    def __init__(self, key: int, memory: Any, numbers: Any, owner: object) -> None:
        self.key, self.memory, self.numbers = key, memory, numbers
        self.abandoned = False
        self.ended: set[int] = set()
        self.owners: list[weakref.ref[Any]] = [] if owner is None else [weakref.ref(owner)]

    def is_wanted(self) -> bool:
        """Whether somebody lives who gives the tickets back."""
        return any(owner() is not None for owner in self.owners)


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
        self._running: dict[int, Running] = {}
        self._keys = itertools.count()
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
        return sum(not running.is_wanted() for running in tuple(self._running.values()))

    def hold(self, memory: Any, numbers: Any, owner: object) -> Running:
        """Between rooms: before a submission that fills in `numbers`, the tickets: `memory` lives while its gathers run.

        And while `owner` does, who gives the tickets back; who sees one end says `over`.
        """
        running = Running(next(self._keys), memory, numbers, owner)
        self._running[running.key] = running
        return running

    def over(self, running: Running, number: int) -> None:
        """Between rooms: a ticket was given back."""
        running.ended.add(number)
        if len(running.ended) == len(running.numbers):
            self._running.pop(running.key, None)

    def refused(self, running: Running) -> None:
        """Between rooms: nothing was submitted."""
        self._running.pop(running.key, None)

    def drop(self, running: Running, number: int) -> None:
        """Between rooms: a ticket is not waited for any more; an interrupt may cut this short, then `reap` goes on."""
        if lib.obmm_ticket_release(self.pointer, number) == -errno.EBUSY:
            lib.obmm_ticket_abandon(self.pointer, number)
        else:
            self.over(running, number)

    def let_go(self, ticket: int, memory: Any) -> None:
        """Between rooms: give back a ticket without a holder; `memory` lives on while its gather runs."""
        self.drop(self.hold(memory, [ticket], None), ticket)

    def reap(self) -> None:
        """Give back the tickets that no variable holds any more: abandoned, or lost on their way to a variable."""
        for running in tuple(self._running.values()):
            if running.is_wanted():
                continue
            busy = 0
            for number in running.numbers:
                if number and lib.obmm_ticket_release(self.pointer, number) == -errno.EBUSY:
                    busy += 1
                    if not running.abandoned:
                        lib.obmm_ticket_abandon(self.pointer, number)
            running.abandoned = True
            if not busy:
                self._running.pop(running.key, None)

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
