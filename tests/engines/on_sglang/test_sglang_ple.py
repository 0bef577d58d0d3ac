# SPDX-License-Identifier: Apache-2.0
"""SGLang's per-layer embeddings (PLE): its own offloaded class, without a host table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.models import qwen4_exp
from stand_ins import PINNED
from toy_checkpoints import qwen

from obmm.errors import ObmmArgumentError

ROWS, DIM = 1_000_000, 160
_COPIED = qwen4_exp.Qwen4ExpPinnedHostEmbedding._COPIED_ATTRIBUTES


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A million rows of 160 bytes in 16 parts, and the same as the engine would hold them."""
    folder = tmp_path_factory.mktemp("ple") / "model"
    packed = qwen(folder, rows=ROWS, parts=16, heads=16)["layer5"]
    return folder, torch.from_numpy(packed).view(torch.float8_e4m3fn)


def embedding(rows: int = ROWS, low: int = 0, high: int = ROWS, tp_size: int = 1) -> Any:
    """The engine's offloaded embedding, from one on the meta device as the engine makes it."""
    source = SimpleNamespace(
        quant_method=object.__new__(qwen4_exp.UnquantizedEmbeddingMethod),
        weight=torch.nn.Parameter(torch.empty(high - low, DIM, dtype=torch.float8_e4m3fn, device="meta"), False),
        weight_scale=torch.ones(1, dtype=torch.bfloat16),
        **dict.fromkeys(_COPIED, None),
    )
    source.num_added_embeddings = 0
    source.num_embeddings = rows
    source.embedding_dim = DIM
    source.tp_size = tp_size
    source.shard_indices = SimpleNamespace(org_vocab_start_index=low, org_vocab_end_index=high)
    return qwen4_exp.Qwen4ExpPinnedHostEmbedding(source)


def test_a_million_random_rows_are_the_checkpoints(
    toy: tuple[Path, torch.Tensor], publish: Callable[..., Any], load_door: Callable[..., None]
) -> None:
    folder, table = toy
    load_door(publish(folder).source)
    embed = embedding()
    for turn in range(5):
        ids = torch.from_numpy(np.random.default_rng(turn).integers(0, ROWS, (12_500, 16)))
        assert torch.equal(embed(ids), table[ids].to(torch.bfloat16))
    out = torch.empty(3, 16, DIM, dtype=torch.bfloat16)
    assert embed.gather(ids[:3], out) is out
    assert torch.equal(out, table[ids[:3]].to(torch.bfloat16))


def test_no_host_table_is_made_and_the_published_scale_stands(
    toy: tuple[Path, torch.Tensor], publish: Callable[..., Any], load_door: Callable[..., None]
) -> None:
    load_door(publish(toy[0]).source)
    embed = embedding()
    assert not PINNED
    assert embed.weight.shape == (ROWS, DIM)
    assert embed.weight.untyped_storage().nbytes() == DIM
    assert embed.weight_scale.item() == 0.5


def test_rows_of_other_ranks_are_zeros(
    toy: tuple[Path, torch.Tensor], publish: Callable[..., Any], load_door: Callable[..., None]
) -> None:
    folder, table = toy
    load_door(publish(folder).source)
    embed = embedding(low=500_000, high=ROWS)
    ids = torch.tensor([[0, 499_999, 500_000, ROWS - 1]])
    rows = embed.gather(ids)
    assert not rows[0, :2].any()
    assert torch.equal(rows[0, 2:], table[ids[0, 2:]].to(torch.bfloat16))


def test_the_loader_is_not_shown_the_tables_shards(
    toy: tuple[Path, torch.Tensor], publish: Callable[..., Any], load_door: Callable[..., None]
) -> None:
    from obmm.integrations.sglang_ple import _without_tables

    load_door(publish(toy[0]).source)
    names = ["a.ple.ple_embedding.ngram_embedding.shard_3.weight", "a.ple.ple_embedding.ngram_embedding.weight_scale"]
    assert [name for name, _ in _without_tables((name, None) for name in names)] == names[1:]


def test_a_table_of_another_size_is_refused(
    toy: tuple[Path, torch.Tensor], publish: Callable[..., Any], load_door: Callable[..., None]
) -> None:
    load_door(publish(toy[0]).source)
    with pytest.raises(ObmmArgumentError, match="the model needs a table with 999,999 rows of 160 bytes"):
        embedding(rows=ROWS - 1)


def test_a_table_on_the_device_is_refused_when_weights_are_loaded(
    toy: tuple[Path, torch.Tensor], publish: Callable[..., Any], load_door: Callable[..., None]
) -> None:
    load_door(publish(toy[0]).source)
    model = SimpleNamespace(named_modules=lambda: [("model.layers.5.ple.ple_embedding.ngram_embedding", object())])
    with pytest.raises(ObmmArgumentError, match="--ple-offload-embedding"):
        qwen4_exp.Qwen4ExpForConditionalGeneration.load_weights(model, [])
