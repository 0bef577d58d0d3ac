# SPDX-License-Identifier: Apache-2.0
"""vLLM: a secondary tier of its KV offloading in another node's memory (docs/blocks.md).

    {"type": "ObmmTier", "module_path": "obmm.integrations.vllm_blocks", "source": "host:port/kv"}

in ``kv_connector_extra_config.secondary_tiers``.  vLLM is imported when it asks for the class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from obmm._native import ffi
from obmm.blocks import BlockTicket, Namespace, Pieces
from obmm.integrations.block_door import COUNTERS, BlockDoor
from obmm.integrations.versions import HookPoint, check_hooks, check_version

if TYPE_CHECKING:
    ObmmTier: type[Any]

_BASE = "vllm.v1.kv_offload.tiering.base"
HOOKS = (
    HookPoint(f"{_BASE}:SecondaryTierManager.lookup", ("key", "req_context")),
    HookPoint(f"{_BASE}:SecondaryTierManager.submit_store", ("job_metadata",)),
    HookPoint(f"{_BASE}:SecondaryTierManager.submit_load", ("job_metadata",)),
    HookPoint(f"{_BASE}:SecondaryTierManager.get_finished_jobs"),
    HookPoint(f"{_BASE}:SecondaryTierManager.drain_jobs"),
    HookPoint(f"{_BASE}:TransferJob", ("job_id", "keys", "chunk_ids", "is_promotion", "req_context")),
    HookPoint(f"{_BASE}:JobResult", ("job_id", "success", "successful_keys", "transfer_time", "transfer_bytes")),
)


def namespace_of(config: Any, chunk_bytes: int) -> Namespace:
    """What two engines must have in common to share a chunk: model, data type, sizes, parallel layout."""
    parallel = config.parallel
    layout: dict[str, Any] = {}
    if not parallel.is_parallelism_agnostic:
        layout = {
            name: getattr(parallel, name) for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
        }
    return Namespace(
        door="vllm",
        format=1,
        model=config.model.name,
        dtype=config.model.dtype,
        chunk_bytes=chunk_bytes,
        tokens_per_block=[group.tokens_per_block for group in config.groups],
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        layout=layout,
        kv_layout=getattr(config, "kv_cache_layout", None) or "",
    )


@cache
def _tier() -> type[Any]:
    """The class, made of the installed engine's base."""
    check_version("vllm")
    check_hooks("vllm", HOOKS)
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.v1.kv_offload.base import LookupResult, OffloadingCounterMetadata, RequestOffloadingContext
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

    class ObmmTier(SecondaryTierManager):  # type: ignore[misc]
        """Chunks of the primary tier, stored in and loaded from a `BlockStore`.  Lives in the scheduler's process."""

        medium = None  # neither this host's memory nor a disk

        def __init__(
            self,
            offloading_spec: Any,
            primary_kv_view: memoryview,
            tier_type: str,
            backpressure_detector: Any = None,
            locality: Any = None,
            **options: Any,
        ) -> None:
            super().__init__(
                offloading_spec=offloading_spec,
                primary_kv_view=primary_kv_view,
                tier_type=tier_type,
                backpressure_detector=backpressure_detector,
            )
            size = self.block_size_bytes
            self._door = BlockDoor("vllm", namespace_of(offloading_spec.config, size), block_bytes=size, **options)
            self._store = self._door.store
            flat = ffi.from_buffer("char[]", primary_kv_view.cast("B"), require_writable=True)
            self._view = flat  # keeps the view
            self._base = int(ffi.cast("uintptr_t", flat))
            self._chunks = primary_kv_view.shape[0] if primary_kv_view.shape else 0
            self._jobs: dict[int, tuple[int, tuple[Any, ...], bool]] = {}
            self._lookups: dict[Any, BlockTicket | None] = {}  # None: it is known that it is not there
            self._asked: list[Any] = []
            self._failed: list[Any] = []
            self._told: dict[str, float] = {}  # of each counter, what the engine knows

        # --- lookups: never a message on the scheduler's thread -------------------------------------------------------

        def lookup(self, key: Any, req_context: Any) -> Any:
            """HIT for what is known here; what is not is asked in the background, and is RETRY until the answer comes."""
            return self._door.quietly("lookup", lambda: self._lookup(key), LookupResult.MISS)

        def _lookup(self, key: Any) -> Any:
            if self._store.known([key])[0]:
                self._lookups.pop(key, None)
                return LookupResult.HIT
            ticket = self._lookups.get(key)
            if ticket is None:
                if key not in self._lookups:
                    self._lookups[key] = self._store.submit_exists([key], timeout=self._door.timeout)
                    return LookupResult.RETRY
                return LookupResult.MISS
            if not ticket.done:
                return LookupResult.RETRY
            del self._lookups[key]
            return LookupResult.HIT if ticket.result()[0] else LookupResult.MISS

        # --- jobs ----------------------------------------------------------------------------------------------------

        def submit_store(self, job_metadata: Any) -> None:
            """Chunks that are there already are not copied."""
            self._submit(job_metadata, is_load=False)

        def submit_load(self, job_metadata: Any) -> None:
            """A load is reported when its chunks are not written any more."""
            self._submit(job_metadata, is_load=True)

        def _submit(self, job: Any, *, is_load: bool) -> None:
            keys = tuple(job.keys)
            try:
                chunks = np.asarray(job.chunk_ids, np.int64)
                if len(chunks) != len(keys) or (len(chunks) and int(chunks.max()) >= self._chunks):
                    raise ValueError(f"{len(keys)} keys, chunks {chunks!r:.80} of {self._chunks}")
                memory = Pieces.of_slots(self._base, self.block_size_bytes, chunks, self.block_size_bytes)
                submit = self._store.submit_get if is_load else self._store.submit_put
                ticket = submit(list(keys), memory, timeout=self._door.timeout)
                self._jobs[ticket.id] = (job.job_id, keys, is_load)
            except Exception as error:
                self._door.failed("load" if is_load else "store", error)
                self._failed.append(JobResult(job_id=job.job_id, success=False))

        def get_finished_jobs(self) -> Iterable[Any]:
            """Each job once."""
            results, self._failed = self._failed, []
            for ticket in self._door.completed():
                known = self._jobs.pop(ticket.id, None)
                if known is None:
                    continue
                job_id, keys, is_load = known
                there = ticket.result()
                success = bool(there.all())
                loaded = None
                if is_load and not success:
                    loaded = [key for key, flag in zip(keys, there, strict=True) if flag]
                results.append(
                    JobResult(
                        job_id=job_id,
                        success=success,
                        successful_keys=loaded,
                        transfer_time=ticket.seconds,
                        transfer_bytes=ticket.nbytes,
                    )
                )
            return results

        def drain_jobs(self) -> None:
            """Nothing touches the primary tier when this returns; results stay for the next poll."""
            self._door.quietly("drain", self._store.drain, False)

        def has_pending_work(self) -> bool:
            return bool(self._jobs or self._failed)

        # --- requests ------------------------------------------------------------------------------------------------

        def on_new_request(self, req_context: Any) -> Any:
            return RequestOffloadingContext()

        def touch(self, keys: Collection[Any], req_context: Any) -> None:
            self._door.quietly("touch", lambda: self._store.touch(list(keys)), None)

        def on_schedule_end(self, context: Any) -> None:
            """Unclaimed answers and misses of this step are forgotten."""
            for key in [key for key, ticket in self._lookups.items() if ticket is None or ticket.done]:
                if len(self._lookups) > _MOST_LOOKUPS or self._lookups[key] is None:
                    del self._lookups[key]

        # --- metrics -------------------------------------------------------------------------------------------------

        @classmethod
        def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
            """The counters of `get_stats`, for the engine's /metrics."""
            return {
                name: OffloadingCounterMetadata(documentation=text, labelnames=("tier",))
                for name, text in COUNTERS.items()
            }

        def get_stats(self) -> Any:
            """What was counted since the last call, or None."""
            nothing: dict[str, float] = {}
            now = self._door.quietly("metrics", self._door.metrics, nothing)
            stats = OffloadingConnectorStats()
            for name, value in now.items():
                if value > self._told.get(name, 0):
                    stats.increase_counter(name, value - self._told.get(name, 0), (self.tier_type,))
                    self._told[name] = value
            return None if stats.is_empty() else stats

        def shutdown(self) -> None:
            """The view is released after this: no thread of ours may still use it."""
            self._door.close()
            self._view = None

    return ObmmTier


_MOST_LOOKUPS = 65_536


def __getattr__(name: str) -> Any:
    if name == "ObmmTier":
        return _tier()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
