# SPDX-License-Identifier: Apache-2.0
"""The numbers that an Engram table is made of: multipliers and table sizes (Engram specification 2.2, 2.3).

They belong into the table's manifest: a serving host reads them there and computes nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np

from obmm.arguments import whole
from obmm.errors import ObmmArgumentError

MERSENNE_63 = 2**63 - 1
SEED_STEP = 10007

# Enough witnesses to decide every number below 3.3e24 (Sorenson and Webster, 2015).
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


@dataclass(frozen=True, slots=True)
class EngramLayer:
    """The engram layer `layer_id`: `multipliers` [N], `primes` [N-1][heads] (the rows of each head's table)."""

    layer_id: int
    multipliers: tuple[int, ...]
    primes: tuple[tuple[int, ...], ...]

    @property
    def moduli(self) -> tuple[int, ...]:
        """The primes in column order: order-major, head-minor."""
        return tuple(prime for order in self.primes for prime in order)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each column's table starts among the layer's rows: local id + offset = flat id."""
        return tuple(accumulate(self.moduli[:-1], initial=0))

    @property
    def rows(self) -> int:
        """Rows of all its tables together."""
        return sum(self.moduli)

    def to_manifest(self) -> dict[str, Any]:
        """An entry of the manifest's ``layers`` (Engram specification 5.4)."""
        return {
            "layer_id": self.layer_id,
            "multipliers": list(self.multipliers),
            "primes": [list(order) for order in self.primes],
            "rows": self.rows,
        }

    @classmethod
    def from_manifest(cls, entry: Mapping[str, Any]) -> Self:
        """The `entry` of the manifest's ``layers``; ObmmArgumentError that names the value for what no table was made
        with.
        """
        layer = cls(
            layer_id=number(entry, "layer_id"),
            multipliers=_numbers("multipliers", entry.get("multipliers")),
            primes=tuple(_numbers("primes", order) for order in _listed("primes", entry.get("primes"))),
        )
        if layer.rows > MERSENNE_63:
            raise bad_manifest(f"layer {layer.layer_id}: {layer.rows} rows, more than a row number counts")
        if "rows" in entry and number(entry, "rows") != layer.rows:
            raise bad_manifest(
                f"layer {layer.layer_id}: the manifest says {entry['rows']} rows, its primes add up to {layer.rows}"
            )
        return layer


def layers_of(manifest: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The manifest's ``layers``: at least one object, or ObmmArgumentError."""
    found = _listed("layers", manifest.get("layers"))
    if not all(isinstance(entry, Mapping) for entry in found):
        raise bad_manifest("layers is not a list of objects")
    return found


def number(entry: Mapping[str, Any], key: str, low: int = 0) -> int:
    """A whole number of a manifest, at least `low`; ObmmArgumentError when it is none, or missing."""
    if key not in entry:
        raise bad_manifest(f"the manifest has no {key}")
    return whole("HASH", key, entry[key], low=low, high=MERSENNE_63)


def bad_manifest(problem: str) -> ObmmArgumentError:
    """A manifest that no hasher can be built from."""
    return ObmmArgumentError.because(
        "HASH", errno.EINVAL, problem, "pass the manifest that was published with the table", "Engram specification 5.4"
    )


def _listed(key: str, found: Any) -> Sequence[Any]:
    if not isinstance(found, list | tuple) or not found:
        raise bad_manifest(f"the manifest has no {key}, which is a list of at least one")
    return found


def _numbers(key: str, found: Any) -> tuple[int, ...]:
    return tuple(whole("HASH", key, each, low=1, high=MERSENNE_63) for each in _listed(key, found))


def multipliers(vocabulary: int, layer_id: int, order: int, *, seed: int = 0) -> tuple[int, ...]:
    """The `order` odd multipliers of a layer.

    `vocabulary` is the size of the *compressed* vocabulary: a product of a multiplier and a compressed id stays
    below 2**63 (Engram specification 2.2).

    `layer_id` and `seed` are the model's.  ObmmArgumentError, a ValueError, for a vocabulary that leaves no room.
    """
    if vocabulary < 1:
        raise ValueError(f"a vocabulary has at least one entry, not {vocabulary}")
    bound = max(1, MERSENNE_63 // vocabulary // 2)
    drawn = np.random.default_rng(seed + SEED_STEP * layer_id).integers(0, bound, size=order, dtype=np.int64)
    return tuple(2 * int(r) + 1 for r in drawn)


def is_prime(n: int) -> bool:
    """Exact (Miller-Rabin with enough witnesses for every 64-bit number)."""
    if n < 2:
        return False
    for p in _WITNESSES:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        x = pow(witness, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def _primes_from(start: int) -> Iterator[int]:
    candidate = start
    while True:
        if is_prime(candidate):
            yield candidate
        candidate += 1


def table_sizes(bases: Sequence[int], heads: int, layers: int) -> list[tuple[tuple[int, ...], ...]]:
    """``[layer][order][head]``: rows of each table; `bases` has one entry per order 2..N.

    No prime is used twice over all layers and orders, so the sizes of a layer depend on the layers before it
    (Engram specification 2.3).

    `heads` tables per order, for each of `layers` layers.
    """
    used: set[int] = set()
    result = []
    for _ in range(layers):
        orders = []
        for base in bases:
            fresh = (prime for prime in _primes_from(base) if prime not in used)
            chosen = tuple(next(fresh) for _ in range(heads))
            used.update(chosen)
            orders.append(chosen)
        result.append(tuple(orders))
    return result


def engram_layers(
    layer_ids: Sequence[int], *, vocabulary: int, bases: Sequence[int], heads: int, seed: int = 0
) -> tuple[EngramLayer, ...]:
    """Every engram layer of a model, in the order of its configuration.

    `vocabulary` is the size of the compressed vocabulary, `bases` one base table size per order 2..N.

    `layer_ids`: of the model; `heads` tables per order; `seed`: the model's.
    """
    sizes = table_sizes(bases, heads, len(layer_ids))
    order = len(bases) + 1
    return tuple(
        EngramLayer(layer_id, multipliers(vocabulary, layer_id, order, seed=seed), primes)
        for layer_id, primes in zip(layer_ids, sizes, strict=True)
    )
