# SPDX-License-Identifier: Apache-2.0
"""One token of one request at a time, as the specification words it: slow, and shares no code with the hashers."""

from __future__ import annotations

from collections.abc import Sequence


def engram_row(
    newest_first: Sequence[int], multipliers: Sequence[int], primes: Sequence[Sequence[int]], pad: int
) -> list[int]:
    """Flat ids of one layer; `newest_first` has N compressed ids, negative: dead or unknown (specification 2.4)."""
    history = []
    blocked = False
    for entry in newest_first:
        blocked = blocked or entry < 0
        history.append(pad if blocked else entry)
    ids, offset = [], 0
    x = history[0] * multipliers[0]
    for n, heads in enumerate(primes, start=2):
        x ^= history[n - 1] * multipliers[n - 1]
        for prime in heads:
            ids.append(offset + x % prime)
            offset += prime
    return ids


def poly_row(newest_first: Sequence[int], V: int, m: int, n: int, k: int, eos: int | None) -> list[int]:
    """Flat ids; negative entries are not tokens (specification 3)."""
    if newest_first[0] < 0:
        return [-1] * (k * (n - 1))
    usable = [newest_first[0]]
    for token in newest_first[1:]:
        if token < 0 or token == eos:
            break
        usable.append(token)
    ids, offset = [], 0
    for c in range(k * (n - 1)):
        order, rows = 2 + c // k, m + 2 * c + 1
        ids.append(offset + sum(t * pow(V, j, rows) for j, t in enumerate(usable[:order])) % rows)
        offset += rows
    return ids


def look_back(sequence: Sequence[int], t: int, n: int) -> list[int]:
    """The n newest entries of a request at position t, -1 before its start."""
    return [sequence[t - s] if t >= s else -1 for s in range(n)]
