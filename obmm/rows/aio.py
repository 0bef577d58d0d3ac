# SPDX-License-Identifier: Apache-2.0
"""Gathers in an event loop: a ticket that has a descriptor and can be awaited.

ticket = aio.submit(store, "layer1", ids, out)
rows = await ticket                  # no thread waits meanwhile; errors are those of `Ticket.result`
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.driver.descriptor import Descriptor
from obmm.exchange import aio
from obmm.rows.requests import Completion, Faulty, IdSpace, Invalid
from obmm.rows.store import RowStore
from obmm.rows.table import TableId
from obmm.rows.ticket import Ticket

_WAKE = ffi.addressof(lib, "obmm_wake")


class _Wakes(list[Completion]):
    """What the gather is followed by.  The requests keep it while a thread may still write to its descriptor."""

    def __init__(self) -> None:
        self._event = Descriptor.eventfd()
        super().__init__([(_WAKE, self.fd)])

    @property
    def fd(self) -> int:
        """The descriptor's number."""
        return self._event.fileno()


class AsyncTicket(Owner):
    """One submitted gather, as `obmm.rows.Ticket`; awaited, it gives the rows that were read.

    `fileno` is readable once the gather has ended: for poll, select, epoll and event loops; only wait on it.  An await that
    is cancelled leaves the gather running; `abandon` ends it.
    """

    def __init__(self, ticket: Ticket, wakes: _Wakes) -> None:
        self._ticket = ticket
        self._wakes = wakes

    def fileno(self) -> int:
        """The descriptor."""
        return self._wakes.fd

    def done(self) -> bool:
        """Whether the gather has ended; never blocks."""
        return self._ticket.done()

    def result(self, timeout: float | None = None) -> int:
        """Wait, at most `timeout` seconds, then the rows that were read.  Errors as `Ticket.result`."""
        return self._ticket.result(timeout)

    def abandon(self) -> None:
        """The result will not be asked for.  `out` may be written until `done`."""
        self._ticket.abandon()

    def __await__(self) -> Generator[Any, None, int]:
        yield from aio.done(self).__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Async{repr(self._ticket)[1:]}"


def submit(
    store: RowStore,
    table: TableId,
    ids: Any,
    out: Any,
    *,
    id_space: IdSpace = "flat",
    invalid: Invalid = "error",
    faulty: Faulty = "error",
    threads: int = 0,
) -> AsyncTicket:
    """`RowStore.submit`, with its arguments and errors, for an event loop.

    async def both():
        tickets = [submit(store, "words", ids, out) for out in outs]
        return [await ticket for ticket in tickets]
    """
    wakes = _Wakes()
    step = store.prepare_many([(table, ids, out)], id_space=id_space, invalid=invalid, faulty=faulty, then=wakes)
    return AsyncTicket(step.submit(threads=threads)[0], wakes)


__all__ = ["AsyncTicket", "submit"]
