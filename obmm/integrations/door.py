# SPDX-License-Identifier: Apache-2.0
"""What the doors into engines share: one client per process, claims on its tables, and the end of a step.

torch is the engine's: this module is imported by code that runs inside one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from obmm.errors import ObmmArgumentError, ObmmError
from obmm.integrations.engram import Step, TableClient
from obmm.integrations.exposed import Exposed, expose
from obmm.integrations.host_share import host, offer, opened
from obmm.integrations.settings import EngramSettings
from obmm.integrations.table_metrics import TableCollector
from obmm.rows import Manifest, TableSpec
from obmm.rows.accelerator import Accelerator

_SAMPLES = 16


class HostGroup(Protocol):
    """Ranks that make the same steps: what SGLang calls a group coordinator."""

    @property
    def rank_in_group(self) -> int: ...
    def all_gather_object(self, obj: Any) -> list[Any]:
        """What every rank gave, in the order of ranks."""
        ...


class Door:
    """One engine's tables in this process.

    Made by a plug-in, which may run in a process that never reads a row: the table is attached with the first claim.
    """

    def __init__(self, engine: str, version: str, settings: EngramSettings) -> None:
        self.settings = settings
        self.engine = engine
        self.version = version
        self.log = _logger(engine)
        self._client: TableClient | None = None
        self._making = threading.Lock()
        self._claims: list[Callable[[Manifest], TableSpec]] = []
        self._process = 0
        self._exposed: Exposed | None = None
        self._accelerators: dict[int, Accelerator] = {}

    # --- at start: may raise -----------------------------------------------------------------------------------------

    @property
    def client(self) -> TableClient:
        """Attached when it is first asked for, in the process that asks."""
        with self._making:
            if self._client is None or self._process != os.getpid():
                self._process = os.getpid()
                client = TableClient(
                    self.settings.address, check=self._check, deadlines=self.settings.deadlines, allocate=_pinned
                )
                try:
                    self._show(client)
                except BaseException:
                    client.close()
                    raise
                self._client = client
                client.note("door", f"{self.engine} {self.version}")
                self.log.info("obmm: %s", self._client.explain().replace("\n", "; "))
            return self._client

    def claim(
        self,
        table: str | None,
        *,
        rows: int,
        row_bytes: int,
        dtype: str | None = None,
        offsets: Sequence[int] = (),
    ) -> TableSpec:
        """The table that a layer of the model needs (None: the only one with that many rows).

        ObmmArgumentError when the published tables are another model's, now and whenever the table is attached anew.
        """

        def find(manifest: Manifest) -> TableSpec:
            return _matching(manifest, table, rows, row_bytes, dtype, tuple(offsets))

        spec = find(self.client.manifest)
        self._claims.append(find)
        return spec

    def compare(self, spec: TableSpec, column: int, loaded: Any, what: str) -> None:
        """Whether a tensor of the local checkpoint, a matrix of bytes, is these columns of the table: a few rows of it.

        ObmmArgumentError when one row differs.
        """
        chosen = np.unique(np.linspace(0, spec.n_rows - 1, _SAMPLES).astype(np.int64))
        mine = loaded[torch.from_numpy(chosen)].contiguous().view(torch.uint8).numpy()
        client = self.client
        rows = client.gather(str(spec.table_id), chosen, "compare")
        client.check()
        different = (rows[:, column : column + mine.shape[1]] != mine).any(axis=1)
        if different.any():
            raise _refused(
                f"row {chosen[int(np.argmax(different))]} of {what} is not the one of {spec.table_id!r} as published: "
                "another revision of the model",
                f"publish the checkpoint that {self.engine} loads",
            )

    def share_on_host(self, steps: Sequence[tuple[tuple[str, ...], Any]], group: HostGroup) -> None:
        """Have one rank of each host read, for all of its ranks, the steps of these tables and lanes.

        A collective of `group`, which every rank reaches equally often.  Where it cannot be done ranks read for themselves,
        and `explain` says why.
        """
        client, rows = self.client, self.settings.host_rows
        hosts = group.all_gather_object(host())
        rank = group.rank_in_group
        reader = hosts.index(hosts[rank])
        alone = hosts.count(hosts[rank]) == 1
        made: list[tuple[int, int]] | None = None
        why = ""
        if rank == reader and not alone:
            try:
                made = [offer(client.publish_lane(tables, rows, lane)) for tables, lane in steps]
            except (ObmmError, OSError) as error:
                why = f"not shared: {error}"
        offered = group.all_gather_object(made)[reader]
        if rank != reader and offered is not None:
            try:
                for (tables, lane), place in zip(steps, offered, strict=True):
                    with contextlib.closing(opened(place)) as memory:
                        client.follow_lane(memory.fileno(), tables, rows, lane)
            except (ObmmError, OSError) as error:
                why = f"not shared: {error}"
        if alone:
            why = "the only rank of this host"
        client.note("ranks", why or f"rank {reader} reads for {hosts.count(hosts[rank])} ranks of this host")
        if why and not alone:
            self.log.warning("obmm: rank %d: %s", rank, why)
        group.all_gather_object(None)  # none goes on, and may end, while another one still opens its memory

    # --- in a step: nothing raises but `between_steps`, if it was asked to ----------------------------------------------

    def rows(self, spec: TableSpec, ids: Any, lane: Any = None) -> Any:
        """Rows uint8 ``[n, row_bytes]`` of int32 or int64 ids ``[n]``, on their device; -1 gives zeros."""
        if ids.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._captured(spec, ids, lane)
        step = self.client.fetch({str(spec.table_id): _host_ids(ids)}, lane)
        return self.fetched(step, spec, ids.device)

    def _captured(self, spec: TableSpec, ids: Any, lane: Any) -> Any:
        """A lookup that a graph will replay: may raise, as this is called while the server starts."""
        if not self.settings.graphs:
            raise _refused(
                "a lookup inside a captured graph: rows come from another node's memory, by this host's CPUs",
                'capture without it (piecewise or breakable graphs), start without graphs for decode, or say "graphs": true',
            )
        accelerator = self._accelerators.get(ids.device.index)
        if accelerator is None:
            accelerator = self._accelerators[ids.device.index] = Accelerator.cuda(ids.device.index)
        numbers = ids.reshape(-1).long().contiguous()
        stream = torch.cuda.current_stream(ids.device)
        table = str(spec.table_id)
        return self.client.enqueue(table, numbers, stream, accelerator=accelerator, lane=lane).tensor()

    def fetched(self, step: Step, spec: TableSpec, device: Any) -> Any:
        """The rows of one table of a step, on `device`.  On the CPU they are valid until the thread's next lookup."""
        rows = torch.from_numpy(step.rows(str(spec.table_id)))
        if device.type == "cpu":
            return rows
        # The buffer is the next lookup's: the copy has to be over before.
        return rows.to(device)

    def between_steps(self) -> None:
        """Log what went wrong since the last call, or raise it if that is what was asked for."""
        client = self._client
        if client is None or not client.failing:
            return
        try:
            client.check()
        except ObmmError as error:
            if self._on_error == "raise":
                raise
            self.log.debug("obmm: a step went on with zeros: %s", error.strerror)

    @property
    def _on_error(self) -> str:
        if self.settings.on_error != "auto":
            return self.settings.on_error
        assert self._client is not None
        return "zeros" if all(spec.neutral_zero for spec in self._client.tables.values()) else "raise"

    # --- inside ------------------------------------------------------------------------------------------------------

    def _show(self, client: TableClient) -> None:
        """The counters, where that was asked for: on the first free port, as ranks are processes of one host."""
        address = self.settings.metrics
        if address is None:
            return
        try:
            collector = TableCollector(client, {"door": self.engine})
        except ImportError as error:
            raise _refused(f"metrics={address!r}: {error}", "pip install 'obmm[metrics]'") from error
        self._exposed = expose(address, collector, _refused_metrics)
        client.note("metrics", f"port {self._exposed.port}, process {self._process}")

    def _check(self, manifest: Manifest) -> None:
        found = str(manifest.model.get("engram", {}).get("fingerprint", ""))
        if not found.startswith(self.settings.fingerprint):
            raise _refused(
                f"the table's fingerprint is {found[:16] or 'unknown'}, and {self.settings.fingerprint} was asked for",
                "publish that checkpoint, or ask for this one",
            )
        for claim in self._claims:
            claim(manifest)


def zero_storage(shape: Sequence[int], dtype: Any) -> Any:
    """A tensor of that shape that holds one row: shape checks pass, and nothing is allocated."""
    one = torch.zeros((1, *shape[1:]), dtype=torch.uint8 if dtype.itemsize == 1 else torch.int16, device="cpu")
    return one.view(dtype).expand(*shape)


def _host_ids(ids: Any) -> Any:
    flat = ids.reshape(-1)
    if flat.dtype not in (torch.int32, torch.int64):
        flat = flat.long()
    return flat.detach().cpu().contiguous().numpy()


def _pinned(nbytes: int) -> Any:
    if torch.cuda.is_available():
        return memoryview(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy())
    from obmm.prefetch.slots import anonymous_memory

    return anonymous_memory(nbytes)


def _matching(
    manifest: Manifest, table: str | None, rows: int, row_bytes: int, dtype: str | None, offsets: tuple[int, ...]
) -> TableSpec:
    wanted = f"{rows:,} rows of {row_bytes} bytes"
    named = [spec for spec in manifest.tables if table is None or str(spec.table_id) == table]
    fitting = [spec for spec in named if (spec.n_rows, spec.row_bytes) == (rows, row_bytes)]
    have = ", ".join(f"{s.table_id} with {s.n_rows:,} rows of {s.row_bytes} bytes" for s in manifest.tables)
    if len(fitting) != 1:
        what = f"the model needs {table or 'a table'} with {wanted}; {manifest.model.get('model', 'the source')} has {have}"
        raise _refused(what, "serve the tables of this model: obmm engram publish CHECKPOINT")
    (spec,) = fitting
    if dtype is not None and spec.dtype != dtype:
        raise _refused(f"{spec.table_id!r} holds {spec.dtype}, the model needs {dtype}", "publish its own checkpoint")
    if offsets and spec.head_offsets and spec.head_offsets != offsets:
        raise _refused(
            f"the columns of {spec.table_id!r} begin at {spec.head_offsets[:3]}..., the model's at {offsets[:3]}...",
            "publish its own checkpoint, with its config.json",
        )
    return spec


def _logger(engine: str) -> logging.Logger:
    """Our logger, with the engine's handlers when it has none: engines configure their own loggers only."""
    logger = logging.getLogger(f"obmm.integrations.{engine}")
    if not logger.hasHandlers():
        for handler in logging.getLogger(engine).handlers:
            logging.getLogger("obmm").addHandler(handler)
        if logging.getLogger("obmm").level == logging.NOTSET:
            logging.getLogger("obmm").setLevel(logging.INFO)
    return logger


def _refused_metrics(code: int, problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("ENGRAM", code, problem, fix, "docs/engram-tables.md")


def _refused(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("ENGRAM", errno.EINVAL, problem, fix, "docs/engram-tables.md")
