# SPDX-License-Identifier: Apache-2.0
"""SGLang's own hasher, manager and layers, on rows from another node: bit by bit what its own table gives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglang_world as world
import torch
from stand_ins import PINNED
from toy_checkpoints import deepseek

from obmm.errors import ObmmArgumentError, ObmmError

tokens = world.tokens
Load, Publish = Callable[..., None], Callable[..., Any]
IDS = torch.arange(80).reshape(10, 8)


def same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    return mine.dtype == theirs.dtype == torch.bfloat16 and torch.equal(
        mine.view(torch.int16), theirs.view(torch.int16)
    )


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"


@pytest.fixture
def pair(checkpoint: Path, publish: Publish, load_door: Load) -> tuple[list[Any], list[Any]]:
    """The engine's own embeddings, and the door's of the same checkpoint."""
    theirs = world.embeddings(checkpoint)
    load_door(publish(checkpoint).source)
    return theirs, world.embeddings(checkpoint)


def test_a_million_random_rows_are_the_engines(pair: tuple[list[Any], list[Any]]) -> None:
    theirs, mine = pair
    assert {type(embed).__module__ for embed in theirs} == {"sglang.srt.layers.engram"}
    assert {type(embed).__module__ for embed in mine} == {"obmm.integrations.sglang_engram"}
    random = np.random.default_rng(1)
    for own, ours in zip(theirs, mine, strict=True):
        for _ in range(10):
            ids = torch.from_numpy(random.integers(0, own.rows, (12_500, 8)))
            assert same(ours(ids), own(ids))


def test_no_table_is_here(pair: tuple[list[Any], list[Any]]) -> None:
    _, mine = pair
    assert not PINNED
    for embed in mine:
        assert embed.weight.shape == (embed.spec.n_rows, 64)
        held = embed.weight.untyped_storage().nbytes() + embed.scale.untyped_storage().nbytes()
        assert held <= 2 * embed.spec.row_bytes


def test_chunked_prefill_verify_and_decode_give_the_engines_rows(pair: tuple[list[Any], list[Any]]) -> None:
    """Two chunks of one request beside another one, decode steps, drafts of which some are rejected."""
    worlds = []
    for embeds in pair:
        model = world.Model(embeds, world.hasher())
        worlds.append((model, world.manager(model)))
    assert worlds[0][1].engram_stager is None
    assert worlds[1][1].engram_stager is not None
    for step in world.conversation():
        theirs, mine = (step(model, manager) for model, manager in worlds)
        assert len(theirs) == len(mine) == 2
        for own, ours in zip(theirs, mine, strict=True):
            assert same(ours, own)


def test_padding_behind_the_staged_rows_is_zeros(pair: tuple[list[Any], list[Any]]) -> None:
    _, mine = pair
    batch = world.extend_batch([(tokens(3, 10), 0)])
    world.manager(world.Model(mine, world.hasher())).prepare_for_forward(batch, chunked_req=None)
    rows = mine[0].dequant_staged(*batch.engram_staged_rows[0], torch.Size((16, 8)))
    assert not rows[10:].any()
    assert rows[:10].any()


def test_a_batch_that_follows_leaves_staged_rows_alone(pair: tuple[list[Any], list[Any]]) -> None:
    """The scheduler stages the next batch while the layers of this one still read."""
    _, mine = pair
    manager = world.manager(world.Model(mine, world.hasher()))
    batches = [world.extend_batch([(tokens(seed, 200), 0)]) for seed in range(4)]
    staged = []
    for batch in batches:
        manager.prepare_for_forward(batch, chunked_req=None)
        staged.append([rows.clone() for rows, _, _ in batch.engram_staged_rows])
    for batch, kept in zip(batches, staged, strict=True):
        assert all(torch.equal(rows, copy) for (rows, _, _), copy in zip(batch.engram_staged_rows, kept, strict=True))


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_columns_of_all_ranks_add_up_to_the_rows(
    checkpoint: Path, publish: Publish, load_door: Load, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's all-reduce is a sum over ranks, taken here over one process.  Each row has one owner."""
    own = world.embeddings(checkpoint)[0]
    load_door(publish(checkpoint).source, share="slice", staging=False)
    ids = torch.from_numpy(np.random.default_rng(4).integers(0, own.rows, (1000, 8)))
    parts = []
    for rank in range(ranks):
        with world.parallel(ranks, rank):
            embed = world.embeddings(None)[0]
            monkeypatch.setattr(embed, "_reduce_owned_rows", lambda values: values, raising=False)
            parts.append(embed(ids))
    assert torch.equal(sum(parts[1:], parts[0]), own(ids))  # a sum knows no negative zero
    owners = sum((part != 0).any(-1).int() for part in parts)
    assert int(owners.max()) == 1
    assert all(part.any() for part in parts)


def test_explain_says_why_prefill_is_not_staged(checkpoint: Path, publish: Publish, load_door: Load) -> None:
    load_door(publish(checkpoint).source, staging=False)
    manager = world.manager(world.Model(world.embeddings(None), world.hasher()))
    assert manager.engram_stager is None
    assert "prefill: not staged: switched off" in world.doors()[0].client.explain()


def test_an_owner_that_dies_is_zeros_and_no_exception_in_a_forward(
    checkpoint: Path, publish: Publish, load_door: Load, caplog: pytest.LogCaptureFixture
) -> None:
    served = publish(checkpoint, "--term", 1)
    load_door(served.source)
    (embed, *_) = world.embeddings(checkpoint)
    expected = embed(IDS)
    assert expected.any()
    served.kill()
    with caplog.at_level(logging.ERROR, "obmm"):
        until(lambda: not (same(rows := embed(IDS), expected) and rows.any()))
    assert embed(IDS).shape == expected.shape
    assert not embed(IDS).any()
    assert caplog.records


def test_on_error_raise_ends_the_server_before_its_next_step(
    checkpoint: Path, publish: Publish, load_door: Load
) -> None:
    served = publish(checkpoint)
    load_door(served.source, on_error="raise", decode_ms=50)
    embeds = world.embeddings(checkpoint)
    manager = world.manager(world.Model(embeds, world.hasher()))
    manager.prepare_for_forward(world.extend_batch([(tokens(6, 10), 0)]), chunked_req=None)
    served.stop()
    assert not embeds[0](IDS).any()
    with pytest.raises(ObmmError):
        manager.prepare_for_forward(world.extend_batch([(tokens(7, 10), 0)]), chunked_req=None)


def test_a_new_publisher_is_taken_up_between_steps(checkpoint: Path, publish: Publish, load_door: Load) -> None:
    served = publish(checkpoint)
    load_door(served.source, decode_ms=50)
    (embed, *_) = world.embeddings(checkpoint)
    expected = embed(IDS)
    served.stop()
    assert not embed(IDS).any()
    publish(checkpoint, "--port", served.facts["port"])
    until(lambda: same(embed(IDS), expected))  # a try every two seconds at most


def test_a_slow_peer_costs_the_deadline_and_no_step(checkpoint: Path, publish: Publish, load_door: Load) -> None:
    load_door(publish(checkpoint).source, decode_ms=0, prefill_ms=0)
    door_of = world.embeddings(None)[0]
    late = sum(not door_of(IDS.repeat(50, 1)).any() for _ in range(30))
    assert late


def test_another_models_table_is_refused(tmp_path: Path, publish: Publish, load_door: Load) -> None:
    deepseek(tmp_path / "other", base=501, heads=world.HEADS)
    load_door(publish(tmp_path / "other").source)
    with pytest.raises(ObmmArgumentError, match=r"the model needs layer1 with 1,.* rows of 66 bytes"):
        world.embeddings(None)


def test_another_revision_of_the_checkpoint_is_refused(
    tmp_path: Path, checkpoint: Path, publish: Publish, load_door: Load
) -> None:
    """The same shape, other rows: seen when the engine loads its own files."""
    deepseek(tmp_path / "other", base=world.BASE, heads=world.HEADS, seed=50)
    load_door(publish(tmp_path / "other").source)
    with pytest.raises(ObmmArgumentError, match="another revision of the model"):
        world.embeddings(checkpoint)


def test_a_fingerprint_that_was_asked_for_is_checked(checkpoint: Path, publish: Publish, load_door: Load) -> None:
    load_door(publish(checkpoint).source, fingerprint="0123456789")
    with pytest.raises(ObmmArgumentError, match="fingerprint"):
        world.embeddings(None)


def test_ids_outside_the_table_are_zeros_as_they_are_for_the_engine(pair: tuple[list[Any], list[Any]]) -> None:
    theirs, mine = pair
    ids = torch.tensor([[0, theirs[0].rows, -1, 5, 2**40, 1, 2, 3]])
    assert same(mine[0](ids), theirs[0](ids))


def test_an_idle_batch_has_no_rows(pair: tuple[list[Any], list[Any]]) -> None:
    theirs, mine = pair
    empty = torch.zeros((0, 8), dtype=torch.int64)
    assert mine[0](empty).shape == theirs[0](empty).shape
