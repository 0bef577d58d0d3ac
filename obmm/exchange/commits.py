# SPDX-License-Identifier: Apache-2.0
"""From the desk to the disk and back: grants leave when their lines are there, and the loop never waits for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from obmm.exchange.desk import Answer, LeaseDesk
from obmm.exchange.errors import JournalError
from obmm.exchange.journal import Batch
from obmm.exchange.journal_writer import JournalWriter, Rewrite
from obmm.exchange.mailbox import Mailbox

DISK_S = 5.0  # how long the end waits for the disk


class Commits:
    """Everything but the journal's own thread's part runs in the loop; ``deliver`` gets each answer there."""

    def __init__(self, desk: LeaseDesk, mailbox: Mailbox, deliver: Callable[[Answer], None], name: str) -> None:
        self._desk = desk
        self._mailbox = mailbox
        self._deliver = deliver
        self._rewriting = False
        self._writer = JournalWriter(desk.journal, self._written, name)

    def submit(self) -> None:
        """Hand what happened to the journal's thread."""
        self._writer.start()
        batch = self._desk.take_batch()
        if batch is not None:
            self._writer.submit(batch)
        if self._desk.journal.long and not self._rewriting:
            self._rewriting = True
            self._writer.submit(Rewrite(self._desk.lines_out()))

    def close(self) -> None:
        """Write the rest; JournalError when the disk does not answer."""
        self.submit()
        if not self._writer.close(DISK_S):
            raise JournalError(f"the disk of {self._desk.journal.path} has not answered for {DISK_S:.0f} s")

    def _written(self, batches: tuple[Batch, ...], failure: JournalError | None) -> None:
        """In the journal's thread."""
        self._mailbox.post(partial(self._on_written, len(batches), failure))

    def _on_written(self, batches: int, failure: JournalError | None) -> None:
        self._rewriting = self._rewriting and self._desk.journal.long
        for answer in self._desk.written(batches, failure):
            self._deliver(answer)
