# SPDX-License-Identifier: Apache-2.0
"""One sequence hashed in pieces gives the rows of the whole (Engram specification 10, conditions 1-7 and 11)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_hashers import LONGCAT, TOY_MANIFEST, V41_MANIFEST

from obmm.errors import ObmmArgumentError
from obmm.prefetch import EngramHasher, ExportedHistory, History, NgramHasher, PolyHasher

HASHERS = {
    "engram-c": lambda: EngramHasher(V41_MANIFEST | {"dead_ids": [77]}),
    "engram-numpy": lambda: EngramHasher(V41_MANIFEST | {"dead_ids": [77]}, "numpy"),
    "poly-c": lambda: PolyHasher(**LONGCAT),
    "poly-numpy": lambda: PolyHasher(**LONGCAT, impl="numpy"),
}


@pytest.fixture(params=HASHERS)
def hasher(request: pytest.FixtureRequest) -> NgramHasher:
    return HASHERS[request.param]()


def _sequence(random: np.random.Generator, length: int) -> Any:
    """Few distinct ids, so that EOS (2), dead (77) and negative ones come often."""
    return random.choice([2, 77, -1, 5, 6, 7, 90_000], size=length, p=[0.1, 0.05, 0.05, 0.2, 0.2, 0.2, 0.2])


def test_random_mixes_of_prefill_chunk_decode_and_draft_equal_the_whole(hasher: NgramHasher) -> None:
    random = np.random.default_rng(11)
    sequences = {name: _sequence(random, int(random.integers(1, 120))) for name in range(40)}
    whole = {name: hasher.hash(tokens, [0, len(tokens)]) for name, tokens in sequences.items()}
    history = History(hasher.order, max_rollback=6)
    done = dict.fromkeys(sequences, 0)
    while any(done[name] < len(tokens) for name, tokens in sequences.items()):
        batch = [name for name in sequences if done[name] < len(sequences[name]) and random.random() < 0.7]
        pieces, drafts = [], []
        for name in batch:
            accepted = int(random.choice([0, 1, 1, 2, 5, 40]))
            real = sequences[name][done[name] : done[name] + accepted]
            draft = _sequence(random, int(random.integers(0, 6)))
            pieces.append(np.concatenate([real, draft]))
            drafts.append(len(draft))
        starts = np.cumsum([0, *map(len, pieces)])
        tokens = np.concatenate([np.empty(0, np.int64), *pieces])
        windows = history.windows(batch, [done[name] for name in batch])
        ids = hasher.hash(tokens, starts, windows)
        for row, name in enumerate(batch):
            history.extend(name, pieces[row], position=done[name])
            history.rollback(name, drafts[row])
            real = len(pieces[row]) - drafts[row]
            assert np.array_equal(ids[starts[row] : starts[row] + real], whole[name][done[name] : done[name] + real])
            done[name] += real
            assert history.position(name) == done[name]


def test_a_prefix_cache_hit_hashes_as_the_uncached_run(hasher: NgramHasher) -> None:
    random = np.random.default_rng(5)
    for cached in (1, 2, 3, 50):
        tokens = _sequence(random, 60)
        whole = hasher.hash(tokens, [0, 60])
        donor, here = History(hasher.order), History(hasher.order)
        donor.extend("a", tokens[:cached])
        here.import_("b", donor.export("a"))
        ids = hasher.hash(tokens[cached:], [0, 60 - cached], here.windows(["b"], [cached]))
        assert np.array_equal(ids, whole[cached:])


def test_drafts_see_drafts_and_a_rejected_one_is_taken_back() -> None:
    toy = EngramHasher(TOY_MANIFEST)
    history = History(3)
    history.extend("r", [4, 9])
    ids = toy.hash([2, 7, 3], [0, 3], history.windows(["r"]))[:, 0]
    assert ids.tolist() == [[10, 15, 28, 58], [9, 16, 39, 54], [9, 14, 26, 58]]
    history.extend("r", [2, 7, 3])
    history.rollback("r", 1)
    assert toy.hash([9], [0, 1], history.windows(["r"]))[0, 0].tolist() == [1, 15, 27, 57]


def test_condition_4_a_lost_history_is_noticed() -> None:
    history = History(4)
    with pytest.raises(ObmmArgumentError, match="'moved here' is at 0, not at 128"):
        history.windows(["moved here"], [128])


def test_condition_5_a_reused_name_is_noticed() -> None:
    history = History(4)
    history.extend("slot 3", [1, 2, 3])
    with pytest.raises(ObmmArgumentError, match="is at 3, not at 0"):
        history.extend("slot 3", [9], position=0)
    history.drop("slot 3")
    history.extend("slot 3", [9], position=0)
    assert history.windows(["slot 3"]).tolist() == [[9, -1, -1]]


def test_more_cannot_be_taken_back_than_is_kept() -> None:
    history = History(3, max_rollback=4)
    history.extend("r", range(100))
    with pytest.raises(ObmmArgumentError, match="max_rollback"):
        history.rollback("r", 5)
    history.rollback("r", 4)
    assert history.windows(["r"]).tolist() == [[95, 94]]
    with pytest.raises(ObmmArgumentError, match="max_rollback"):
        history.rollback("r", 1)
    history.extend("short", [1, 2, 3])
    history.rollback("short", 3)
    assert history.windows(["short"]).tolist() == [[-1, -1]]


def test_an_imported_history_cannot_be_rolled_back_past_what_came_along() -> None:
    history = History(3)
    history.import_("r", ExportedHistory(50, (8, 7)))
    with pytest.raises(ObmmArgumentError, match="2 of its 50 tokens"):
        history.rollback("r", 1)
    with pytest.raises(ObmmArgumentError, match="the last 2 token ids"):
        history.import_("r", ExportedHistory(50, (8,)))


def test_batches_keep_the_same_books_as_single_calls() -> None:
    random = np.random.default_rng(6)
    one, many = History(4, max_rollback=5), History(4, max_rollback=5)
    names = list(range(40))
    for _ in range(60):
        batch = random.permutation(names)[: random.integers(0, 40)].tolist()
        pieces = [random.integers(-1, 1000, random.integers(0, 20)) for _ in batch]
        counts = [int(random.integers(0, min(len(piece), 5) + 1)) for piece in pieces]
        positions = [many.position(name) for name in batch]
        many.extend_batch(
            batch, np.concatenate([np.empty(0, np.int64), *pieces]), np.cumsum([0, *map(len, pieces)]), positions
        )
        many.rollback_batch(batch, counts)
        for name, piece, count in zip(batch, pieces, counts, strict=True):
            one.extend(name, piece)
            one.rollback(name, count)
        if random.random() < 0.3 and batch:
            one.drop(batch[0])
            many.drop(batch[0])
        assert len(one) == len(many)
        assert np.array_equal(one.windows(names), many.windows(names))
        assert [one.position(name) for name in names] == [many.position(name) for name in names]


def test_a_refused_batch_changes_nothing() -> None:
    history = History(3)
    history.extend("a", [1, 2, 3])
    history.extend("b", [4])
    for call in (
        lambda: history.extend_batch(["a", "a"], [7, 8], [0, 1, 2]),
        lambda: history.extend_batch(["a", "b"], [7, 8], [0, 1]),
        lambda: history.extend_batch(["a", "b"], [7, 8], [0, 3, 2]),
        lambda: history.extend_batch(["a", "c"], [7, 8], [0, 1, 2], [3, 1]),
        lambda: history.rollback_batch(["a", "b"], [1, 2]),
        lambda: history.rollback_batch(["a", "c"], [1, 0]),
    ):
        with pytest.raises(ObmmArgumentError):
            call()
        assert history.windows(["a", "b", "c"]).tolist() == [[3, 2], [4, -1], [-1, -1]]
        assert "c" not in history


def test_unknown_requests_are_refused_where_they_must_exist() -> None:
    history = History(3)
    for call in (history.export, lambda name: history.rollback(name, 0)):
        with pytest.raises(ObmmArgumentError, match="not known"):
            call("absent")
    history.drop("absent")
    assert "absent" not in history
    assert len(history) == 0
