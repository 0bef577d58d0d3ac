# SPDX-License-Identifier: Apache-2.0
"""What the prefetcher needs of a row store (Engram specification 13.2): `obmm.rows.RowStore` is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from obmm.rows.requests import Faulty, Invalid
from obmm.rows.table import TableId

__all__ = ["Expectant", "Faulty", "Hot", "Invalid", "Prepared", "RowSource", "Table", "TableId", "Ticket"]


class Table(Protocol):
    """The part of a table's description that sizes buffers and bounds ids."""

    @property
    def n_rows(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def neutral_zero(self) -> bool:
        """Whether a token whose rows are all zero leaves the model's hidden state as it was."""
        ...


class Hot(Protocol):
    """The hot-row cache of a table, as metrics see it; it counts all gathers through the source."""

    @property
    def hits(self) -> int:
        """Rows that were taken from it."""
        ...

    @property
    def misses(self) -> int:
        """Rows that were looked for in it and read from the table."""
        ...

    @property
    def nbytes(self) -> int: ...


class Ticket(Protocol):
    """One submitted gather.  It keeps `ids` and `out` alive until the gather has returned, abandoned or not."""

    def done(self) -> bool:
        """Whether the gather has returned; never blocks."""
        ...

    def ready(self, version: int) -> bool:
        """Whether it is done and `result` will bring rows of this content version; never blocks, cheaper than both."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; False when the gather is still running."""
        ...

    def result(self) -> int:
        """Rows read, once done.

        RemoteMemoryError: a load faulted; StaleHandleError: the content's generation was odd or changed meanwhile.  With
        ``faulty="zero"`` the former may have `failed_rows`, a bool array with one entry per id: the other rows were read.
        Without it every row counts as failed.
        """
        ...

    @property
    def generation(self) -> int:
        """The content version that the rows are of, once done; 0 for memory that carries none."""
        ...

    @property
    def seconds(self) -> float:
        """From submission to the end, once done."""
        ...

    def abandon(self) -> None:
        """Abandon the result.  `out` may be written until `done`."""
        ...


class Probe(Protocol):
    """A read of the canary rows in the background."""

    def done(self) -> bool:
        """Whether it has returned; never blocks."""
        ...

    def result(self) -> int:
        """Rows read, once done; raises when their bytes are not the manifest's, or as `Ticket.result`."""
        ...


class Prepared(Protocol):
    """Gathers between buffers that do not move, with everything resolved that does not change."""

    def submit(self) -> Sequence[Ticket]:
        """Queue them in the order given, and return at once; the ids are read anew.

        The tickets of one submission are done before the next.
        """
        ...


class Described(Protocol):
    """Tables of which only the sizes of rows are asked."""

    @property
    def tables(self) -> Mapping[Any, Table]:
        """The tables by id."""
        ...


class RowSource(Described, Protocol):
    """Tables of byte rows, gathered in the background."""

    @property
    def path(self) -> str:
        """How rows travel: "cacheable", "nc", "sdk", "shm" or "file"; a label of the metrics."""
        ...

    @property
    def region(self) -> str:
        """Whose memory it is: a label of the metrics."""
        ...

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the owner was last heard from; None where it is not asked."""
        ...

    @property
    def attach_seconds(self) -> float:
        """How long it took until rows could be gathered."""
        ...

    @property
    def hot(self) -> Mapping[Any, Hot]:
        """The hot-row caches of the tables that have one."""
        ...

    def prepare_many(
        self,
        gathers: Sequence[tuple[TableId, NDArray[np.int64], NDArray[np.uint8]]],
        *,
        invalid: Invalid = "error",
        faulty: Faulty = "error",
        recheck: bool = False,
    ) -> Prepared:
        """Gathers ``(table, ids, out)``; `ids` and `out` are read and written by reference.

        `faulty` "zero": go on past rows that cannot be read, see `Ticket.result`.  `recheck`: a gather is done when memory
        itself, not a cache of it, has confirmed the content version; stale otherwise.

        `gathers` of ``ids [n]`` and ``out [n, row_bytes]``; `invalid` as for `EngramPrefetcher`.
        """
        ...

    def generation(self) -> int:
        """The content version (sequence lock): even while the content is stable."""
        ...

    def healthy(self) -> bool:
        """Whether the peer is known to live (heartbeat or lease connection); reads no remote memory."""
        ...

    def submit_probe(self) -> Probe:
        """Queue a read of the canary rows; its `result` raises when their bytes are not the manifest's."""
        ...


@runtime_checkable
class Expectant(Protocol):
    """A `RowSource` that needs some time to get ready for a gather."""

    def expect(self) -> None:
        """A gather follows.  Returns at once."""
        ...
