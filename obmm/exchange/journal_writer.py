# SPDX-License-Identifier: Apache-2.0
"""The thread that waits for the disk, so that the server's loop never does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from obmm.background import BackgroundLogger
from obmm.exchange.errors import JournalError
from obmm.exchange.journal import Batch, LeaseJournal
from obmm.undisturbed import joined

log = BackgroundLogger("obmm.exchange.journal")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The lines of all leases that are out: the file is made anew from them."""

    lines: tuple[bytes, ...]


class JournalWriter:
    """Writes batches in their order, several that wait with one fsync, and calls ``done`` from its own thread.

    ``done`` gets the batches of one write and the error, or None: they are on the disk.
    """

    def __init__(
        self, journal: LeaseJournal, done: Callable[[tuple[Batch, ...], JournalError | None], object], name: str
    ) -> None:
        self._journal = journal
        self._done = done
        self._jobs: queue.SimpleQueue[Batch | Rewrite | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread at the first call.  The loop calls it, so that a server that failed to start leaves no thread."""
        if self._thread.ident is None:
            self._thread.start()

    def submit(self, job: Batch | Rewrite) -> None:
        """Never blocks: who submits bounds how much may be under way."""
        self._jobs.put(job)

    def close(self, timeout: float) -> bool:
        """Write what was submitted, then end; False when the disk did not let it within ``timeout`` seconds."""
        self.start()
        self._jobs.put(None)
        return joined(self._thread, timeout)

    def _run(self) -> None:
        running = True
        while running:
            waiting = [self._jobs.get()]
            while not self._jobs.empty():
                waiting.append(self._jobs.get())
            batches: list[Batch] = []
            for job in waiting:
                if isinstance(job, Batch):
                    batches.append(job)
                    continue
                self._write(batches)
                batches = []
                if job is None:
                    running = False
                else:
                    self._rewrite(job)
            self._write(batches)

    def _write(self, batches: list[Batch]) -> None:
        if not batches:
            return
        error: JournalError | None = None
        try:
            self._journal.write(Batch(tuple(line for batch in batches for line in batch.lines)))
        except JournalError as refused:
            error = refused
        except BaseException as other:
            error = JournalError(f"the lease journal {self._journal.path} cannot be written: {other!r}")
        self._tell(tuple(batches), error)

    def _rewrite(self, job: Rewrite) -> None:
        try:
            self._journal.compact(job.lines)
        except BaseException as error:
            log.error("journal %s: not compacted: %r", self._journal.path, error)

    def _tell(self, batches: tuple[Batch, ...], error: JournalError | None) -> None:
        for _ in range(3):
            try:
                self._done(batches, error)
                return
            except BaseException as problem:
                log.error("journal %s: the loop could not be told: %r", self._journal.path, problem)
