# SPDX-License-Identifier: Apache-2.0
"""Token ids to rows in one host function: the numbers of the hasher, the rows of the table, and what goes wrong."""

from __future__ import annotations

import errno
import gc

import numpy as np
import pytest

from obmm.errors import ObmmError
from obmm.prefetch import EngramHasher, PolyHasher
from obmm.prefetch.hashing.geometry import engram_layers
from obmm.prefetch.token_gather import TokenGather
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Stream
from obmm.rows.fake_accelerator import FakeAccelerator

VOCABULARY, ROW_BYTES, TOKENS = 500, 64, 12


def engram():
    layers = engram_layers([0, 1], vocabulary=VOCABULARY, bases=[101, 103], heads=2)
    return EngramHasher(
        {"algorithm": "engram-xor", "layers": [layer.to_manifest() for layer in layers], "pad_id": 0, "dead_ids": []}
    )


def poly():
    return PolyHasher(V=VOCABULARY, m=97, n=3, k=2, eos=2)


@pytest.fixture(params=["poly", "engram"])
def hasher(request):
    return {"poly": poly, "engram": engram}[request.param]()


@pytest.fixture
def table(hasher):
    return np.random.default_rng(1).integers(1, 256, (hasher.rows[-1], ROW_BYTES), np.uint8)


@pytest.fixture
def store(table):
    manifest = Manifest((TableSpec("t", len(table), ROW_BYTES),))
    with RowStore.attach(LocalMemory(table.reshape(-1)), manifest, verify="none", plan=False) as store:
        yield store


@pytest.fixture
def accelerator():
    return FakeAccelerator()


@pytest.fixture
def gather(store, accelerator, hasher):
    gather = TokenGather(store, "t", TOKENS, accelerator, hasher, hasher.layers - 1, invalid="zero")
    yield gather
    gather.close()
    gather.forget()


def expected(hasher, table, tokens, starts, history):
    rows = hasher.hash(tokens, starts, history)[:, -1].reshape(-1)
    return np.where((rows >= 0)[:, None], table[rows], 0)


def test_replays_hash_the_tokens_and_the_history_of_then(gather, accelerator, hasher, table):
    stream = Stream(accelerator)
    tokens, history = np.zeros(TOKENS, np.int64), np.zeros((TOKENS, hasher.order - 1), np.int64)
    accelerator.capture(stream)
    gather.enqueue_tokens(stream, tokens, history)
    graph = accelerator.end_capture(stream)
    for seed in range(200):
        random = np.random.default_rng(seed)
        tokens[:] = random.integers(-1, VOCABULARY, TOKENS)
        history[:] = random.integers(-1, VOCABULARY, history.shape)
        graph.replay(stream)
        accelerator.synchronize(stream.handle)
        assert (np.asarray(gather.rows) == expected(hasher, table, tokens, np.arange(TOKENS + 1), history)).all()
    gather.check()


def test_requests_of_several_tokens(store, accelerator, hasher, table):
    starts = np.array([0, 5, 5, TOKENS])
    gather = TokenGather(
        store, "t", TOKENS, accelerator, hasher, hasher.layers - 1, request_starts=starts, invalid="zero"
    )
    gather.tokens[:] = np.random.default_rng(3).integers(0, VOCABULARY, TOKENS)
    gather.enqueue()
    accelerator.synchronize()
    assert (np.asarray(gather.rows) == expected(hasher, table, gather.tokens, starts, None)).all()
    gather.send()
    accelerator.synchronize()
    assert (np.asarray(gather.rows) == expected(hasher, table, gather.tokens, starts, None)).all()
    gather.close()
    gather.forget()


@pytest.mark.parametrize("where", ["tokens", "history"])
def test_a_token_outside_the_vocabulary_is_zeros_and_one_sentence(gather, accelerator, where):
    gather.tokens[:] = 5
    gather.enqueue_tokens()
    accelerator.synchronize()
    assert np.asarray(gather.rows).any()
    getattr(gather, where)[3] = 1 << 40
    gather.enqueue_tokens()
    accelerator.synchronize()
    assert not np.asarray(gather.rows).any()
    with pytest.raises(ObmmError, match="vocabulary") as caught:
        gather.check()
    assert caught.value.errno == errno.EDOM
    gather.check()


def test_what_does_not_fit_is_refused_and_nothing_is_left(store, hasher):
    accelerator = FakeAccelerator()
    numpy = PolyHasher(V=VOCABULARY, m=97, n=3, k=2, eos=2, impl="numpy")
    for wrong in (
        {"hasher": numpy},
        {"layer": 7},
        {"tokens": 0},
        {"request_starts": [0, 5]},
        {"request_starts": [0, 9, 5, TOKENS]},
    ):
        arguments = {"tokens": TOKENS, "hasher": hasher, "layer": 0, **wrong}
        with pytest.raises(ObmmError) as caught:
            TokenGather(store, "t", accelerator=accelerator, **arguments)
        assert "; fix: " in str(caught.value)
        del caught
    gc.collect()
    assert accelerator.left == {"memories": 0, "streams": 0, "events": 0}
