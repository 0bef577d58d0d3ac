# SPDX-License-Identifier: Apache-2.0
"""Everything that torch sees: conversions, tensors as ids and as out, views of the fixed buffers, the pool's results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fabric_tables import LAYERS, WANTED, content, published
from pool_node import DIM, ROWS, TABLES, config, table

import obmm
from obmm import emulator
from obmm.errors import ObmmArgumentError
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer, RowsStatus
from obmm.prefetch.bfloat16 import to_bfloat16_bits
from obmm.prefetch.pool import EngramPool
from obmm.prefetch.pool import EngramPrefetcher as PoolPrefetcher
from obmm.prefetch.tensors import as_float32, as_ids, as_result, float_name
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec

pytestmark = pytest.mark.usefixtures("torch")

LONG = Deadlines(decode=10, verify=10, prefill=10, probe=10)
N_ROWS, ROW_BYTES = 500, 264


def bits(tensor: Any, torch: Any) -> np.ndarray:
    """A bfloat16 tensor's bits."""
    return tensor.view(torch.int16).numpy().view(np.uint16)


# --- conversion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_a_table_may_be_a_tensor_of_any_float_type(torch: Any, kind: str) -> None:
    tensor = torch.randn(7, 5, dtype=torch.float64).to(getattr(torch, kind))
    assert np.array_equal(as_float32(tensor), tensor.double().numpy().astype(np.float32))
    transposed = as_float32(tensor.t().requires_grad_())
    assert transposed.flags.c_contiguous
    assert np.array_equal(transposed, tensor.t().double().numpy().astype(np.float32))


@pytest.mark.parametrize("kind", ["int32", "int64", "uint8", "int16"])
def test_row_numbers_may_be_a_tensor_of_any_whole_type(torch: Any, kind: str) -> None:
    ids = as_ids(torch.arange(12, dtype=getattr(torch, kind)).reshape(3, 4).t())
    assert ids.dtype == np.int64
    assert ids.tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bool"])
def test_row_numbers_that_are_no_numbers_are_refused_by_name(torch: Any, kind: str) -> None:
    with pytest.raises(ObmmArgumentError, match=f"{kind}.*whole numbers"):
        as_ids(torch.ones(3, dtype=getattr(torch, kind)))


def test_float_types_have_one_name_each(torch: Any) -> None:
    assert [float_name(kind) for kind in (torch.float32, torch.float, "float32", np.float32)] == ["float32"] * 4
    assert float_name(torch.bfloat16) == "bfloat16"
    with pytest.raises(ObmmArgumentError, match="float16"):
        float_name(torch.float16)


def test_float32_results_share_the_arrays_memory(torch: Any) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = as_result(rows, "float32")
    assert tensor.dtype == torch.float32
    assert tensor.data_ptr() == rows.ctypes.data
    assert as_result(rows, torch.float32, "cpu").data_ptr() == rows.ctypes.data


def test_bfloat16_results_have_the_bits_that_numpy_gives(torch: Any) -> None:
    """One rounding with torch and without: any bits of a float32, also those halfway between two."""
    random = np.random.default_rng(5)
    words = random.integers(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32)
    words[::4] = words[::4] & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    rows = words.view(np.float32).reshape(-1, 64)
    tensor = as_result(rows, torch.bfloat16)
    assert tensor.dtype == torch.bfloat16
    assert tensor.shape == rows.shape
    nan = np.isnan(rows)
    assert nan.any()
    assert np.array_equal(bits(tensor, torch)[~nan], to_bfloat16_bits(rows)[~nan])
    assert tensor.isnan().numpy()[nan].all()


def test_results_go_to_the_device_that_is_asked_for(torch: Any) -> None:
    rows = np.zeros((2, 3), np.float32)
    assert as_result(rows, "bfloat16", "meta").device.type == "meta"
    assert as_result(rows, "float32", torch.device("cpu")).device.type == "cpu"


# --- the pool -----------------------------------------------------------------------------------------------------


def test_the_pool_answers_with_tensors(torch: Any, pool: EngramPool) -> None:
    ids = torch.randint(0, ROWS, (333,))
    rows = pool.batch_lookup(1, ids)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, torch.from_numpy(table(1))[ids])
    half = pool.batch_lookup_async(2, ids.int(), torch.bfloat16).result(10)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, torch.from_numpy(table(2))[ids].bfloat16())
    assert pool.batch_lookup(0, torch.empty(0, dtype=torch.int64)).shape == (0, DIM)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_step_is_one_tensor_of_tables_tokens_values(torch: Any, pool: EngramPool, kind: str) -> None:
    """``[num_tables, seq_len, dim]``, as the source project has it (Engram specification 8.1)."""
    dtype = getattr(torch, kind)
    ids = torch.randint(0, ROWS, (TABLES, 64))
    prefetcher = PoolPrefetcher(pool)
    request = prefetcher.prefetch_async(list(enumerate(ids)), 64, torch.device("cpu"), dtype)
    rows = prefetcher.wait_and_gather(request)
    assert (rows.dtype, tuple(rows.shape)) == (dtype, (TABLES, 64, DIM))
    local = torch.stack([torch.from_numpy(table(number))[ids[number]].to(dtype) for number in range(TABLES)])
    assert torch.equal(rows, local)
    # one table read twelve times; bfloat16 unless something else is asked for
    rows = prefetcher.prefetch_and_wait([(0, ids[i % TABLES]) for i in range(12)], 64)
    assert (rows.dtype, tuple(rows.shape)) == (torch.bfloat16, (12, 64, DIM))
    assert torch.equal(rows[5], torch.from_numpy(table(0))[ids[2]].bfloat16())


def test_a_table_of_tensors_is_loaded_and_read_on_its_node(torch: Any, pool_fabric: emulator.Fabric) -> None:
    weights = torch.nn.Parameter(torch.randn(ROWS, DIM).bfloat16())
    with obmm.open(pool_fabric.device("a")) as device:
        pool = EngramPool(config(), device=device)
        pool.initialize()
        pool.load_table(5, weights)
        ids = torch.randint(0, ROWS, (9,))
        assert torch.equal(pool.batch_lookup(5, ids, torch.bfloat16), weights.detach()[ids])
        pool.shutdown()


# --- gathers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[RowStore]:
    content = np.random.default_rng(3).integers(0, 256, N_ROWS * ROW_BYTES, np.uint8)
    with RowStore.attach(LocalMemory(content), Manifest((TableSpec("t", N_ROWS, ROW_BYTES),)), verify="none") as made:
        yield made


def rows_of(store: RowStore, ids: Any) -> np.ndarray:
    return store.view("t")[np.asarray(ids)]


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("out_kind", ["uint8", "float32", "int64", "int16"])
def test_tensors_are_ids_and_out(torch: Any, store: RowStore, kind: str, out_kind: str) -> None:
    ids = torch.randint(0, N_ROWS, (4, 6), dtype=getattr(torch, kind))
    width = torch.empty((), dtype=getattr(torch, out_kind)).element_size()
    out = torch.zeros(4, 6, ROW_BYTES // width, dtype=getattr(torch, out_kind))
    assert store.gather_into("t", ids, out) == 24
    assert np.array_equal(out.view(torch.uint8).numpy(), rows_of(store, ids))
    out.zero_()
    store.submit("t", ids, out).result(10)
    assert np.array_equal(out.view(torch.uint8).numpy(), rows_of(store, ids))
    assert np.array_equal(store.gather("t", ids), rows_of(store, ids))


def test_a_prepared_gather_reads_a_tensors_ids_anew(torch: Any, store: RowStore) -> None:
    ids, out = torch.zeros(8, dtype=torch.int64), torch.empty(8, ROW_BYTES, dtype=torch.uint8)
    gather = store.prepare("t", ids, out)
    for step in range(3):
        ids.copy_(torch.arange(8) * 7 + step)
        gather()
        assert np.array_equal(out.numpy(), rows_of(store, ids))


def test_rows_of_a_wider_tensor_are_written_in_place(torch: Any, store: RowStore) -> None:
    wide = torch.full((5, 512), 7, dtype=torch.uint8)
    store.gather_into("t", torch.arange(5), wide[:, :ROW_BYTES])
    assert np.array_equal(wide[:, :ROW_BYTES].numpy(), rows_of(store, range(5)))
    assert (wide[:, ROW_BYTES:] == 7).all()


def test_types_that_numpy_lacks_are_written_as_bytes(torch: Any, store: RowStore) -> None:
    out = torch.zeros(5, ROW_BYTES // 2, dtype=torch.bfloat16)
    store.gather_into("t", torch.arange(5), out.view(torch.uint8))
    assert np.array_equal(bits(out, torch), rows_of(store, range(5)).view(np.uint16))


def test_a_tensor_that_cannot_be_used_is_refused_by_name(torch: Any, store: RowStore) -> None:
    """On a device, with gradients, sparse, or of a type without a NumPy one: nothing is read, the fix is named."""
    ids, out = torch.arange(5), torch.zeros(5, ROW_BYTES, dtype=torch.uint8)
    unfit = [
        torch.zeros(5, ROW_BYTES // 2, dtype=torch.bfloat16),
        torch.zeros(5, ROW_BYTES // 4, requires_grad=True),
        out.to("meta"),
        out.to_sparse(),
    ]
    for each in unfit:
        with pytest.raises(ObmmArgumentError, match=r"GATHER: out: .*fix: .*CPU tensor"):
            store.gather_into("t", ids, each)
    for each in (ids.to("meta"), ids.bfloat16()):
        with pytest.raises(ObmmArgumentError, match=r"GATHER: ids: .*fix: .*CPU tensor"):
            store.gather_into("t", each, out)
    for each in (ids.float(), torch.arange(10)[::2]):
        with pytest.raises(ObmmArgumentError, match="contiguous int32 or int64"):
            store.gather_into("t", each, out)
    assert store.stats().gathers == 0


# --- the fixed buffers --------------------------------------------------------------------------------------------


def test_rows_are_decoded_by_torch_where_they_lie() -> None:
    """A row of 256 FP8 values and 8 power-of-two scales (Engram specification 4.7), through views of `rows_u8`."""
    import torch

    payload = [0x38, 0x40, 0x3C, 0x7E, 0xB8, 0x01]
    values = [0.0078125, 0.015625, 0.01171875, 3.5, -0.0078125, 1.52587890625e-05]  # with scale byte 120
    row = np.zeros(ROW_BYTES, np.uint8)
    row[: len(payload)], row[256:] = payload, 120
    memory = np.tile(row, (4, 1))
    manifest = Manifest((TableSpec("t", 4, ROW_BYTES),))
    with (
        RowStore.attach(LocalMemory(memory), manifest, verify="none") as store,
        EngramPrefetcher(store, [PrefetchLayer(1, "t", 2)], 3, deadlines=LONG) as prefetcher,
    ):
        rows = torch.from_numpy(prefetcher.rows_u8(1))
        numbers, scales = rows[..., :256].view(torch.float8_e4m3fn), rows[..., 256:].view(torch.float8_e8m0fnu)
        prefetcher.begin(np.ones((2, 1, 2), np.int64), 2, 3)
        prefetcher.start()
        assert prefetcher.consume(1).status is RowsStatus.OK
        decoded = numbers.float().unflatten(-1, (8, 32)) * scales.float().unsqueeze(-1)
        assert decoded[:2, :, 0, : len(values)].tolist() == [[values] * 2] * 2
        assert not rows[2].any()
        prefetcher.drain()


def test_addresses_seen_by_torch_stay_over_10_000_steps() -> None:
    """Acceptance 12 without a graph: tensors made once, as a captured graph keeps them, show every step's rows."""
    import torch

    random = np.random.default_rng(2)
    with (
        emulator.start(nodes=2) as fabric,
        obmm.open(fabric.device("a")) as a,
        obmm.open(fabric.device("b")) as b,
        published(a, b) as tables,
        EngramPrefetcher(tables.store, WANTED, max_tokens=4, deadlines=LONG) as prefetcher,
    ):
        captured = {layer.layer_id: torch.from_numpy(prefetcher.rows_u8(layer.layer_id)) for layer in LAYERS}
        addresses = {layer_id: tensor.data_ptr() for layer_id, tensor in captured.items()}
        batches = [
            [random.integers(0, layer.rows, (n, wanted.columns)) for layer, wanted in zip(LAYERS, WANTED, strict=True)]
            for n in (0, 1, 2, 3, 4)
        ]
        expected = []
        for ids in batches:
            padded = [np.zeros(captured[layer.layer_id].shape, np.uint8) for layer in LAYERS]
            for layer, layer_ids, rows in zip(LAYERS, ids, padded, strict=True):
                rows[: len(layer_ids)] = content(layer.layer_id, layer_ids, 2)
            expected.append([torch.from_numpy(rows) for rows in padded])
        for step in range(10_000):
            ids = batches[step % 5]
            prefetcher.begin(ids, len(ids[0]), 4)
            prefetcher.start()
            for layer, rows in zip(LAYERS, expected[step % 5], strict=True):
                handed = torch.from_numpy(prefetcher.consume(layer.layer_id).buffer)
                assert handed.data_ptr() == addresses[layer.layer_id]
                assert torch.equal(captured[layer.layer_id], rows)
            prefetcher.drain()
        assert {layer_id: tensor.data_ptr() for layer_id, tensor in captured.items()} == addresses
