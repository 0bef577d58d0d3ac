# SPDX-License-Identifier: Apache-2.0
"""vLLM's own spec, factory and tiering manager over a store of blocks."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from obmm.blocks import BlockStoreError
from tests.engines.kv_owner import KvOwner, kv_owner

CHUNK = 16384
_engines = itertools.count()


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvOwner]:
    with kv_owner(tmp_path_factory.mktemp("kv"), CHUNK, 256) as owner:
        yield owner


def tier_json(kv: KvOwner, **options: Any) -> dict[str, Any]:
    return {"type": "ObmmTier", "module_path": "obmm.integrations.vllm_blocks", **kv.options, **options}


def config(kv: KvOwner, model: str = "m", chunks: int = 8, **options: Any) -> OffloadingConfig:
    extra = {"cpu_bytes_to_use": chunks * CHUNK, "secondary_tiers": [tier_json(kv, **options)]}
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("l0",), 0),),
        worker_kv_bytes_per_block=CHUNK,
        enable_kv_cache_events=False,
        extra_config=extra,
        engine_id=f"obmm-test-{os.getpid()}-{next(_engines)}",
        model=OffloadingModelConfig(model, "bfloat16"),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, 0, False),
    )


class Engine:
    """A tiering manager of vLLM and the primary tier's memory."""

    def __init__(self, kv: KvOwner, model: str = "m") -> None:
        self.manager = TieringOffloadingSpec(config(kv, model)).get_manager()
        self.memory = np.asarray(self.manager.primary_tier.get_kv_memoryview())

    @property
    def tier(self) -> Any:
        return self.manager.secondary_tiers[0]

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext([], []))

    def store(self, keys: list[bytes], request: str) -> None:
        """What the engine does when a request's chunks leave the device."""
        context = ReqContext(request)
        self.manager.on_new_request(context)
        prepared = self.manager.prepare_store(keys, context)
        assert prepared is not None
        for key, chunk in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True):
            self.memory[chunk] = content(key)
        self.manager.complete_store(prepared.keys_to_store, context)
        self.step()
        self.tier.drain_jobs()
        self.step()
        self.manager.on_request_finished(context)

    def load(self, keys: list[bytes], request: str) -> list[bool]:
        """Which keys are there; each is promoted and compared."""
        context = ReqContext(request)
        self.manager.on_new_request(context)
        answers: dict[bytes, bool] = {}
        deadline = time.monotonic() + 20
        while len(answers) < len(keys):
            assert time.monotonic() < deadline
            for key in keys:
                if key in answers:
                    continue
                found = self.manager.lookup(key, context)
                if found is LookupResult.HIT:
                    spec = self.manager.prepare_load([key], context)
                    (chunk,) = spec.chunk_ids
                    assert np.array_equal(self.memory[chunk], content(key)), "wrong bytes"
                    self.manager.complete_load([key], context)
                    answers[key] = True
                elif found is LookupResult.MISS:
                    answers[key] = False
            self.step()
            time.sleep(0.002)  # the engine's step
        self.manager.on_request_finished(context)
        return [answers[key] for key in keys]

    def close(self) -> None:
        self.memory = None
        self.manager.reset_cache()
        self.manager.shutdown()


@pytest.fixture
def engine(kv: KvOwner) -> Iterator[Callable[..., Engine]]:
    with ExitStack() as stack:

        def make(model: str = "m") -> Engine:
            made = Engine(kv, model)
            stack.callback(made.close)
            return made

        yield make


def key(i: int) -> bytes:
    return i.to_bytes(32, "big") + (0).to_bytes(4, "big")


def content(k: bytes) -> np.ndarray:
    seed = int.from_bytes(k[:32], "big")
    return np.random.default_rng(seed).integers(-128, 128, CHUNK, dtype=np.int8)


def test_another_engine_gets_what_this_one_stored(kv: KvOwner, engine: Callable[..., Engine]) -> None:
    first, second = engine(), engine()
    keys = [key(i) for i in range(6)]
    first.store(keys, "r1")
    assert second.load([*keys, key(99)], "r2") == [True] * 6 + [False]
    assert second.tier._store.stats()["stored"] == 0


def test_another_model_gets_nothing(kv: KvOwner, engine: Callable[..., Engine]) -> None:
    engine().store([key(1000)], "r1")
    assert engine("other").load([key(1000)], "r2") == [False]


def test_more_than_the_primary_tier_holds_comes_back(kv: KvOwner, engine: Callable[..., Engine]) -> None:
    made = engine()
    keys = [key(2000 + i) for i in range(24)]
    for i in range(0, 24, 4):
        made.store(keys[i : i + 4], f"r{i}")
    for i in range(0, 24, 4):
        assert made.load(keys[i : i + 4], f"l{i}") == [True] * 4


def test_a_chunk_that_was_evicted_meanwhile_is_a_failed_key_and_not_a_failed_job(
    kv: KvOwner, engine: Callable[..., Engine]
) -> None:
    made = engine()
    keys = [key(3000 + i) for i in range(4)]
    made.store(keys, "r1")
    kv.owner.directory.delete([made.tier._store.namespace.hash(keys[1])])
    job = TransferJob(77, keys, np.arange(4, dtype=np.int32), True, ReqContext("x"))
    made.tier.submit_load(job)
    made.tier.drain_jobs()
    (result,) = made.tier.get_finished_jobs()
    assert (result.job_id, result.success) == (77, False)
    assert list(result.successful_keys) == [keys[0], keys[2], keys[3]]
    assert result.transfer_bytes == 3 * CHUNK
    assert list(made.tier.get_finished_jobs()) == []


def test_nothing_raises_into_the_engine(kv: KvOwner, engine: Callable[..., Engine]) -> None:
    made = engine()
    made.tier.submit_store(TransferJob(5, [key(1)], np.array([10_000], np.int32), False, ReqContext("x")))
    made.tier.submit_load(TransferJob(6, [key(1)], np.array([-1], np.int32), True, ReqContext("x")))
    made.tier.submit_load(TransferJob(7, [], np.array([], np.int32), True, ReqContext("x")))
    assert sorted(each.job_id for each in made.tier.get_finished_jobs() if not each.success) == [5, 6, 7]
    assert made.tier.lookup(None, ReqContext("x")) is LookupResult.MISS
    assert not made.tier.has_pending_work()


def test_a_tier_whose_slots_are_too_small_says_what_to_do(kv: KvOwner) -> None:
    view = memoryview(bytearray(4 * 2 * CHUNK)).cast("b", (4, 2 * CHUNK))
    spec = TieringOffloadingSpec(config(kv))
    with pytest.raises(BlockStoreError, match=f"--block-bytes {2 * CHUNK}"):
        SecondaryTierFactory.create_secondary_tier(tier_json(kv), view, spec)


def test_a_hot_lookup_asks_no_owner(kv: KvOwner, engine: Callable[..., Engine]) -> None:
    made = engine()
    keys = [key(4000 + i) for i in range(4)]
    made.store(keys, "r1")
    asked = made.tier._store.stats()["questions"].get("lookup", 0)
    assert [made.tier.lookup(k, ReqContext("x")) for k in keys * 10] == [LookupResult.HIT] * 40
    assert made.tier._store.stats()["questions"].get("lookup", 0) == asked


def test_the_engine_gets_our_counters_with_its_own(kv: KvOwner, engine: Callable[..., Engine]) -> None:
    made = engine("counted")
    made.store([key(5000 + i) for i in range(3)], "r1")
    first = made.manager.get_stats()
    assert first is not None
    assert first.reduce()["obmm_kv_stored_bytes_total:('ObmmTier',)"] == 3 * CHUNK
    again = made.tier.get_stats()
    assert again is None or "obmm_kv_stored_bytes_total:('ObmmTier',)" not in again.reduce()
    definitions = TieringOffloadingSpec.build_metric_definitions(config(kv).extra_config)
    assert {name for name in first.reduce() if name.startswith("obmm")} <= {
        f"{name}:('ObmmTier',)" for name in definitions
    }
