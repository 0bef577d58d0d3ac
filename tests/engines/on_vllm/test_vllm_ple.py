# SPDX-License-Identifier: Apache-2.0
"""vLLM's per-layer embeddings (PLE) that it keeps in host memory, without a host table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vllm_world as world
from stand_ins import PINNED
from toy_checkpoints import qwen
from vllm.models.qwen4_exp.common import ngram_embedding as module

from obmm.errors import ObmmArgumentError

ROWS, DIM = 1_000_000, 160
Publish, Options = Callable[..., Any], Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    folder = tmp_path_factory.mktemp("ple") / "model"
    return folder, torch.from_numpy(qwen(folder, rows=ROWS, parts=16, heads=16)["layer5"])


@pytest.fixture(autouse=True, scope="module")
def _one_rank() -> None:
    """The engine's own groups, of one process."""
    world.started()


def embedding(kind: Any = module.Qwen4ExpPLEPinnedHostEmbedding, rows: int = ROWS) -> Any:
    return kind(
        rows,
        DIM,
        params_dtype=torch.bfloat16,
        padding_size=64,
        prefix="model.layers.5.ple.ple_embedding.ngram_embedding",
        embedding_method=module.Qwen4ExpPLEFp8EmbeddingMethod(),
        num_ngram_heads=16,
        max_total_tokens=512,
    )


def test_a_million_random_rows_are_the_checkpoints(
    toy: tuple[Path, torch.Tensor], publish: Publish, options: Options
) -> None:
    folder, table = toy
    with world.configured(options(publish(folder).source)):
        embed = embedding()
    for turn in range(5):
        ids = torch.from_numpy(np.random.default_rng(turn).integers(0, ROWS, (12_500, 16)))
        assert torch.equal(embed._lookup(ids).view(torch.uint8), table[ids])


def test_the_engines_prefetch_brings_the_rows(
    toy: tuple[Path, torch.Tensor], publish: Publish, options: Options
) -> None:
    folder, table = toy
    with world.configured(options(publish(folder).source)):
        embed = embedding()
    for tokens in (1, 7, 512):
        ids = torch.from_numpy(np.random.default_rng(tokens).integers(0, ROWS, (tokens, 16)))
        embed.start_prefetch(ids)
        rows = embed.finalize_prefetch(tokens)
        assert torch.equal(rows.view(torch.uint8).view(tokens, 16, DIM), table[ids])


def test_no_host_table_is_made_and_the_published_scale_stands(
    toy: tuple[Path, torch.Tensor], publish: Publish, options: Options
) -> None:
    with world.configured(options(publish(toy[0]).source)):
        embed = embedding()
    assert not PINNED
    assert embed.weight.untyped_storage().nbytes() == DIM
    embed.embedding_method.process_weights_after_loading(embed)  # the engine refuses a table without a scale
    assert (embed.weight_scale == 0.5).all()


def test_shards_of_the_checkpoint_are_not_loaded(
    toy: tuple[Path, torch.Tensor], publish: Publish, options: Options
) -> None:
    with world.configured(options(publish(toy[0]).source)):
        embed = embedding()
    embed.weight_loader(embed.weight, torch.ones(10, DIM).to(torch.float8_e4m3fn), checkpoint_start=0)
    assert not embed.weight.view(torch.uint8).any()


def test_a_table_of_another_size_is_refused(toy: tuple[Path, torch.Tensor], publish: Publish, options: Options) -> None:
    with world.configured(options(publish(toy[0]).source)):
        with pytest.raises(ObmmArgumentError, match=r"needs layer5 with 999,999 rows"):
            embedding(rows=ROWS - 1)


def test_a_table_on_the_device_is_refused(toy: tuple[Path, torch.Tensor], publish: Publish, options: Options) -> None:
    with world.configured(options(publish(toy[0]).source)):
        with pytest.raises(ObmmArgumentError, match="cpu_offload"):
            embedding(module.Qwen4ExpPLEDeviceEmbedding)
