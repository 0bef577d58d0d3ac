# SPDX-License-Identifier: Apache-2.0
"""SGLang's own controller, host pool, factory and failure injector over a store of blocks.  Only the device pool is played."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel

from obmm.blocks import BlockStoreError
from tests.engines.kv_owner import KvOwner, kv_owner

PAGE, LAYERS, HEADS, DIM, TOKENS = 16, 2, 2, 64, 512
PAGE_BYTES = 2 * LAYERS * PAGE * HEADS * DIM * 2


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvOwner]:
    with kv_owner(tmp_path_factory.mktemp("kv"), PAGE_BYTES, 512) as owner:
        yield owner


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gloo group of one."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def extra(kv: KvOwner, **options: Any) -> dict[str, Any]:
    return {
        "backend_name": "obmm",
        "module_path": "obmm.integrations.sglang_hicache",
        "class_name": "ObmmStorage",
        "interface_v1": 1,
        **kv.options,
        **options,
    }


def host_pool(layout: str = "page_first") -> MHATokenToKVPoolHost:
    k = tuple(torch.zeros(TOKENS, HEADS, DIM, dtype=torch.bfloat16) for _ in range(LAYERS))
    v = tuple(torch.zeros(TOKENS, HEADS, DIM, dtype=torch.bfloat16) for _ in range(LAYERS))

    def pointers(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.tensor([each.data_ptr() for each in tensors], dtype=torch.uint64)

    buffers = KVBuffers(k=k, v=v, k_data_ptrs=pointers(k), v_data_ptrs=pointers(v), layout=KVBufferLayout.NHD)
    info = MHABufferInfo(
        buffers=buffers,
        page_size=PAGE,
        head_num=HEADS,
        head_dim=DIM,
        v_head_dim=DIM,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        2.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device="cpu",
        device_capacity_tokens=TOKENS,
        start_layer=0,
        end_layer=LAYERS,
    )


class Engine:
    """A controller of SGLang with its threads."""

    def __init__(self, kv: KvOwner, group: Any, model: str = "m", layout: str = "page_first") -> None:
        self.pool = host_pool(layout)
        device = SimpleNamespace(
            layer_num=LAYERS, device="cpu", register_layer_transfer_counter=lambda counter: None, size=TOKENS
        )
        allocator = SimpleNamespace(get_kvcache=lambda: device, device="cpu", page_size=PAGE)
        self.controller = HiCacheController(
            allocator,
            self.pool,
            PAGE,
            group,
            threading.Event(),
            write_policy="write_through",
            io_backend="direct",
            storage_backend="dynamic",
            prefetch_threshold=16,
            model_name=model,
            storage_backend_extra_config=extra(kv),
        )

    @property
    def storage(self) -> Any:
        backend = self.controller.storage_backend
        return getattr(backend, "_backend", getattr(backend, "backend", backend))

    def fill(self, tokens: list[int]) -> torch.Tensor:
        """Pages whose content follows from the tokens before and in them."""
        indices = self.pool.alloc(len(tokens))
        assert indices is not None
        for page, key in enumerate(hashes(tokens)):
            rows = indices[page * PAGE : (page + 1) * PAGE]
            self.pool.set_from_flat_data_page(int(rows[0]), content(key).view(torch.bfloat16).reshape(-1))
        return indices

    def page(self, row: int) -> torch.Tensor:
        return self.pool.get_data_page(row, flat=True).contiguous().view(torch.uint8)

    def back_up(self, tokens: list[int]) -> int:
        """Tokens that the controller's thread stored."""
        indices = self.fill(tokens)
        self.controller.write_storage(indices, tokens, hash_value=hashes(tokens))
        done = self.controller.ack_backup_queue.get(timeout=30)
        self.pool.free(indices)
        return int(done.completed_tokens)

    def prefetch(self, tokens: list[int]) -> int:
        """Tokens that came back; every page is compared."""
        self.controller.prefetch(f"r{time.monotonic_ns()}", tokens)
        operation = self.controller.prefetch_hit_queue.get(timeout=30)
        if not operation.storage_hit_count:
            return 0
        indices = self.pool.alloc(operation.storage_hit_count)
        operation.host_indices = indices
        self.controller.prefetch_buffer.put(operation)
        got = 0
        while not (ack := self.controller.ack_prefetch_queue.get(timeout=30)).completed_req:
            got = max(got, int(ack.completed_tokens or 0))
        for page, key in enumerate(hashes(tokens)[: got // PAGE]):
            assert torch.equal(self.page(int(indices[page * PAGE])), content(key)), "wrong bytes"
        self.pool.free(indices)
        assert ack.operation is operation
        return got

    def close(self) -> None:
        self.controller.detach_storage_backend()


@pytest.fixture
def engine(kv: KvOwner, group: Any) -> Iterator[Callable[..., Engine]]:
    with ExitStack() as stack:
        stack.enter_context(
            get_parallel().override(
                tp_size=1, tp_rank=0, pp_size=1, pp_rank=0, attn_dp_size=1, attn_dp_rank=0, attn_tp_size=1,
                attn_tp_rank=0, attn_cp_size=1, attn_cp_rank=0, attn_dcp_size=1, attn_dcp_rank=0,
            )
        )  # fmt: skip

        def make(*arguments: Any, **options: Any) -> Engine:
            made = Engine(kv, group, *arguments, **options)
            stack.callback(made.close)
            return made

        yield make


def hashes(tokens: list[int]) -> list[str]:
    return list(get_storage_hash_str(tokens, None, page_size=PAGE))


def content(key: str) -> torch.Tensor:
    data = hashlib.shake_128(key.encode()).digest(PAGE_BYTES)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def tokens(seed: int, pages: int = 8) -> list[int]:
    return [seed * 1_000_000 + i for i in range(pages * PAGE)]


def test_another_engine_prefetches_what_this_one_backed_up(engine: Callable[..., Engine]) -> None:
    first, second = engine(), engine()
    assert first.back_up(tokens(1)) == 8 * PAGE
    assert second.prefetch(tokens(1)) == 8 * PAGE
    assert second.prefetch(tokens(1)[: 4 * PAGE] + tokens(2)) == 4 * PAGE
    assert second.storage.explain()["stored"] == 0


def test_another_model_or_layout_prefetches_nothing(engine: Callable[..., Engine]) -> None:
    assert engine().back_up(tokens(3)) == 8 * PAGE
    assert engine("other").prefetch(tokens(3)) == 0
    assert engine(layout="layer_first").prefetch(tokens(3)) == 0


def test_layer_first_pools_move_in_pieces(engine: Callable[..., Engine]) -> None:
    first, second = engine("pieces", layout="layer_first"), engine("pieces", layout="layer_first")
    assert first.back_up(tokens(4)) == 8 * PAGE
    assert second.prefetch(tokens(4)) == 8 * PAGE


def test_configurations_that_cannot_be_fail_the_attach_with_a_sentence(kv: KvOwner) -> None:
    def config(**options: Any) -> HiCacheStorageConfig:
        return HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "m", extra_config=extra(kv, **options))

    with pytest.raises(BlockStoreError, match="interface_v1"):
        StorageBackendFactory.create_backend("dynamic", config(interface_v1=0), None)
    broken = config()
    del broken.extra_config["source"]
    with pytest.raises(BlockStoreError, match="source"):
        StorageBackendFactory.create_backend("dynamic", broken, None)


def test_before_a_pool_and_after_close_everything_is_a_miss(kv: KvOwner) -> None:
    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "m", extra_config=extra(kv))
    storage = StorageBackendFactory.create_backend("dynamic", config, None)
    for _ in range(2):
        assert storage.batch_exists(["a"]) == 0
        assert storage.batch_get_v1(["a"], torch.arange(PAGE)) == [False]
        assert storage.batch_set_v1(["a"], torch.arange(PAGE)) == [False]
        assert storage.get("a", torch.zeros(4)) is None
        assert storage.set("a", torch.zeros(4)) is False
        storage.close()


def test_indices_that_are_none_are_misses_and_no_exceptions(engine: Callable[..., Engine]) -> None:
    made = engine()
    assert made.storage.batch_get_v1(["a", "b"], torch.arange(PAGE)) == [False, False]
    assert made.storage.batch_set_v1(["a"], None) == [False]


def test_the_engines_injector_over_many_operations(
    engine: Callable[..., Engine], kv: KvOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 % failures and up to 50 ms of delay: what is answered is right, and nothing is raised.  100,000 page operations."""
    with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.3):
        with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY.override(0.05):
            made = engine("injected")
    backend, pool = made.controller.storage_backend, made.pool
    wanted = OPERATIONS
    generator = torch.Generator().manual_seed(1)
    done = hits = 0
    indices = pool.alloc(64 * PAGE)
    while done < wanted:
        first = int(torch.randint(0, 400, (1,), generator=generator))
        keys = [f"{first + i:064x}" for i in range(64)]
        for page, key in enumerate(keys):
            if done % 8_192 == 0:
                pool.set_from_flat_data_page(int(indices[page * PAGE]), content(key).view(torch.bfloat16))
        if done % 8_192 == 0:
            backend.batch_set_v1(keys, indices)
        backend.batch_exists(keys)
        there = backend.batch_get_v1(keys, indices)
        assert len(there) == 64
        for page, (key, flag) in enumerate(zip(keys, there, strict=True)):
            if flag and page % 16 == 0:
                assert torch.equal(made.page(int(indices[page * PAGE])), content(key)), "wrong bytes"
            hits += flag
        done += 3 * 64
    assert hits > 0
    assert made.storage.explain()["errors"] == 0


OPERATIONS = 100_000


def side(storage: Any, name: PoolName = PoolName.SWA) -> MHATokenToKVPoolHost:
    """A second pool, as a hybrid model has one."""
    pool = host_pool()
    storage.register_mem_host_pool_v2(pool, name)
    return pool


def filled(pool: MHATokenToKVPoolHost, keys: list[str], salt: str) -> torch.Tensor:
    indices = pool.alloc(len(keys) * PAGE)
    for page, key in enumerate(keys):
        pool.set_from_flat_data_page(int(indices[page * PAGE]), content(key + salt).view(torch.bfloat16).reshape(-1))
    return indices


def test_a_hybrid_models_pools_come_back_each_with_its_own_bytes(engine: Callable[..., Engine]) -> None:
    first, second = engine("hybrid"), engine("hybrid")
    keys = hashes(tokens(11))
    assert first.back_up(tokens(11)) == 8 * PAGE
    pool = side(first.storage)
    indices = filled(pool, keys[:5], "swa")
    done = first.storage.batch_set_v2([PoolTransfer(PoolName.SWA, indices, None, keys[:5])])
    assert done == {PoolName.SWA: [True] * 5}

    other = side(second.storage)
    landing = other.alloc(8 * PAGE)
    got = second.storage.batch_get_v2([PoolTransfer(PoolName.SWA, landing, None, keys)])
    assert got == {PoolName.SWA: [True] * 5 + [False] * 3}
    for page, key in enumerate(keys[:5]):
        bytes_ = other.get_data_page(int(landing[page * PAGE]), flat=True).contiguous().view(torch.uint8)
        assert torch.equal(bytes_, content(key + "swa")), "wrong bytes"
    assert second.prefetch(tokens(11)) == 8 * PAGE, "the KV pages of the same keys are other blocks"


@pytest.mark.parametrize(
    ("policy", "trailing", "pages"), [(PoolHitPolicy.ALL_PAGES, 1, 2), (PoolHitPolicy.TRAILING_PAGES, 1, 4)]
)
def test_a_prefix_is_as_long_as_all_pools_can_restore(
    engine: Callable[..., Engine], policy: PoolHitPolicy, trailing: int, pages: int
) -> None:
    made = engine(f"prefix {policy.value}")
    keys = hashes(tokens(12))
    made.back_up(tokens(12))
    pool = side(made.storage)
    there = [keys[0], keys[1], keys[3]]
    made.storage.batch_set_v2([PoolTransfer(PoolName.SWA, filled(pool, there, "swa"), None, there)])
    asked = PoolTransfer(PoolName.SWA, None, None, keys[:trailing], policy)
    found = made.storage.batch_exists_v2(keys, [asked])
    assert found.kv_hit_pages == pages
    assert found.extra_pool_hit_pages == {PoolName.KV: 8, PoolName.SWA: pages}


def test_a_pool_that_cannot_be_moved_fails_the_attach_with_a_sentence(engine: Callable[..., Engine]) -> None:
    storage = engine("unfit").storage
    with pytest.raises(BlockStoreError, match="page_first"):
        storage.register_mem_host_pool_v2(SimpleNamespace(page_size=PAGE, layout="odd"), PoolName.MAMBA)
    unknown = PoolTransfer(PoolName.INDEXER, torch.arange(PAGE), None, ["a"])
    assert storage.batch_get_v2([unknown]) == {PoolName.INDEXER: [False]}
    assert storage.batch_exists_v2(["a"], [unknown]).kv_hit_pages == 0


def test_the_engine_gets_pages_and_speed_of_what_was_moved(engine: Callable[..., Engine]) -> None:
    made = engine("counted")
    made.back_up(tokens(13))
    made.prefetch(tokens(13))
    found = made.storage.get_stats()
    assert sum(found.backup_pgs) == sum(found.prefetch_pgs) == 8
    assert min(found.backup_bandwidth + found.prefetch_bandwidth) > 0
    assert made.storage.get_stats().backup_pgs == []
