# SPDX-License-Identifier: Apache-2.0
"""What a hasher is built from, checked once and read-only, and the batch that it hashes.

The plans are shared by the C and the NumPy implementation.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from obmm.arguments import whole
from obmm.errors import ObmmArgumentError
from obmm.mapping.buffers import array_here
from obmm.prefetch.hashing.geometry import EngramLayer, bad_manifest, layers_of, number

IdSpace = Literal["flat", "local"]

MAX_ORDER = 8
_WITHOUT_MAP = 2**31 - 1


def refused(problem: str, fix: str, rule: str) -> ObmmArgumentError:
    """An argument that no hasher takes."""
    return ObmmArgumentError.because("HASH", errno.EINVAL, problem, fix, f"Engram specification {rule}")


class Batch(NamedTuple):
    """Token ids of several requests, one after the other (checked; see `NgramHasher.hash`)."""

    tokens: NDArray[Any]
    starts: NDArray[np.int64]
    history: NDArray[np.int64] | None
    dead: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True, eq=False)
class EngramPlan:
    """Algorithm A.  `token_map`: int32 [vocabulary], compressed id or -1 where the token is dead."""

    layers: tuple[EngramLayer, ...]
    pad: int
    vocabulary: int
    token_map: NDArray[np.int32] | None
    moduli: NDArray[np.uint64]
    offsets: NDArray[np.uint64]

    @property
    def order(self) -> int:
        return len(self.layers[0].multipliers)

    @property
    def heads(self) -> int:
        return len(self.layers[0].primes[0])

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, columns of one layer)."""
        return len(self.layers), (self.order - 1) * self.heads

    @classmethod
    def of(cls, manifest: Mapping[str, Any], token_map: NDArray[Any] | None, id_space: IdSpace) -> Self:
        if manifest.get("algorithm") != "engram-xor":
            raise refused(
                f"the manifest's algorithm is {manifest.get('algorithm')!r}",
                "pass the manifest of an 'engram-xor' table, or use PolyHasher",
                "5.4",
            )
        layers = tuple(EngramLayer.from_manifest(entry) for entry in layers_of(manifest))
        order, heads = len(layers[0].multipliers), len(layers[0].primes[0])
        for layer in layers:
            if len(layer.multipliers) != order or [len(p) for p in layer.primes] != [heads] * (order - 1):
                raise refused(
                    f"layer {layer.layer_id} has another number of orders or heads than layer {layers[0].layer_id}",
                    "give every layer N multipliers and (N-1) x heads primes",
                    "2.3",
                )
        if not 2 <= order <= MAX_ORDER:
            raise refused(f"{order} multipliers", f"use n-grams of at most 2..{MAX_ORDER} tokens", "2.2")
        table, vocabulary = _effective_map(manifest, token_map)
        pad = number(manifest, "pad_id")
        moduli = np.array([p for layer in layers for p in layer.moduli], dtype=np.uint64)
        offsets = np.array([o for layer in layers for o in layer.offsets], dtype=np.uint64)
        if id_space == "local":
            offsets = np.zeros_like(offsets)
        return cls(layers, pad, vocabulary, table, moduli, offsets)


def _effective_map(manifest: Mapping[str, Any], token_map: NDArray[Any] | None) -> tuple[NDArray[np.int32] | None, int]:
    """The map with the dead tokens folded in, and how many token ids there are."""
    described, listed = manifest.get("token_map") or {}, manifest.get("dead_ids", ())
    if not isinstance(described, Mapping) or not isinstance(listed, list | tuple):
        raise bad_manifest("token_map is not an object, or dead_ids not a list")
    size = whole("HASH", "token_map.size", described.get("size", _WITHOUT_MAP), low=1, high=_WITHOUT_MAP)
    dead_ids = [whole("HASH", "dead_ids", token) for token in listed]
    if token_map is None:
        if "sha256" in described:
            raise refused(
                "the manifest describes a token map and none was given",
                "pass token_map=, the int32 array whose SHA-256 stands in the manifest",
                "2.1",
            )
        if not dead_ids:
            return None, size
        if "size" not in described:
            raise refused("dead_ids without a vocabulary size", "give token_map.size in the manifest", "5.4")
        table = np.arange(size, dtype=np.int32)
    else:
        table = np.array(array_here(token_map), dtype="<i4")
        if "sha256" in described and token_map_digest(table) != described["sha256"]:
            raise refused(
                "the token map's SHA-256 is not the manifest's",
                "load the map that was published with the table; one wrong entry moves every row number",
                "2.1",
            )
        distinct = int(table.max(initial=-1)) + 1
        if "size" in described and distinct != size:
            raise refused(
                f"the token map has {distinct} compressed ids, the manifest says {size}",
                "load the map that was published with the table",
                "2.1",
            )
    for token in dead_ids:
        if not 0 <= token < len(table):
            raise refused(f"dead id {token} is outside the vocabulary of {len(table)}", "list token ids", "5.4")
        table[token] = -1
    table.setflags(write=False)
    return table, len(table)


def token_map_digest(token_map: NDArray[np.int32]) -> str:
    """SHA-256 over `token_map` ``[vocabulary]`` as little-endian int32, as the manifest carries it."""
    return hashlib.sha256(np.ascontiguousarray(token_map, dtype="<i4").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class PolyPlan:
    """Algorithm B.  `coefficients` [order][columns]: V**j mod M, 0 where the column's order is j or less."""

    vocabulary: int
    eos: int
    coefficients: NDArray[np.uint64]
    moduli: NDArray[np.uint64]
    offsets: NDArray[np.uint64]

    @property
    def order(self) -> int:
        return len(self.coefficients)

    @property
    def shape(self) -> tuple[int, int]:
        return 1, len(self.moduli)

    @classmethod
    def of(cls, vocabulary: int, base: int, order: int, split: int, eos: int | None, id_space: IdSpace) -> Self:
        if not 2 <= order <= MAX_ORDER or split < 1 or vocabulary < 1 or base < 0:
            raise refused(
                f"V={vocabulary}, m={base}, n={order}, k={split}",
                f"use V >= 1, m >= 0, k >= 1 and n in 2..{MAX_ORDER}",
                "3",
            )
        moduli = [base + 2 * c + 1 for c in range(split * (order - 1))]
        if order * (vocabulary - 1) * (max(moduli) - 1) >= 2**64:
            raise refused(
                f"V={vocabulary} and tables of {max(moduli)} rows overflow the 64-bit sum",
                "use a smaller ratio m/V",
                "3",
            )
        coefficients = np.zeros((order, len(moduli)), dtype=np.uint64)
        for c, modulus in enumerate(moduli):
            for j in range(c // split + 2):
                coefficients[j, c] = pow(vocabulary, j, modulus)
        offsets = np.zeros(len(moduli), dtype=np.uint64)
        if id_space == "flat":
            offsets[1:] = np.cumsum(moduli[:-1])
        return cls(
            vocabulary, -1 if eos is None else int(eos), coefficients, np.array(moduli, dtype=np.uint64), offsets
        )
