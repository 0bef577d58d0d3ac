# SPDX-License-Identifier: Apache-2.0
"""Rows of a published Engram table for an engine: in buffers that do not move, and without an exception in a forward."""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.arguments import whole, wrong_type
from obmm.closing import Closing, tell_of_forks
from obmm.errors import ObmmArgumentError, ObmmError
from obmm.integrations.host_share import FollowingLane, PublishingLane
from obmm.integrations.lanes import Fetched, FixedStore, Lane, Source, Stepping
from obmm.integrations.link import Check, TableAddress, TableLink
from obmm.prefetch import Deadlines
from obmm.rows import Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Accelerator, DeviceArray
from obmm.rows.stream_gather import StreamGather

log = logging.getLogger("obmm.integrations.engram")

_LEAST_ROWS, _MOST_ROWS = 256, 1 << 40
_ERRORS = 16


class TableClient(Closing):
    """The tables of one published model.

    `source`: ``host:port/name`` with `options` for `TableAddress` (key, tls, plain, device), a `TableAddress`, or a
    `RowStore`.  `check`: called with the manifest, at first and whenever the table is attached again; what it raises
    refuses the table.  `deadlines`: how long a gather may take.  `allocate`: makes the host buffers (pinned memory where
    rows go to a device).

    Making one may raise; gathering never does.  A step whose rows did not come gets zeros, and the next `check` raises why.
    Any thread may call; each has buffers of its own.  The process that made a client is the one that uses it.

        with TableClient("10.0.0.7:13857/flash", key="cluster.key") as table:
            rows = table.gather("layer1", ids)   # uint8 [*ids.shape, row_bytes]
            table.check()
    """

    def __init__(
        self,
        source: str | TableAddress | RowStore,
        *,
        check: Check | None = None,
        deadlines: Deadlines | None = None,
        allocate: Callable[[int], Any] | None = None,
        plan: bool = True,
        **options: Any,
    ) -> None:
        if deadlines is not None and not isinstance(deadlines, Deadlines):
            raise wrong_type("GATHER", "deadlines", deadlines, "Deadlines(decode=..., prefill=...), in seconds")
        self._deadlines = deadlines or Deadlines()
        self._allocate = allocate
        self._lanes: dict[tuple[Any, ...], Lane] = {}
        self._shared: dict[tuple[tuple[str, ...], Any], PublishingLane | FollowingLane] = {}
        self._streams: dict[tuple[Any, ...], StreamGather] = {}
        self._making = threading.Lock()
        self._errors: deque[ObmmError] = deque(maxlen=_ERRORS)
        self._counts = dict.fromkeys(("steps", "rows", "bytes", "zero_rows", "errors", "out_of_range"), 0)
        self._seconds = self._blocked = 0.0
        self._notes: dict[str, str] = {}
        self._next_log = 0.0
        self._frozen = False
        with ExitStack() as undo:
            self._source: Source
            if isinstance(source, RowStore):
                if check is not None:
                    check(source.manifest)
                self._source, self._name = FixedStore(source), source.region
            else:
                address = TableAddress.parse(source, **options) if isinstance(source, str) else source
                if not isinstance(address, TableAddress):
                    raise wrong_type("CONNECT", "source", source, "host:port/name, a TableAddress, or a RowStore")
                self._source = undo.enter_context(TableLink(address, check, plan=plan))
                self._name = str(address)
            self._tables: dict[str, TableSpec] = {str(spec.table_id): spec for spec in self.manifest.tables}
            self._cleanup = undo.pop_all()
        self._open = True
        tell_of_forks(self)

    @property
    def manifest(self) -> Manifest:
        """Of the publication that is attached now; ObmmError when there is none."""
        return self._source.store.manifest

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """By name: ``layer1``."""
        return MappingProxyType(self._tables)

    def reserve(self, tables: Sequence[str], rows: int, lane: Any = None) -> None:
        """Make the calling thread's buffers for steps of up to `rows` rows of each of `tables`: they do not move then."""
        self._lane(tuple(tables), whole("GATHER", "rows", rows, low=0, high=_MOST_ROWS), lane)

    def publish_lane(self, tables: Sequence[str], rows: int, lane: Any = None) -> PublishingLane:
        """Read steps of `tables` and `lane`, of up to `rows` rows each, for other processes of the host too.

        They follow with `follow_lane`.  From now on such steps have one buffer, whichever thread asks.
        """
        self._check_open()
        made = PublishingLane(self._source, tables, rows, self._deadlines, self._failed)
        self._shared[tuple(tables), lane] = made
        return made

    def follow_lane(self, descriptor: int, tables: Sequence[str], rows: int, lane: Any = None) -> None:
        """Copy steps of `tables` and `lane` from the process whose `publish_lane` with the same numbers `descriptor` is of.

        Both make the same steps in the same order.  What the other one did not read, or not in time, is read here.
        """
        self._check_open()

        def own() -> Lane:
            return Lane(self._source, tables, rows, self._deadlines, self._allocate, self._failed)

        self._shared[tuple(tables), lane] = FollowingLane(descriptor, tables, rows, self._deadlines, own, self._failed)

    def freeze(self) -> None:
        """From now on no buffer is made or grown: a captured graph holds their addresses.  What does not fit is zeros."""
        self._frozen = True

    # --- in a forward: nothing raises -------------------------------------------------------------------------------

    def gather(self, table: str, ids: NDArray[Any], lane: Any = None) -> NDArray[np.uint8]:
        """Rows ``[*ids.shape, row_bytes]`` of `table`, valid until this thread's next call with the same tables and `lane`.

        `ids`: int32 or int64; -1 gives zeros, as does a number outside the table (which is an error).
        """
        return self.fetch({table: ids}, lane).rows(table)

    def submit(self, ids: Mapping[str, NDArray[Any]], lane: Any = None) -> Step:
        """Start the gathers of several tables, with as many ids each, in the order given -> the step that has them.

        Returns at once, except that rows of which there are fewer than it takes to hand them over are there already.
        """
        return self._step(ids, lane, _start)

    def fetch(self, ids: Mapping[str, NDArray[Any]], lane: Any = None) -> Step:
        """The same, for who takes the rows at once: the calling thread gathers them, and workers help.

        A peer that fails or is slower than the deadline is waited for in the background from then on, see `Lane`.
        """
        return self._step(ids, lane, _fetch)

    def enqueue(
        self, table: str, ids: Any, stream: Any = None, *, accelerator: Accelerator, lane: Any = None
    ) -> DeviceArray:
        """Put the gather of `ids`, int64 of the device, into its `stream`, under capture too -> the rows there.

        A native host function gathers between two copies; no interpreter runs, and a graph replays it with the ids of
        then.  The rows uint8 ``[ids, row_bytes]`` are at one address for each table, number of ids and `lane`.  This may
        raise: it is called while a graph is made.  A run that fails gives zeros, and `check` raises.  A graph is bound to
        the attachment that it was captured with: after another publication it gives zeros until it is captured anew.
        """
        self._check_open()
        store, version = self._source.store, self._source.version
        count = ids.numel() if hasattr(ids, "numel") else getattr(ids, "size", None)
        if not isinstance(count, int):
            raise wrong_type("GATHER", "ids", ids, "an int64 tensor of the device")
        key = (version, table, count, lane, id(accelerator))
        if key not in self._streams:
            if table not in self._tables:
                raise _refused(f"table {table!r}", f"one of {list(self._tables)}")
            self._streams[key] = StreamGather(store, table, count, accelerator, invalid="zero")
        gather = self._streams[key]
        gather.enqueue(stream, ids)
        return gather.rows

    # --- between steps -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the first error since the last call.  Call it where a step may fail: before the next one begins."""
        self._hear_streams()
        if self._errors:
            first = self._errors[0]
            self._errors.clear()
            raise first

    @property
    def failing(self) -> bool:
        """Whether `check` would raise."""
        self._hear_streams()
        return bool(self._errors)

    def note(self, topic: str, text: str) -> None:
        """For `explain`: what a door decided."""
        self._notes[topic] = text

    def explain(self) -> str:
        """Which path serves rows, what a door decided, and how often zeros were given."""
        lines = [f"table {self._name}"]
        try:
            store = self._source.store
            about = store.manifest.model.get("engram", {})
            lines += [
                f"  model {store.manifest.model.get('model', '?')}, family {about.get('family', '?')}, publication "
                f"{store.manifest.generation}, fingerprint {str(about.get('fingerprint', '?'))[:16]}",
                f"  path {store.path}, backend {store.backend}, attachment {self._source.version}",
                *(f"  {line}" for line in store.explain().splitlines()),
            ]
        except ObmmError as error:
            lines.append(f"  away for {self._source.away:.1f} s: {error.strerror}")
        lines += [f"  {topic}: {text}" for topic, text in self._notes.items()]
        lines += [
            f"  lane {'' if name is None else name} of {', '.join(tables)}: {shared.explain()}"
            for (tables, name), shared in tuple(self._shared.items())
        ]
        counts = self._counts
        lines.append(
            f"  {counts['steps']} steps, {counts['rows']} rows, {counts['bytes']} bytes in {self._seconds:.3f} s; "
            f"{counts['zero_rows']} rows were zeros, {counts['errors']} errors, {counts['out_of_range']} ids outside"
        )
        return "\n".join(lines)

    def stats(self) -> dict[str, float]:
        """Counters since the start, by the names that metrics give them."""
        found: dict[str, float] = {f"obmm_engram_{name}_total": count for name, count in self._counts.items()}
        return {
            **found,
            "obmm_engram_gather_seconds": self._seconds,
            "obmm_engram_blocked_seconds": self._blocked,
            "obmm_engram_attachments": self._source.version,
            "obmm_engram_away_seconds": self._source.away,
        }

    def close(self) -> None:
        """Let go of buffers and table.  Idempotent; MappingBusyError while gathers run."""
        if self._forked:
            return
        self._open = False
        while self._streams:
            self._streams.popitem()[1].close()
        while self._shared:
            self._shared.popitem()[1].close()
        while self._lanes:
            self._lanes.popitem()[1].close()
        self._cleanup.close()

    def __repr__(self) -> str:
        return f"<TableClient {self._name}, {len(self._tables)} tables{', closed' if self.closed else ''}>"

    # --- inside ------------------------------------------------------------------------------------------------------

    def _step(
        self,
        ids: Mapping[str, NDArray[Any]],
        lane: Any,
        begin: Callable[[Stepping, Sequence[NDArray[Any]]], int | None],
    ) -> Step:
        began = time.perf_counter()
        found, turn = None, 0
        try:
            self._check_open()
            flat = [self._flat(table, numbers) for table, numbers in ids.items()]
            rows = flat[0].size if flat else 0
            if not flat or any(numbers.size != rows for numbers in flat):
                raise _refused(f"{[numbers.size for numbers in flat]} ids of {list(ids)}", "as many ids of each table")
            wanted = self._lane(tuple(ids), rows, lane)
            with wanted.lock:
                zeros = begin(wanted, flat)
                wanted.turn = turn = wanted.turn + 1
            found = wanted
            if zeros is None or zeros:  # few steps have any, and looking takes as long as gathering a few rows
                for table, numbers in zip(ids, flat, strict=True):
                    self._look_for_strangers(table, numbers)
        except Exception as error:
            self._failed(_said(error))
        self._blocked += time.perf_counter() - began
        return Step(self, ids, found, turn, began)

    def _hear_streams(self) -> None:
        for gather in tuple(self._streams.values()):
            try:
                gather.check()
            except ObmmError as error:
                self._failed(error)

    def _flat(self, table: str, ids: NDArray[Any]) -> NDArray[Any]:
        spec = self._tables.get(table)
        if spec is None:
            raise _refused(f"table {table!r}", f"one of {list(self._tables)}")
        if not isinstance(ids, np.ndarray) or ids.dtype not in (np.int32, np.int64):
            raise _refused(f"ids of {getattr(ids, 'dtype', type(ids).__name__)}", "int32 or int64 in host memory")
        return ids.reshape(-1)

    def _look_for_strangers(self, table: str, flat: NDArray[Any]) -> None:
        """Count ids that are in no row; their rows are zeros."""
        spec = self._tables[table]
        if flat.size and (int(flat.max()) >= spec.n_rows or int(flat.min()) < -1):
            outside = int(((flat >= spec.n_rows) | (flat < -1)).sum())
            self._counts["out_of_range"] += outside
            self._failed(
                _refused(
                    f"{outside} of {flat.size} ids are in no row of {table!r}, which has {spec.n_rows}",
                    "serve the table of the model that hashes",
                )
            )

    def _lane(self, tables: tuple[str, ...], rows: int, name: Any) -> Stepping:
        if self._shared:
            shared = self._shared.get((tables, name))
            if shared is not None and rows <= shared.capacity:
                return shared
        key = (threading.get_ident(), tables, name)
        lane = self._lanes.get(key)
        if lane is not None and lane.capacity >= rows:
            return lane
        if self._frozen:
            have = 0 if lane is None else lane.capacity
            raise _refused(
                f"{rows} rows of {list(tables)}; buffers for {have} were reserved", "reserve() the largest step"
            )
        capacity = max(_LEAST_ROWS, 1 << max(0, rows - 1).bit_length())
        with self._making:
            made = Lane(self._source, tables, capacity, self._deadlines, self._allocate, self._failed)
            self._lanes[key] = made
        if lane is not None:
            lane.close()
        return made

    def _failed(self, error: ObmmError) -> None:
        self._counts["errors"] += 1
        self._errors.append(error)
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + 1.0
            log.error("%s: %s (at most one line a second)", self._name, error.strerror)

    def _account(self, table: str, rows: int, ok: bool, seconds: float) -> None:
        self._counts["rows"] += rows
        self._counts["bytes"] += rows * self._tables[table].row_bytes if ok and table in self._tables else 0
        self._counts["zero_rows"] += 0 if ok else rows
        self._seconds += seconds


class Step:
    """Gathers under way; made by `TableClient.submit`."""

    __slots__ = ("_began", "_client", "_ids", "_lane", "_turn", "ok")

    def __init__(
        self, client: TableClient, ids: Mapping[str, NDArray[Any]], lane: Stepping | None, turn: int, began: float
    ) -> None:
        self._client = client
        self._ids = ids
        self._lane = lane
        self._turn = turn
        self._began = began
        self.ok = True
        """Whether all rows taken so far came; those of a table that did not are zeros."""
        client._counts["steps"] += 1

    def rows(self, table: str) -> NDArray[np.uint8]:
        """Rows ``[*ids.shape, row_bytes]`` of one of the step's tables; waits until they are there.

        Never raises for one of its tables.  Zeros, and an error for `check`, once the thread began another step of the
        same tables and lane: it has the same buffers.
        """
        client = self._client
        shape = np.shape(self._ids[table])
        size = math.prod(shape)
        asked = time.perf_counter()
        fetched = None
        if self._lane is not None:
            try:
                with self._lane.lock:
                    if self._lane.turn != self._turn:
                        raise _refused(
                            f"rows of {table!r} were asked for after the next step began",
                            "take rows first, or another lane",
                        )
                    fetched = self._lane.take(table)
            except Exception as error:
                client._failed(_said(error))
        if fetched is None:
            spec = client._tables.get(table)
            fetched = Fetched(np.zeros((size, spec.row_bytes if spec else 0), np.uint8), False)
        self.ok = self.ok and fetched.ok
        now = time.perf_counter()
        client._blocked += now - asked
        client._account(table, size, fetched.ok, now - self._began)
        return fetched.rows.reshape(*shape, fetched.rows.shape[-1])


def _start(lane: Stepping, ids: Sequence[NDArray[Any]]) -> int | None:
    return lane.start(ids)


def _fetch(lane: Stepping, ids: Sequence[NDArray[Any]]) -> int | None:
    return lane.fetch(ids)


def _said(error: Exception) -> ObmmError:
    """What a step met, for `check`: memory that ran out, an allocator's own exception, ids that are no array."""
    if isinstance(error, ObmmError):
        return error
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    what = f"{type(error).__name__}: {error}"
    return ObmmError(
        errno.ENOMEM if isinstance(error, MemoryError) else number,
        f"GATHER: a step gave zeros: {what} [docs/engram-tables.md]; fix: see that; smaller steps need less memory",
        operation="GATHER",
    )


def _refused(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("GATHER", errno.EINVAL, problem, fix, "docs/engram-tables.md")
