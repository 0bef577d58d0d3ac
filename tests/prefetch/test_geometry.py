# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from typing import Any

import pytest

from obmm.prefetch import EngramLayer, engram_layers, multipliers, table_sizes
from obmm.prefetch.hashing.geometry import is_prime


def test_multipliers_equal_the_vectors(vectors: dict[str, Any]) -> None:
    for case in vectors["A_multipliers"]:
        assert list(multipliers(case["V"], case["layer_id"], case["n"], seed=case["seed"])) == case["mult"]


def test_small_primes_equal_the_vectors(vectors: dict[str, Any]) -> None:
    case = vectors["A_primes_small"]
    sizes = table_sizes(case["bases"], case["heads"], case["layers"])
    assert [[list(order) for order in layer] for layer in sizes] == case["primes"]


@pytest.mark.parametrize("model", ["A_primes_demo_sums", "A_primes_v41_sums"])
def test_primes_of_the_models_add_up_to_their_row_counts(vectors: dict[str, Any], model: str) -> None:
    case = vectors[model]
    sizes = table_sizes(case["bases"], case["heads"], len(case["sums"]))
    assert [sum(prime for order in layer for prime in order) for layer in sizes] == case["sums"]


def test_v41_sizes_and_offsets_at_the_ends() -> None:
    first, second = engram_layers([1, 14], vocabulary=99_092, bases=[16_000_000] * 3, heads=8)
    assert first.moduli[0] == 16_000_057
    assert second.moduli[-1] == 16_000_889
    assert first.offsets[:4] == (0, 16_000_057, 32_000_136, 48_000_217)
    assert first.offsets[-1] == 368_005_705


def test_is_prime_agrees_with_a_sieve_and_with_known_large_numbers() -> None:
    sieve = bytearray([1]) * 20_000
    sieve[:2] = b"\0\0"
    for n in range(2, 142):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(sieve[n * n :: n]))
    assert [n for n in range(20_000) if is_prime(n)] == [n for n in range(20_000) if sieve[n]]
    assert is_prime(2**61 - 1)
    assert not is_prime(3_215_031_751)  # the smallest number that bases 2, 3, 5, 7 take for a prime
    pick = random.Random(1)
    assert not any(is_prime(pick.randrange(3, 2**31) * pick.randrange(3, 2**31)) for _ in range(200))


def test_a_layer_survives_the_manifest_and_a_wrong_row_count_is_refused() -> None:
    (layer,) = engram_layers([1], vocabulary=100, bases=[11, 11], heads=2)
    entry = layer.to_manifest()
    assert EngramLayer.from_manifest(entry) == layer
    entry["rows"] += 1
    with pytest.raises(ValueError, match="add up to 60"):
        EngramLayer.from_manifest(entry)
