# SPDX-License-Identifier: Apache-2.0
"""The source project's interface: its callers change an import and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pool_node import DIM, ROWS, TABLES, config, table

import obmm
from obmm import emulator
from obmm.errors import ObmmArgumentError
from obmm.prefetch.bfloat16 import from_bfloat16_bits, to_bfloat16_bits
from obmm.prefetch.pool import EngramPool, EngramPoolConfig, EngramPrefetcher
from obmm.prefetch.tensors import as_ids, as_result

pytestmark = pytest.mark.usefixtures("without_torch")


def test_another_nodes_rows_come_back_as_they_were_loaded(pool: EngramPool) -> None:
    ids = np.random.default_rng(9).integers(0, ROWS, 777)  # more than one batch
    for number in range(TABLES):
        assert np.array_equal(pool.batch_lookup(number, ids), table(number)[ids])
    assert np.array_equal(pool.batch_lookup_async(1, ids.tolist()).result(10), table(1)[ids])
    assert pool.batch_lookup(0, []).shape == (0, DIM)


def test_bfloat16_is_the_rounded_float32(pool: EngramPool) -> None:
    ids = np.arange(ROWS)
    bits = pool.batch_lookup(2, ids, "bfloat16")
    assert np.array_equal(bits, to_bfloat16_bits(table(2)))
    assert np.allclose(from_bfloat16_bits(bits), table(2), rtol=2**-8)


def test_prefetch_gathers_all_tables_of_a_step(pool: EngramPool) -> None:
    prefetcher = EngramPrefetcher(pool, pool.config)
    ids = np.random.default_rng(3).integers(0, ROWS, (TABLES, 64))
    request = prefetcher.prefetch_async(list(enumerate(ids)), 64, dtype="float32")
    rows = prefetcher.wait_and_gather(request)
    assert np.array_equal(rows, np.stack([table(number)[ids[number]] for number in range(TABLES)]))
    # one table read twelve times, as the source project does
    rows = prefetcher.prefetch_and_wait([(0, ids[i % TABLES]) for i in range(12)], 64)
    assert rows.shape == (12, 64, DIM)
    assert np.array_equal(rows[5], to_bfloat16_bits(table(0)[ids[2]]))


def test_tables_are_described_and_unknown_ones_named(pool: EngramPool) -> None:
    meta = pool.get_table_meta(1)
    assert (meta["rows"], meta["dim"], meta["path"]) == (ROWS, DIM, "cacheable")
    assert "emulator" in meta["backend"]
    assert pool.is_table_loaded(2)
    assert not pool.is_table_loaded(99)
    with pytest.raises(ObmmArgumentError, match="table 99 is neither"):
        pool.batch_lookup(99, [0])
    with pytest.raises(ObmmArgumentError, match="500"):
        pool.batch_lookup(1, [ROWS])
    with pytest.raises(ObmmArgumentError, match="seq_len=2"):
        EngramPrefetcher(pool).prefetch_async([(0, [1])], 2)


def test_a_table_may_be_loaded_again_in_the_same_shape(pool_fabric: emulator.Fabric) -> None:
    with obmm.open(pool_fabric.device("a")) as device:
        pool = EngramPool(config(), device=device)
        with pytest.raises(ValueError, match="initialize"):
            pool.load_table(0, table(0))
        pool.initialize()
        pool.initialize()
        pool.load_table(0, table(0))
        pool.load_table(0, table(7))
        assert np.array_equal(pool.batch_lookup(0, [3, 2]), table(7)[[3, 2]])
        with pytest.raises(ObmmArgumentError, match="same shape"):
            pool.load_table(0, table(0)[:100])
        with pytest.raises(ObmmArgumentError, match="embedding_dim=31"):
            pool.load_table(1, np.zeros((4, 32)))
        pool.shutdown()
        pool.shutdown()


# --- configuration ------------------------------------------------------------------------------------------------


def test_the_configs_defaults_are_the_source_projects() -> None:
    made = EngramPoolConfig()
    made.validate()
    assert (made.ports, made.num_tables, made.embedding_dim, made.table_capacity) == ([18482], 12, 512, 1_000_000)
    assert (made.connect_timeout_ms, made.request_timeout_ms) == (60_000, 5_000)
    assert (made.prefetch_ahead_layers, made.max_batch_keys, made.num_prefetch_workers) == (2, 10_000, 4)
    assert (made.key_prefix, made.shard, made.chunk_size) == ("engram", "hash", 1)


def test_the_config_reads_server_arguments() -> None:
    made = EngramPoolConfig.from_server_args(
        SimpleNamespace(engram_hosts=["a", "b"], engram_ports=[5], engram_embedding_dim=64, engram_shard=None)
    )
    assert made.addresses == ["a:5", "b:5"]
    assert (made.embedding_dim, made.shard) == (64, "hash")


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_tables": 0},
        {"request_timeout_ms": 0},
        {"prefetch_ahead_layers": -1},
        {"hosts": ["a", "b", "c"], "ports": [1, 2]},
        {"ports": [70_000]},
        {"shard": "random"},
        {"key_prefix": "a/b"},
        {"plain": True, "key_file": "x"},
    ],
)
def test_a_config_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ObmmArgumentError):
        EngramPoolConfig(**wrong).validate()


# --- conversion ---------------------------------------------------------------------------------------------------


def test_bfloat16_rounds_to_nearest_even_and_keeps_what_is_special() -> None:
    words = [0x3F800000, 0x3F808000, 0x3F818000, 0x3F80FFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000]
    values = np.array(words, np.uint32).view(np.float32)
    assert to_bfloat16_bits(values).tolist() == [
        *[0x3F80, 0x3F80, 0x3F82, 0x3F81],
        *[0x7F80, 0x7F80, 0xFF80, 0x8000],
    ]
    nans = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(from_bfloat16_bits(to_bfloat16_bits(nans))).all()


def test_bfloat16_round_trip_is_exact() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    back = to_bfloat16_bits(from_bfloat16_bits(bits))
    nan = np.isnan(from_bfloat16_bits(bits))
    assert np.array_equal(back[~nan], bits[~nan])


def test_a_device_needs_torch_and_a_strange_type_is_refused() -> None:
    rows = np.zeros((2, 2), np.float32)
    assert as_result(rows, np.float32) is rows
    with pytest.raises(ObmmArgumentError, match="float64"):
        as_result(rows, "float64")
    with pytest.raises(ObmmArgumentError, match="without torch"):
        as_result(rows, "float32", "cuda:0")
    assert as_result(rows, "float32", "cpu") is rows
    with pytest.raises(ObmmArgumentError, match="float64"):
        as_ids([0.5])


def test_it_says_that_it_is_retired() -> None:
    config = EngramPoolConfig(hosts=[], ports=[0], num_tables=1, embedding_dim=4, plain=True)
    with pytest.warns(DeprecationWarning, match="TableClient"):
        EngramPool(config)
