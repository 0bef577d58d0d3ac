# SPDX-License-Identifier: Apache-2.0
"""SGLang: HiCache pages in another node's memory, without a copy in between (docs/blocks.md).

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "obmm", "module_path": "obmm.integrations.sglang_hicache", "class_name": "ObmmStorage",
      "interface_v1": 1, "source": "host:port/kv"}'

SGLang is imported when it asks for the class.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from obmm.blocks import BlockStoreError, Namespace, Pieces
from obmm.integrations.block_door import BlockDoor
from obmm.integrations.sglang_pools import KV, SidePools, anchor_of, page_sizes, pieces_of, restorable_prefixes
from obmm.integrations.versions import HookPoint, check_hooks, check_version

if TYPE_CHECKING:
    ObmmStorage: type[Any]

_BASE = "sglang.srt.mem_cache.hicache_storage:HiCacheStorage"
HOOKS = (
    HookPoint(f"{_BASE}.batch_exists", ("keys", "extra_info")),
    HookPoint(f"{_BASE}.batch_get_v1", ("keys", "host_indices", "extra_info")),
    HookPoint(f"{_BASE}.batch_set_v1", ("keys", "host_indices", "extra_info")),
    HookPoint(f"{_BASE}.batch_exists_v2", ("keys", "pool_transfers", "extra_info")),
    HookPoint(f"{_BASE}.batch_get_v2", ("transfers", "extra_info")),
    HookPoint(f"{_BASE}.batch_set_v2", ("transfers", "extra_info")),
    HookPoint(f"{_BASE}.register_mem_pool_host", ("mem_pool_host",)),
    HookPoint(f"{_BASE}.register_mem_host_pool_v2", ("host_pool", "host_pool_name")),
)
_MOST_MOVES = 4096
_OPTIONS = ("source", "key", "tls", "plain", "device", "tenant", "timeout", "metrics")


def namespace_of(config: Any) -> Namespace:
    """What two engines must have in common to share a page; every rank has pages of its own, but for MLA."""
    ranks: dict[str, Any] = {
        "pp": [config.pp_rank, config.pp_size],
        "cp": [config.attn_cp_rank, config.attn_cp_size],
        "dcp": [config.dcp_rank, config.dcp_size],
    }
    if not config.is_mla_model:
        ranks["tp"] = [config.tp_rank, config.tp_size]
    return Namespace(
        door="sglang",
        format=1,
        model=config.model_name or "",
        mla=bool(config.is_mla_model),
        page_first=bool(config.is_page_first_layout),
        ranks=ranks,
    )


@cache
def _storage() -> type[Any]:
    """The class, made of the installed engine's base."""
    check_version("sglang")
    check_hooks("sglang", HOOKS)
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult
    from sglang.srt.observability.metrics_collector import StorageMetrics

    class ObmmStorage(HiCacheStorage):  # type: ignore[misc]
        """Pages of a host pool, moved by address.  Called from several of SGLang's threads."""

        def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
            extra = dict(storage_config.extra_config or {})
            if not extra.get("interface_v1"):
                raise BlockStoreError.because(
                    22, "the extra config has no interface_v1", 'add "interface_v1": 1: pages then move without a copy'
                )
            options = {name: extra[name] for name in _OPTIONS if name in extra}
            if "source" not in options:
                raise BlockStoreError.because(22, "the extra config names no source", '"source": "host:port/kv"')
            self._facts = namespace_of(storage_config)
            self._options = options
            self._door: BlockDoor | None = None
            self._pools = SidePools()
            self._moves: deque[tuple[str, int, float]] = deque(maxlen=_MOST_MOVES)  # since the engine last asked

        # --- the pool ------------------------------------------------------------------------------------------------

        def register_mem_pool_host(self, mem_pool_host: Any) -> None:
            """Open the store for pages of this pool; raising here fails the attach with a sentence."""
            super().register_mem_pool_host(mem_pool_host)
            self._open()

        def _open(self) -> BlockDoor:
            if self._door is None:
                pool = anchor_of(self.mem_pool_host)
                sizes = page_sizes(pool)
                size = sum(sizes)
                namespace = Namespace(
                    **self._facts.facts,
                    page_bytes=size,
                    pieces=len(sizes),
                    dtype=str(pool.dtype),
                    layout=str(getattr(pool, "layout", "")),
                )
                self._door = BlockDoor("sglang", namespace, block_bytes=size, **self._options)
            return self._door

        def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
            """A pool of a hybrid model; raising here fails the attach with a sentence."""
            super().register_mem_host_pool_v2(host_pool, host_pool_name)
            self._pools.add(str(host_pool_name), host_pool, self._open().store.block_bytes)

        # --- zero copy -----------------------------------------------------------------------------------------------

        def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
            """The leading run of pages that are there."""
            if self._door is None:
                return 0
            door = self._door
            return door.quietly("lookup", lambda: door.store.leading(keys, timeout=door.timeout), 0)

        def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
            """Whether each page is in the pool now."""
            return self._move("load", keys, host_indices)

        def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
            """Whether each page is stored."""
            return self._move("store", keys, host_indices)

        def _move(self, what: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
            door = self._door
            nothing = [False] * len(keys)
            if door is None or not len(keys):
                return nothing
            return door.quietly(what, lambda: self._moved(door, what, keys, host_indices), nothing)

        def _moved(self, door: BlockDoor, what: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
            pool = anchor_of(self.mem_pool_host)
            return self._transferred(door, what, keys, pieces_of(pool, keys, host_indices))

        def _transferred(self, door: BlockDoor, what: str, keys: Sequence[str], memory: Pieces) -> list[bool]:
            call = door.store.get if what == "load" else door.store.put
            started = time.perf_counter()
            flags = [bool(flag) for flag in call(list(keys), memory, timeout=door.timeout)]
            done = sum(flags)
            if done:
                moved = int(memory.totals[np.array(flags)].sum())
                self._moves.append((what, done, moved / max(time.perf_counter() - started, 1e-9) / 1e9))
            return flags

        # --- hybrid models ---------------------------------------------------------------------------------------------

        def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
            """The longest prefix that all pools can restore, and what each of them has."""
            door = self._door
            if door is None or not len(keys):
                return PoolTransferResult.empty()

            def look() -> Any:
                pages = door.store.leading(keys, timeout=door.timeout)
                policies = {
                    str(each.name): (str(each.hit_policy.value), max(1, len(each.keys or ())))
                    for each in pool_transfers or ()
                    if str(each.name) != KV
                }
                unknown = [name for name in policies if name not in self._pools]
                if unknown:
                    raise ValueError(f"pools that were not registered: {unknown}")
                asked = [key for name in policies for key in self._pools.keys(name, keys[:pages])]
                flags = door.store.exists(asked, timeout=door.timeout).astype(bool).tolist() if asked else []
                present = {name: flags[i * pages : (i + 1) * pages] for i, name in enumerate(policies)}
                prefixes, reach = restorable_prefixes(pages, policies, present)
                return PoolTransferResult(prefixes[-1] if prefixes else 0, reach, prefixes)

            return door.quietly("lookup", look, PoolTransferResult.empty())

        def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
            """Whether each page is in its pool now."""
            return self._move_pools("load", transfers)

        def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
            """Whether each page of each pool is stored."""
            return self._move_pools("store", transfers)

        def _move_pools(self, what: str, transfers: Sequence[Any]) -> dict[str, list[bool]]:
            return {each.name: self._move_pool(what, each) for each in transfers}

        def _move_pool(self, what: str, transfer: Any) -> list[bool]:
            door, name, keys = self._door, str(transfer.name), list(transfer.keys or ())
            nothing = [False] * len(keys)
            if door is None or not keys:
                return nothing

            def move() -> list[bool]:
                memory = self._pools.pieces(name, keys, transfer.host_indices)
                return self._transferred(door, what, self._pools.keys(name, keys), memory)

            return door.quietly(f"{what} of {name}", move, nothing)

        # --- the older interface: by value, for completeness -------------------------------------------------------------

        def exists(self, key: str) -> bool:
            return self.batch_exists([key]) == 1

        def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
            """The page in `target_location` (a contiguous CPU tensor), or None."""
            found = self.batch_get([key], [target_location])
            return found[0]

        def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
            nothing: list[Any] = [None] * len(keys)
            door = self._door
            if door is None or target_locations is None or any(each is None for each in target_locations):
                return nothing

            def load() -> list[Any]:
                memory = _tensors(target_locations)
                there = door.store.get(list(keys), memory, timeout=door.timeout)
                return [each if flag else None for each, flag in zip(target_locations, there, strict=True)]

            return door.quietly("load", load, nothing)

        def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
            return self.batch_set([key], [value if value is not None else target_location])

        def batch_set(
            self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
        ) -> bool:
            """Whether all of them are stored."""
            door, sources = self._door, values if values is not None else target_locations
            if door is None or sources is None or any(each is None for each in sources):
                return False

            def store() -> bool:
                return bool(door.store.put(list(keys), _tensors(sources), timeout=door.timeout).all())

            return door.quietly("store", store, False)

        # --- life ----------------------------------------------------------------------------------------------------

        def clear(self) -> None:
            """Blocks are shared with other engines: `obmm blocks evict` is for their owner."""
            if self._door is not None:
                self._door.log.info(
                    "obmm: clear() leaves blocks that other engines share; `obmm blocks evict` drops them"
                )

        def get_stats(self) -> Any:
            """Pages and GB/s of each batch since the engine last asked, for its own metrics."""
            moves = [self._moves.popleft() for _ in range(len(self._moves))]
            loads, stores = ([each for each in moves if each[0] == what] for what in ("load", "store"))
            return StorageMetrics(
                prefetch_pgs=[pages for _, pages, _ in loads],
                backup_pgs=[pages for _, pages, _ in stores],
                prefetch_bandwidth=[speed for _, _, speed in loads],
                backup_bandwidth=[speed for _, _, speed in stores],
            )

        def explain(self) -> dict[str, Any]:
            """Which store serves, and what it has done."""
            return self._door.explain() if self._door is not None else {"store": "not attached"}

        def close(self) -> None:
            door, self._door = self._door, None
            if door is not None:
                door.close()

    return ObmmStorage


def _tensors(tensors: Sequence[Any]) -> Pieces:
    sizes = np.array([each.numel() * each.element_size() for each in tensors], np.uint32)
    for each in tensors:
        if each.device.type != "cpu" or not each.is_contiguous():
            raise BlockStoreError.because(
                22, f"a tensor on {each.device}, contiguous={each.is_contiguous()}", "host memory"
            )
    return Pieces.of_addresses(len(tensors), np.array([each.data_ptr() for each in tensors], np.uint64), sizes)


def __getattr__(name: str) -> Any:
    if name == "ObmmStorage":
        return _storage()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
