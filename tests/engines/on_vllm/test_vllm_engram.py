# SPDX-License-Identifier: Apache-2.0
"""vLLM's own embeddings and layers, on rows from another node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vllm_world as world
from stand_ins import PINNED
from toy_checkpoints import deepseek

from obmm.errors import ObmmArgumentError, ObmmError

Publish, Options = Callable[..., Any], Callable[..., dict[str, Any]]


def random_ids(seed: int, rows: int, tokens: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, rows, (tokens, 8)))


def same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    return mine.dtype == theirs.dtype and torch.equal(mine.view(torch.int16), theirs.view(torch.int16))


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"


def prefetched(layer: Any, ids: torch.Tensor) -> torch.Tensor:
    layer.prepare_embeddings(ids)
    return layer.embed(ids)


@pytest.fixture
def layers(checkpoint: Path, publish: Publish, options: Options) -> list[Any]:
    with world.configured(options(publish(checkpoint).source)):
        return world.layers(checkpoint)


def test_a_million_random_rows_are_the_checkpoints(layers: list[Any], checkpoint: Path) -> None:
    for layer, number in zip(layers, world.LAYERS, strict=True):
        weight, scale = world.tensors(checkpoint, number)
        for turn in range(10):
            ids = random_ids(turn, len(weight), 12_500)
            out = torch.empty(12_500, 8, 64, dtype=torch.bfloat16)
            layer.embed_tokens.lookup(ids, out)
            assert same(out, world.looked_up(weight, scale, ids))


def test_the_layers_prefetch_gives_the_rows_where_the_graph_reads_them(layers: list[Any], checkpoint: Path) -> None:
    weight, scale = world.tensors(checkpoint, world.LAYERS[0])
    where = layers[0].staged_rows.data_ptr()
    for tokens in (1, 8, 64, 256):
        ids = random_ids(tokens, len(weight), tokens).int()
        rows = prefetched(layers[0], ids)
        assert rows.data_ptr() == where
        assert same(rows, world.looked_up(weight, scale, ids))


def test_packed_rows_are_values_and_scales(layers: list[Any], checkpoint: Path) -> None:
    weight, scale = world.tensors(checkpoint, world.LAYERS[0])
    ids = random_ids(3, len(weight), 20)
    out = torch.full((20, 2, 8 * 66), 7, dtype=torch.uint8)
    layers[0].embed_tokens.lookup(ids, out[:, 1])
    expected = torch.cat([weight.view(torch.uint8)[ids], scale.view(torch.uint8)[ids]], dim=-1)
    assert torch.equal(out[:, 1].reshape(20, 8, 66), expected)
    assert (out[:, 0] == 7).all()


def test_no_table_is_here(layers: list[Any]) -> None:
    assert not PINNED
    for layer in layers:
        table = layer.embed_tokens
        assert table.weight.shape == (table.num_embeddings, 64)
        assert table.weight.untyped_storage().nbytes() + table.weight_scale_inv.untyped_storage().nbytes() <= 66


def test_negative_ids_are_zeros_and_no_error(layers: list[Any]) -> None:
    ids = torch.full((4, 8), -1, dtype=torch.int32)
    assert not prefetched(layers[0], ids).any()
    assert not layers[0].embed_tokens._obmm_door.client.failing


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_rank_reads_its_own_columns(checkpoint: Path, publish: Publish, options: Options, size: int) -> None:
    """As the engine's all-gather puts them together: rank after rank, the columns beyond the last one cut off."""
    weight, scale = world.tensors(checkpoint, world.LAYERS[0])
    ids = random_ids(5, len(weight), 50)
    parts = []
    with world.configured(options(publish(checkpoint).source)):
        for rank in range(size):
            with world.ranks(size, rank):
                table = world.layers(None)[0].embed_tokens
                out = torch.empty(50, table.part_n_hash_cols, 64, dtype=torch.bfloat16)
                # a column's rows lie behind those of the columns before
                owned = ids % 1000 + torch.tensor(table._obmm_spec.head_offsets)
                table.lookup(owned, out)
                parts.append(out)
    assert same(torch.cat(parts, dim=1)[:, :8].contiguous(), world.looked_up(weight, scale, owned))


def test_without_the_option_everything_is_the_engines(checkpoint: Path) -> None:
    before = len(PINNED)
    with world.configured(None):
        layers = world.layers(checkpoint)
    assert len(PINNED) == before + 2 * len(layers)
    weight, _ = world.tensors(checkpoint, world.LAYERS[0])
    assert torch.equal(layers[0].embed_tokens.weight.view(torch.uint8), weight.view(torch.uint8))
    del PINNED[before:]


def test_an_owner_that_dies_is_zeros_and_no_exception_in_a_forward(
    checkpoint: Path, publish: Publish, options: Options
) -> None:
    served = publish(checkpoint, "--term", 1)
    with world.configured(options(served.source)):
        layer = world.layers(checkpoint)[0]
    ids = torch.arange(80).reshape(10, 8)
    expected = prefetched(layer, ids).clone()
    assert expected.any()
    served.kill()
    until(lambda: not (same(rows := prefetched(layer, ids), expected) and rows.any()))
    assert not prefetched(layer, ids).any()


def test_a_new_publisher_is_taken_up_between_steps(checkpoint: Path, publish: Publish, options: Options) -> None:
    served = publish(checkpoint)
    with world.configured(options(served.source, decode_ms=50)):
        layer = world.layers(checkpoint)[0]
    ids = torch.arange(80).reshape(10, 8)
    expected = prefetched(layer, ids).clone()
    served.stop()
    assert not prefetched(layer, ids).any()
    publish(checkpoint, "--port", served.facts["port"])
    until(lambda: same(prefetched(layer, ids), expected))


def test_on_error_raise_ends_the_server_at_the_next_lookup(
    checkpoint: Path, publish: Publish, options: Options
) -> None:
    served = publish(checkpoint)
    with world.configured(options(served.source, decode_ms=50, on_error="raise")):
        layer = world.layers(checkpoint)[0]
    served.stop()
    ids = torch.arange(80).reshape(10, 8)
    assert not prefetched(layer, ids).any()
    with pytest.raises(ObmmError):
        prefetched(layer, ids)


def test_another_models_table_is_refused(tmp_path: Path, publish: Publish, options: Options) -> None:
    deepseek(tmp_path / "other", base=501, heads=world.HEADS)
    with world.configured(options(publish(tmp_path / "other").source)):
        with pytest.raises(ObmmArgumentError, match=r"the model needs layer1 with 1,.* rows of 66 bytes"):
            world.layers(None)


def test_another_revision_of_the_checkpoint_is_refused(
    tmp_path: Path, checkpoint: Path, publish: Publish, options: Options
) -> None:
    deepseek(tmp_path / "other", base=world.BASE, heads=world.HEADS, seed=50)
    with world.configured(options(publish(tmp_path / "other").source)):
        with pytest.raises(ObmmArgumentError, match="another revision of the model"):
            world.layers(checkpoint)


@pytest.mark.parametrize("wrong", [3, "host", {"sauce": "x"}, {"source": "h:1/x", "on_error": "no"}])
def test_options_that_are_nonsense_are_refused_where_the_model_is_made(wrong: Any) -> None:
    with world.configured(wrong), pytest.raises(ObmmArgumentError, match="obmm_engram"):
        world.layers(None)


def test_an_untested_version_is_refused_unless_it_is_allowed(
    checkpoint: Path, publish: Publish, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    from obmm.integrations import versions

    monkeypatch.setattr(versions, "TESTED", {"vllm": ("0.1",)})
    option = options(publish(checkpoint).source)
    with world.configured(option):
        with pytest.raises(ObmmArgumentError, match=r"vllm 0\.32\.0.* was not tested with this door, 0\.1 was"):
            world.layers(None)
        monkeypatch.setenv("OBMM_ALLOW_UNTESTED", f"vllm=={versions.installed('vllm')}")
        assert world.layers(None)
