# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from obmm.errors import ObmmArgumentError
from obmm.prefetch import EngramHasher, PolyHasher, engram_layers, token_map_digest

IMPLEMENTATIONS = ["c", "numpy"]
V41 = engram_layers([1, 14], vocabulary=99_092, bases=[16_000_000] * 3, heads=8)
V41_MANIFEST = {
    "algorithm": "engram-xor",
    "layers": [layer.to_manifest() for layer in V41],
    "pad_id": 2,
    "token_map": {"size": 99_092},
}
TOY_MANIFEST = {
    "algorithm": "engram-xor",
    "layers": [{"layer_id": 0, "multipliers": [3, 5, 7], "primes": [[11, 13], [17, 19]], "rows": 60}],
    "pad_id": 0,
}
LONGCAT = {"V": 131_072, "m": 10_223_616, "n": 4, "k": 4, "eos": 2}


@pytest.fixture(params=IMPLEMENTATIONS)
def impl(request: pytest.FixtureRequest) -> Any:
    return request.param


# --- appendix A ---------------------------------------------------------------------------------------------------


def test_toy_vectors(vectors: dict[str, Any], impl: Any) -> None:
    toy = EngramHasher(TOY_MANIFEST, impl)
    for case in vectors["A_toy"]["cases"]:
        older = case["history_oldest_first"]
        window = [-1, -1, *older][-2:][::-1]
        dead = np.isin(np.arange(len(case["tokens"])), case["dead_indices"])
        ids = toy.hash(case["tokens"], [0, len(case["tokens"])], [window], dead)
        assert ids[:, 0].tolist() == case["ids"]


def test_v41_vectors(vectors: dict[str, Any], impl: Any) -> None:
    hasher = EngramHasher(V41_MANIFEST, impl)
    for case in vectors["A_v41"]:
        newest, *older = case["newest_first"]
        ids = hasher.hash([newest], [0, 1], [older])
        assert ids[0, [1, 14].index(case["layer_id"])].tolist() == case["ids"]


def test_polynomial_vectors(vectors: dict[str, Any], impl: Any) -> None:
    for case in vectors["B"]:
        hasher = PolyHasher(case["V"], case["m"], case["n"], case["k"], case["eos"], impl)
        back = case["n"] - 1
        window = ([-1] * back + case["history_oldest_first"])[-back:][::-1]
        ids = hasher.hash(case["tokens"], [0, len(case["tokens"])], [window])
        assert ids[:, 0].tolist() == case["flat_ids"]


# --- both implementations on random input -------------------------------------------------------------------------


def _random_batches(seed: int, vocabulary: int, back: int, total: int) -> Any:
    """Batches of one-token requests with full histories, and of longer requests with gaps in theirs."""
    random = np.random.default_rng(seed)
    for part in range(10):
        size = total // 10
        if part % 2:
            starts = np.unique(np.concatenate([[0, size], random.integers(0, size, size // 3)]))
        else:
            starts = np.arange(size + 1)
        tokens = random.integers(0, vocabulary, size)
        tokens[random.random(size) < 0.01] = 2  # pad of the one model, EOS of the other
        history = random.integers(-1 if part % 2 else 0, vocabulary, (len(starts) - 1, back))
        dead = random.random(size) < 0.02 if part % 2 else None
        yield tokens.astype(np.int32 if part < 5 else np.int64), starts, history, dead


@pytest.mark.parametrize("model", ["engram", "poly"])
def test_c_and_numpy_agree_on_a_million_random_histories(model: str) -> None:
    if model == "engram":
        c, numpy = EngramHasher(V41_MANIFEST, "c"), EngramHasher(V41_MANIFEST, "numpy")
    else:
        c, numpy = PolyHasher(**LONGCAT, impl="c"), PolyHasher(**LONGCAT, impl="numpy")
    seen = 0
    for batch in _random_batches(7, c.vocabulary, c.order - 1, 1_000_000):
        ids = c.hash(*batch)
        assert np.array_equal(ids, numpy.hash(*batch))
        assert (ids < np.array(c.rows)[:, None]).all()
        seen += len(ids)
    assert seen == 1_000_000


small_engrams = st.tuples(
    st.integers(2, 5), st.integers(1, 3), st.integers(1, 9), st.integers(2, 2**40), st.integers(0, 2**31)
)


@settings(max_examples=60, deadline=None)
@given(geometry=small_engrams, seed=st.integers(0, 2**32))
def test_any_geometry_equals_the_oracle(geometry: tuple[int, int, int, int, int], seed: int) -> None:
    order, layers, heads, base, hash_seed = geometry
    random = np.random.default_rng(seed)
    layout = engram_layers(range(layers), vocabulary=1000, bases=[base] * (order - 1), heads=heads, seed=hash_seed)
    manifest = {
        "algorithm": "engram-xor",
        "layers": [layer.to_manifest() for layer in layout],
        "pad_id": int(random.integers(1000)),
        "token_map": {"size": 1000},
    }
    sequence = random.integers(-1, 1000, 12)
    ids = [EngramHasher(manifest, impl).hash(sequence, [0, 12]) for impl in ("c", "numpy")]
    assert np.array_equal(*ids)
    for t in range(12):
        for column, layer in enumerate(layout):
            window = oracle.look_back(sequence.tolist(), t, order)
            assert ids[0][t, column].tolist() == oracle.engram_row(
                window, layer.multipliers, layer.primes, manifest["pad_id"]
            )


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=st.integers(2, 5000),
    base=st.integers(0, 2**33),
    n=st.integers(2, 6),
    k=st.integers(1, 5),
    eos=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 2**32),
)
def test_any_polynomial_equals_the_oracle(
    vocabulary: int, base: int, n: int, k: int, eos: int | None, seed: int
) -> None:
    random = np.random.default_rng(seed)
    sequence = random.integers(-1, min(vocabulary, 6), 16)
    ids = [PolyHasher(vocabulary, base, n, k, eos, impl).hash(sequence, [0, 16]) for impl in ("c", "numpy")]
    assert np.array_equal(*ids)
    for t in range(16):
        window = oracle.look_back(sequence.tolist(), t, n)
        assert ids[0][t, 0].tolist() == oracle.poly_row(window, vocabulary, base, n, k, eos)


# --- what a batch may look like (specification 10) ----------------------------------------------------------------


def test_requests_of_one_batch_never_see_each_other(impl: Any) -> None:
    toy = EngramHasher(TOY_MANIFEST, impl)
    ids = toy.hash([4, 9, 2, 9, 5, 9, 2], [0, 4, 5, 7], [[-1, -1], [1, 8], [-1, -1]])[:, 0]
    assert ids[:4].tolist() == [[1, 23, 36, 53], [4, 13, 39, 56], [10, 15, 28, 58], [6, 15, 36, 49]]
    assert ids[4].tolist() == [10, 21, 40, 53]
    assert ids[5:].tolist() == [[5, 12, 34, 49], [10, 15, 33, 46]]


def test_empty_requests_between_others_change_nothing(impl: Any) -> None:
    toy = EngramHasher(TOY_MANIFEST, impl)
    ids = toy.hash([4, 9], [0, 0, 1, 1, 2, 2])
    assert ids.tolist() == toy.hash([4, 9], [0, 1, 2]).tolist()


@pytest.mark.parametrize("tokens", [np.empty(0, np.int32), np.empty(0, np.int64), []])
def test_no_tokens_give_no_rows(impl: Any, tokens: Any) -> None:
    assert EngramHasher(V41_MANIFEST, impl).hash(tokens, [0]).shape == (0, 2, 24)
    assert EngramHasher(V41_MANIFEST, impl).hash(tokens, [0, 0], [[1, 2, 3]]).shape == (0, 2, 24)
    assert PolyHasher(**LONGCAT, impl=impl).hash(tokens, [0]).shape == (0, 1, 12)


def test_a_dead_token_of_the_manifest_is_a_negative_id(impl: Any) -> None:
    manifest = V41_MANIFEST | {"dead_ids": [20]}
    hasher = EngramHasher(manifest, impl)
    ids = hasher.hash([10, 20, 30, 40], [0, 4])
    assert np.array_equal(ids, EngramHasher(V41_MANIFEST, impl).hash([10, -5, 30, 40], [0, 4]))
    assert ids[3, 0, 0] == 1_326_936  # appendix A, 40 30 2 2
    # in the history it hides what is older as well
    assert np.array_equal(hasher.hash([40], [0, 1], [[30, 20, 10]])[0], ids[3])


def test_a_marked_place_holder_may_lie_outside_the_vocabulary(impl: Any) -> None:
    dead = [False, True, False]
    for hasher in (EngramHasher(V41_MANIFEST, impl), PolyHasher(**LONGCAT, impl=impl)):
        ids = hasher.hash([10, 2**40, 30], [0, 3], None, dead)
        assert np.array_equal(ids, hasher.hash([10, -1, 30], [0, 3]))


def test_a_negative_token_of_the_polynomial_hash_has_no_rows(impl: Any) -> None:
    ids = PolyHasher(**LONGCAT, impl=impl).hash([11, -1, 523], [0, 3])[:, 0]
    assert (ids[1] == -1).all()
    assert ids[2].tolist() == PolyHasher(**LONGCAT, impl=impl).hash([523], [0, 1])[0, 0].tolist()


def test_local_ids_are_flat_ids_without_the_offsets(impl: Any) -> None:
    flat = EngramHasher(V41_MANIFEST, impl).hash([5, 6, 7], [0, 3])
    local = EngramHasher(V41_MANIFEST, impl, id_space="local").hash([5, 6, 7], [0, 3])
    offsets = np.array([layer.offsets for layer in V41])
    assert np.array_equal(local + offsets, flat)
    poly = PolyHasher(**LONGCAT, impl=impl, id_space="local").hash([11, 523, 2, 44], [0, 4])
    assert (poly[3] == 44).all()


def test_a_given_output_is_filled_in_place(impl: Any) -> None:
    hasher = EngramHasher(V41_MANIFEST, impl)
    out = np.full((3, 2, 24), -7, dtype=np.int64)
    assert hasher.hash([5, 6, 7], [0, 3], out=out) is out
    assert (out >= 0).all()


def _compressing(impl: Any) -> tuple[EngramHasher, NDArray[np.int32]]:
    table = np.array([0, 1, 1, 2, 3, 0, 4], dtype=np.int32)
    manifest = TOY_MANIFEST | {"token_map": {"size": 5, "sha256": token_map_digest(table)}}
    return EngramHasher(manifest, impl, token_map=table), table


def test_tokens_pass_through_the_map(impl: Any) -> None:
    hasher, table = _compressing(impl)
    plain = EngramHasher(TOY_MANIFEST, impl)
    tokens = np.array([6, 2, 5, 3, 1])
    assert np.array_equal(hasher.hash(tokens, [0, 5]), plain.hash(table[tokens], [0, 5]))
    assert np.array_equal(
        hasher.hash(tokens, [0, 5], [[4, 3]]), plain.hash(table[tokens], [0, 5], [[table[4], table[3]]])
    )


# --- refusals -----------------------------------------------------------------------------------------------------


def test_a_map_that_is_not_the_tables_is_refused(impl: Any) -> None:
    _, table = _compressing(impl)
    manifest = TOY_MANIFEST | {"token_map": {"size": 5, "sha256": token_map_digest(table)}}
    with pytest.raises(ObmmArgumentError, match="SHA-256"):
        EngramHasher(manifest, impl, token_map=table[::-1])
    with pytest.raises(ObmmArgumentError, match="none was given"):
        EngramHasher(manifest, impl)
    with pytest.raises(ObmmArgumentError, match="5 compressed ids, the manifest says 6"):
        EngramHasher(TOY_MANIFEST | {"token_map": {"size": 6}}, impl, token_map=table)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, 2], [0, 1]), "from 0 to T=2"),
        (([1, 2], [1, 2]), "from 0 to T=2"),
        (([1, 2], []), "from 0 to T=2"),
        (([1, 2], [0, 2, 1, 2]), "falls"),
        (([[1, 2]], [0, 1]), r"\(1, 2\)"),
        (([1.5], [0, 1]), "float64"),
        (([1, 2], [0, 2], [[1]]), r"history is \(1, 1\)"),
        (([1, 2], [0, 2], [[1, 2], [3, 4]]), r"history is \(2, 2\)"),
        (([1, 2], [0, 2], None, [True]), "one bool per token"),
        (([1, 2], [0, 2], None, None, np.empty((2, 1, 4), np.int32)), "int32"),
        (([1, 2], [0, 2], None, None, np.empty((3, 1, 4), np.int64)), r"\(3, 1, 4\)"),
        (([1, 2], [0, 2], None, None, np.empty((2, 1, 8), np.int64)[..., ::2]), "C-contiguous"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(impl: Any, arguments: Any, words: str) -> None:
    with pytest.raises(ObmmArgumentError, match=words):
        EngramHasher(TOY_MANIFEST, impl).hash(*arguments)


def test_an_id_outside_the_vocabulary_is_named(impl: Any) -> None:
    for hasher in (EngramHasher(V41_MANIFEST, impl), PolyHasher(**LONGCAT, impl=impl)):
        edge = hasher.vocabulary
        with pytest.raises(ObmmArgumentError, match=f"token 1 has id {edge}"):
            hasher.hash([0, edge], [0, 2])
        with pytest.raises(ObmmArgumentError, match=f"history of request 1 has id {edge}"):
            hasher.hash([0, 0], [0, 1, 2], [[0, 0, 0], [0, edge, 0]])


def test_a_polynomial_that_overflows_64_bits_is_refused() -> None:
    with pytest.raises(ObmmArgumentError, match="overflow"):
        PolyHasher(2**32, 2**32, 3, 1, None)


def test_the_other_algorithms_manifest_is_refused() -> None:
    with pytest.raises(ObmmArgumentError, match="ngram-poly"):
        EngramHasher({"algorithm": "ngram-poly"})
    with pytest.raises(ObmmArgumentError, match="engram-xor"):
        PolyHasher.from_manifest(TOY_MANIFEST)


def without(entry: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != key}


LAYER: dict[str, Any] = TOY_MANIFEST["layers"][0]  # type: ignore[index]
POLY: dict[str, Any] = {"V": 50, "base": 20, "n": 3, "k": 2, "eos": None}


@pytest.mark.parametrize(
    ("manifest", "what"),
    [
        *((without(TOY_MANIFEST, key), key) for key in ("layers", "pad_id")),
        *((TOY_MANIFEST | {"layers": bad}, "layers") for bad in (None, [], {}, 7, "layer", [7], [None])),
        *((TOY_MANIFEST | {"layers": [without(LAYER, key)]}, key) for key in ("layer_id", "multipliers", "primes")),
        *(
            (TOY_MANIFEST | {"layers": [without(LAYER, "rows") | {"primes": bad}]}, "primes")
            for bad in (None, [], 7, [[]], [7, 11], [[0, 13], [17, 19]], [[11, -13], [17, 19]], [[11, 2**63], [17, 19]])
        ),
        (TOY_MANIFEST | {"layers": [without(LAYER, "rows") | {"primes": [[2**62, 2**62], [1, 1]]}]}, "rows"),
        *(
            (TOY_MANIFEST | {"layers": [LAYER | {"multipliers": bad}]}, "multipliers")
            for bad in (None, [], 7, [3, -5, 7], [0, 5, 7], [3, 5.5, 7], [3, "5", 7], [3, True, 7], [3, 5, 2**64])
        ),
        *((TOY_MANIFEST | {"pad_id": bad}, "pad_id") for bad in (None, -1, "0", 2**70)),
        *((TOY_MANIFEST | {"token_map": bad}, "token_map") for bad in (7, [5], {"size": 0}, {"size": 10**15})),
        *((TOY_MANIFEST | {"dead_ids": bad}, "dead_ids") for bad in (7, "20", [None], [1.5])),
    ],
)
def test_a_manifest_that_no_table_has_is_refused_with_the_name_of_the_value(
    manifest: dict[str, Any], what: str
) -> None:
    with pytest.raises(ObmmArgumentError, match=what):
        EngramHasher(manifest)


@pytest.mark.parametrize("key", ["V", "base", "n", "k"])
@pytest.mark.parametrize("bad", [None, -1, "2", 1.5, 2**70])
def test_a_polynomial_manifest_that_no_table_has_is_refused(key: str, bad: Any) -> None:
    for entry in (POLY | {key: bad}, without(POLY, key)):
        with pytest.raises(ObmmArgumentError, match=key):
            PolyHasher.from_manifest({"algorithm": "ngram-poly", "layers": [entry]})
    with pytest.raises(ObmmArgumentError, match="layers"):
        PolyHasher.from_manifest({"algorithm": "ngram-poly"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["layers", "pad_id", "dead_ids", "layer_id", "multipliers", "primes", "rows"]), JSON)
def test_whatever_stands_in_a_manifest_makes_a_hasher_or_is_refused(key: str, value: Any) -> None:
    inside = key in LAYER
    manifest = TOY_MANIFEST | ({"layers": [LAYER | {key: value}]} if inside else {key: value})
    try:
        hasher = EngramHasher(manifest)
    except ObmmArgumentError:
        return
    assert hasher.hash([1, 2, 3], [0, 3]).shape[0] == 3


def test_a_polynomial_manifest_is_read() -> None:
    entry = {"V": 50, "base": 20, "n": 3, "k": 2, "eos": None}
    hasher = PolyHasher.from_manifest({"algorithm": "ngram-poly", "layers": [entry]})
    assert hasher.hash([7, 3, 9], [0, 3])[2, 0].tolist() == [12, 42, 53, 70]


def test_one_hasher_serves_many_threads() -> None:
    hasher = EngramHasher(V41_MANIFEST)
    tokens = np.random.default_rng(3).integers(0, 99_092, 4096)
    expected = hasher.hash(tokens, [0, 4096])
    results: list[Any] = []

    def work() -> None:
        results.extend(np.array_equal(hasher.hash(tokens, [0, 4096]), expected) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80
