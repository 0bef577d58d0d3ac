# SPDX-License-Identifier: Apache-2.0
"""Rows of tables in another node's memory, gathered natively (Engram specification 13.2)."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from obmm._native import lib
from obmm.arguments import seconds, whole
from obmm.driver.abi import Cache
from obmm.errors import StaleHandleError
from obmm.mapping.native_rows import row_numbers
from obmm.region.region import Access
from obmm.rows.bound import BoundTable
from obmm.rows.engine import EXPECTED, GatherEngine, default_engine
from obmm.rows.errors import late, outdated, refuse_threads, refused
from obmm.rows.hot import HotRows, wanted
from obmm.rows.manifest import Manifest
from obmm.rows.memory import RowMemory
from obmm.rows.owner import OwnerSide
from obmm.rows.pages import is_huge
from obmm.rows.planner import Plan, default_plan, measure
from obmm.rows.prepared import PreparedGather, PreparedStep, prepared_gather
from obmm.rows.probe import ProbeTicket
from obmm.rows.pulse import Pulse
from obmm.rows.requests import Completion, Faulty, IdSpace, Invalid, Requests
from obmm.rows.sources import Source, manifest_of, memory_of
from obmm.rows.stats import GatherStats
from obmm.rows.table import TableId
from obmm.rows.ticket import Ticket, submit

_gather = lib.obmm_engine_gather

Verify = Literal["canary", "header", "none"]


class RowStore(OwnerSide):
    """Tables of byte rows in mapped memory.  Made by `attach`; any number of threads.

    A gather copies rows by number into a buffer of the caller: ids are checked before anything is read, the interpreter
    lock is released, nothing is allocated in the native call, and a fault of the memory is `RemoteMemoryError`, not the
    end of the process.  The bytes are of one publication, or `StaleHandleError`; on a cacheable import, whose caches no
    owner can reach, `check_generation` after the gather says so.

    Every gather takes the options of `gather_into`, with its ObmmArgumentError before anything is read; parts of a store
    (`column_slice`, `id_range`) refuse with it what only the whole can.  `obmm.rows` has an example of each call.
    """

    def __init__(
        self, memory: RowMemory, manifest: Manifest, engine: GatherEngine, tables: dict[TableId, BoundTable]
    ) -> None:
        """For `attach` and subsets."""
        self._memory = memory
        self._engine = engine
        self._bound = tables
        self._plans: dict[TableId, Plan] = {}
        self._is_subset = False
        self._pulse = Pulse(engine, memory) if memory.heartbeat_address else None
        self.attach_seconds = 0.0
        """What `attach` took: mapping, checking, measuring."""
        self.manifest = manifest
        self.tables = MappingProxyType({table_id: bound.spec for table_id, bound in tables.items()})

    @classmethod
    def attach(
        cls,
        source: Source,
        manifest: Manifest | bytes | str | dict[str, Any],
        *,
        verify: Verify = "canary",
        plan: bool = True,
        engine: GatherEngine | None = None,
        access: Access = "r",
        cache: Cache | None = None,
        hot_rows: int | dict[TableId, int] = 0,
    ) -> Self:
        """A store over `source`: a mapping or a strip, a sequence of regions that hold the payload in order (mapped here, at
        consecutive addresses), or another `RowMemory`.

        `manifest`: as published.  `verify`: "canary" compares header and canary rows with it, "header" the header only,
        "none" (owner side, before the first publication) nothing.  `plan`: measure the memory and choose how to gather.
        `hot_rows`: how many rows of each table to keep in local memory (`HOT_ROWS` is the usual number), for a slow fabric
        and rows that recur; `explain` says whether it pays.  Not for memory without a region header.

        `engine`: whose threads gather.  `access` and `cache` as for `Region.map`.  StaleHandleError, CanaryError: the memory
        is not what the manifest describes.  A failed attach leaves nothing mapped.
        """
        began = time.perf_counter()
        described = manifest_of(manifest)
        memory = memory_of(source, access, cache)
        try:
            memory.check()
            hot = wanted(hot_rows, described.tables, memory)
            huge = not memory.fetch and is_huge(memory.address, memory.nbytes)
            tables = {spec.table_id: BoundTable(spec, memory, huge=huge) for spec in described.tables}
            for table_id, rows in hot.items():
                tables[table_id].keep_hot(rows)
            store = cls(memory, described, engine or default_engine(), tables)
            store._verify(verify)
            store._plan(plan and verify != "none")
            store.attach_seconds = time.perf_counter() - began
        except BaseException:
            memory.close()
            raise
        return store

    # --- gathering ------------------------------------------------------------------------------------------------

    def gather_into(
        self,
        table: TableId,
        ids: Any,
        out: Any,
        *,
        id_space: IdSpace = "flat",
        invalid: Invalid = "error",
        faulty: Faulty = "error",
        deadline: float | None = None,
        threads: int = 0,
        stats: GatherStats | None = None,
    ) -> int:
        """Copy rows `ids` of `table` to `out`, in that order -> rows read from the table.

        `ids`: int32 or int64, any shape, contiguous.  `out`: ``ids.size * row_bytes`` writable bytes: a buffer, an
        array (rows may have a stride), a DLPack CPU tensor, or ``(address, length)``.  `id_space` "local": ids count
        within their column's head.  `invalid` "zero": an id outside its table gives zero bytes; "error": it refuses
        everything.  `faulty` "error": the first load that faults ends the gather; "zero": a row that cannot be read becomes
        zero bytes, the others are read, and the error's `failed_rows` says which.  `deadline`: seconds.  `threads`: 0
        leaves it to the plan.  `stats`: counts there too.

        ObmmArgumentError: nothing was read.  RemoteMemoryError (without `failed_rows`), StaleHandleError,
        GatherDeadlineError: `out` holds unspecified bytes, and after the last it is still written to for a while.
        """
        self._memory.check()
        requests = Requests([(self._table(table), ids, out)], stats, id_space, invalid, faulty)
        if threads:
            refuse_threads(threads)
        if deadline is not None:
            deadline = seconds("GATHER", "deadline", deadline)
            (ticket,) = self._submit(requests, threads)
            if not ticket.wait(deadline):
                ticket.abandon()
                raise late(table, deadline)
            return ticket.result()
        rows: int = _gather(self._engine.pointer, requests.array, threads, requests.outcomes)
        return rows if rows >= 0 and stats is None else requests.finish()

    def gather(self, table: TableId, ids: Any, **options: Any) -> NDArray[np.uint8]:
        """`gather_into` a new array ``[*ids.shape, row_bytes]``, with its `options` and errors; `ids` may be a list."""
        numbers = row_numbers(ids)
        out = np.empty((*numbers.shape, self._table(table).spec.row_bytes), np.uint8)
        self.gather_into(table, numbers, out, **options)
        return out

    def prepare(
        self,
        table: TableId,
        ids: Any,
        out: Any,
        *,
        id_space: IdSpace = "flat",
        invalid: Invalid = "error",
        faulty: Faulty = "error",
    ) -> PreparedGather:
        """`gather_into` again and again, for buffers that do not move: one native call each time, which reads the ids
        anew.
        """
        requests = Requests([(self._table(table), ids, out)], None, id_space, invalid, faulty)
        return prepared_gather(self._engine, self._memory, requests)

    def prepare_many(
        self,
        gathers: Sequence[tuple[TableId, Any, Any]],
        *,
        id_space: IdSpace = "flat",
        invalid: Invalid = "error",
        faulty: Faulty = "error",
        recheck: bool = False,
        then: Sequence[Completion | None] = (),
    ) -> PreparedStep:
        """The same `submit_many` again and again, for buffers that do not move, of all `gathers` (as `gather_into`); `then`: see `Completion`.

        `recheck`: on a cacheable import a gather is done when `check_generation` has confirmed it, in the background: one
        UPDATE_RANGE for all that were read by then.  StaleHandleError from its ticket if the owner has published.
        """
        bound = [(self._table(table), ids, out) for table, ids, out in gathers]
        return PreparedStep(self._engine, self._memory, Requests(bound, None, id_space, invalid, faulty, recheck, then))

    def expect(self, within: float = EXPECTED) -> None:
        """A gather comes `within` so many seconds: the engine's workers wake up now, see `GatherEngine.expect`."""
        self._engine.expect(within)

    def submit(
        self,
        table: TableId,
        ids: Any,
        out: Any,
        *,
        id_space: IdSpace = "flat",
        invalid: Invalid = "error",
        faulty: Faulty = "error",
        threads: int = 0,
        stats: GatherStats | None = None,
    ) -> Ticket:
        """`gather_into` in the background, with its arguments; `ids` and `out` are used until the ticket is done."""
        self._memory.check()
        requests = Requests([(self._table(table), ids, out)], stats, id_space, invalid, faulty)
        return self._submit(requests, threads)[0]

    def submit_many(
        self,
        requests: Sequence[tuple[TableId, Any, Any]],
        *,
        id_space: IdSpace = "flat",
        invalid: Invalid = "error",
        faulty: Faulty = "error",
        order: Literal["as_given"] = "as_given",
        threads: int = 0,
    ) -> Sequence[Ticket]:
        """Start several `requests` ``(table, ids, out)`` in one native call, in this `order` -> a ticket for each.

        All ids are checked before anything is read; options as for `gather_into`.
        """
        if order != "as_given":
            raise refused(f"order={order!r}", "'as_given'")
        self._memory.check()
        gathers = [(self._table(table), ids, out) for table, ids, out in requests]
        return self._submit(Requests(gathers, None, id_space, invalid, faulty), threads) if gathers else ()

    def read_row(self, table: TableId, row: int) -> bytes:
        """One `row` of `table`, guarded; for debugging.  Errors as for `gather_into`."""
        return self.gather(table, [row]).tobytes()

    def view(self, table: TableId) -> NDArray[np.uint8]:
        """The rows of `table` as a read-only array ``[n_rows, row_bytes]``, without a copy and *without* a guard."""
        spec = self._table(table).spec
        if spec.rows_per_segment:
            raise refused(f"a view of table {table!r} in slot mode", "gather its rows")
        shape, strides = (spec.n_rows, spec.row_bytes), (spec.row_stride, 1)
        found: NDArray[np.uint8] = self._memory.view(spec.base_offset, spec.end - spec.base_offset, shape, strides)
        return found

    # --- subsets --------------------------------------------------------------------------------------------------

    def column_slice(self, columns: Sequence[int], n_columns: int | None = None) -> RowStore:
        """A store that reads only these columns of ids ``[..., n_columns]``; the others give zero rows, unread.

        `n_columns` defaults to the heads of each table.
        """
        chosen = {}
        columns = [whole("GATHER", "column", column) for column in columns]
        if n_columns is not None:
            n_columns = whole("GATHER", "n_columns", n_columns)
        for table_id, bound in self._bound.items():
            total = n_columns or bound.n_heads
            if not total or not all(0 <= column < total for column in columns):
                raise refused(
                    f"columns {list(columns)} of table {table_id!r} with {total} columns", "pass n_columns", "7.4"
                )
            chosen[table_id] = bound.subset(columns, 0, None, total)
        return self._subset(chosen)

    def id_range(self, low: int, high: int) -> RowStore:
        """A store that reads only flat rows [low, high); the others give zero rows, unread."""
        low, high = whole("GATHER", "low", low), whole("GATHER", "high", high)
        if not 0 <= low <= high:
            raise refused(f"rows [{low}, {high})", "0 <= low <= high", "7.4")
        return self._subset({table_id: bound.subset(None, low, high, 0) for table_id, bound in self._bound.items()})

    # --- health and description -----------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """How rows travel: "cacheable", "nc", "shm" or "file"."""
        return self._memory.path

    @property
    def backend(self) -> str:
        """Which kernel answers for the memory."""
        return self._memory.backend

    @property
    def region(self) -> str:
        """Whose memory it is: the name that it was leased by, its label, or its memory id."""
        return self._memory.region

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the owner was last heard from: its heartbeat moved, or its lease was renewed.  None without both."""
        heard = self._memory.heartbeat_age, None if self._pulse is None else self._pulse.age
        return min((age for age in heard if age is not None), default=None)

    @property
    def engine(self) -> GatherEngine:
        """Whose threads gather."""
        return self._engine

    def generation(self) -> int:
        """The content version: even while the content is stable.  The manifest's for memory without a header.

        On a cacheable import this is what the host's caches hold, which `check_generation` renews.  StaleHandleError
        there when it is not the attached publication: rows in the caches may be older than the header.
        """
        version = self._memory.version() if self._memory.versioned else self.manifest.generation
        cached = self._memory.cached_version
        if cached and cached[0] not in (0, version):
            raise outdated(int(cached[0]), version)
        return version

    def check_generation(self) -> int:
        """`generation`, read from memory itself: on a cacheable import the header is dropped from the caches first.

        One UPDATE_RANGE over one granule there, free elsewhere.  Gathers that ended before the call are of the
        publication it returns; StaleHandleError when the owner has published since `attach` or `refresh`.
        """
        self._memory.check()
        self._memory.reread_header()
        return self.generation()

    def healthy(self) -> bool:
        """Whether the memory is open, its lease good, and the owner's heartbeat not missed for 3 seconds.

        Waits for no remote memory: the heartbeat is read in the background, once a second if this is called that often.
        """
        return self._memory.alive and not (self._pulse is not None and self._pulse.lost())

    def refresh(self, manifest: Manifest | bytes | str | dict[str, Any], *, verify: Verify = "canary") -> None:
        """Reader side: go on with a new publication of the same tables: its `manifest`; `verify` as for `attach`.

        What is cached of the old one is dropped first (Engram specification 10-18).  MappingBusyError while views live.
        """
        described = manifest_of(manifest)
        if self._is_subset or described.tables != self.manifest.tables:
            raise refused("other tables than before, or a subset", "attach a new store", "5.4")
        self._memory.check()
        self._memory.refresh()
        before, self.manifest = self.manifest, described
        try:
            self._verify(verify)
        except BaseException:
            self.manifest = before
            raise

    def submit_probe(self) -> ProbeTicket:
        """Read the canary rows in the background; `result` raises when they are not the manifest's."""
        gathers = []
        for table_id, pairs in self.manifest.canary.items():
            bound = self._bound[table_id]
            ids = np.array([row for row, _ in pairs], np.int64)
            gathers.append((bound, ids, np.empty((len(ids), bound.spec.row_bytes), np.uint8)))
        self._memory.check()
        requests = Requests(gathers, None, "flat", "error")
        requests.read_memory()
        expected = [(bound.spec, self.manifest.canary[bound.spec.table_id], out) for bound, _, out in gathers]
        return ProbeTicket(self._submit(requests, 0) if gathers else (), expected)

    def explain(self) -> str:
        """How rows are gathered from each table, and the measurements that say so."""
        return "\n".join(plan.explain() for plan in self._plans.values())

    @property
    def plans(self) -> MappingProxyType[TableId, Plan]:
        """The same as data."""
        return MappingProxyType(self._plans)

    @property
    def hot(self) -> MappingProxyType[TableId, HotRows]:
        """The hot-row caches of the tables that have one."""
        return MappingProxyType(
            {table_id: bound.hot for table_id, bound in self._bound.items() if bound.hot is not None}
        )

    def stats(self) -> GatherStats:
        """What was gathered so far, subsets included, by gathers that have ended."""
        total = GatherStats()
        for bound in self._bound.values():
            total.add_totals(bound.totals, bound.spec.row_bytes)
        return total

    def close(self) -> None:
        """Give back what `attach` mapped; gathers that run keep what they need until they end.  Idempotent.

        MappingBusyError while views live or gathers run.  A subset closes nothing.
        """
        if self._is_subset:
            return
        self._engine.reap()
        if self._pulse is not None:
            self._pulse.settle()
        self._memory.close()

    def __repr__(self) -> str:
        return f"<RowStore {len(self._bound)} tables, {self.path}, on {self.backend}>"

    # --- inside ---------------------------------------------------------------------------------------------------

    def _table(self, table: TableId) -> BoundTable:
        try:
            return self._bound[table]
        except (KeyError, TypeError):
            raise refused(f"table {table!r}", f"one of {list(self._bound)}") from None

    def _submit(self, requests: Requests, threads: int) -> list[Ticket]:
        if threads:
            refuse_threads(threads)
        return submit(self._engine, requests, threads)

    def _subset(self, tables: dict[TableId, BoundTable]) -> RowStore:
        other = RowStore(self._memory, self.manifest, self._engine, tables)
        other._plans = self._plans
        other.attach_seconds = self.attach_seconds
        other._is_subset = True
        other._pulse = self._pulse
        return other

    def _verify(self, verify: Verify) -> None:
        if verify not in get_args(Verify):
            raise refused(f"verify={verify!r}", '"canary", "header" or "none"')
        cached = self._memory.cached_version
        if verify == "none":
            if cached:
                cached[0] = self._memory.version()
            return
        version = self._memory.version() if self._memory.versioned else self.manifest.generation
        digest = self._memory.header_digest()
        if version != self.manifest.generation or (any(digest) and digest != self.manifest.sha256):
            raise StaleHandleError(
                errno.ESTALE,
                f"ATTACH: the memory holds publication {version}, the manifest describes {self.manifest.generation}"
                f"{'' if version != self.manifest.generation else ' with another content'} [Engram specification 5.3]; "
                "fix: fetch handle and manifest together, again",
                operation="GATHER",
                reason="generation",
            )
        if cached:
            cached[0] = version
        if verify == "canary":
            self.submit_probe().result()

    def _plan(self, measured: bool) -> None:
        for table_id, bound in self._bound.items():
            self._plans[table_id] = measure(bound, self._engine) if measured else default_plan(bound)
