# SPDX-License-Identifier: Apache-2.0
"""SGLang's hybrid models: the pools beside the one for KV (states of Mamba layers, sliding windows, indexers).

A page of such a pool is a block of its own, under the page's key and the pool's name.  How the pool lies in memory is in
the key as well: another layout or data type is a miss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from obmm.blocks import BlockStoreError, Pieces

KV = "kv"


def anchor_of(pool: Any) -> Any:
    """The pool that has the KV pages: hybrid models bring a group of pools."""
    entry = getattr(pool, "anchor_entry", None)
    return pool if entry is None else entry.host_pool


def page_sizes(pool: Any) -> list[int]:
    """Bytes of each piece of a page; BlockStoreError for a pool whose pages have no addresses."""
    import torch

    try:
        meta = pool.get_page_buffer_meta(torch.arange(pool.page_size, dtype=torch.int64))
        sizes = [int(size) for size in meta[1]]
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        raise BlockStoreError.because(
            22,
            f"pages of {type(pool).__name__} ({getattr(pool, 'layout', 'no')} layout) cannot be moved by address: {error}",
            "--hicache-mem-layout page_first",
        ) from None
    if not sizes or min(sizes) <= 0:
        raise BlockStoreError.because(
            22, f"a page of {type(pool).__name__} has pieces of {sizes} bytes", "pools of host memory"
        )
    return sizes


def pieces_of(pool: Any, keys: Sequence[str], host_indices: Any) -> Pieces:
    """Where the pages of `keys` lie in the pool; `page_size` indices belong to a key."""
    addresses, sizes = pool.get_page_buffer_meta(host_indices)
    return Pieces.of_addresses(len(keys), np.asarray(addresses, np.uint64), np.asarray(sizes, np.uint32))


class SidePools:
    """Pools that were registered by name."""

    def __init__(self) -> None:
        self._pools: dict[str, Any] = {}
        self._suffix: dict[str, str] = {}

    def add(self, name: str, pool: Any, most: int) -> None:
        """Take a pool in; BlockStoreError when its pages have no addresses, or more than `most` bytes."""
        pool = anchor_of(pool)
        sizes = page_sizes(pool)
        if sum(sizes) > most:
            raise BlockStoreError.because(
                22,
                f"a page of the pool {name} has {sum(sizes)} bytes, a slot takes {most}",
                f"obmm blocks serve --block-bytes {sum(sizes)}",
            )
        shape = "x".join(map(str, sizes))
        self._suffix[name] = (
            "" if name == KV else f"/{name}/{shape}/{getattr(pool, 'dtype', '')}/{getattr(pool, 'layout', '')}"
        )
        self._pools[name] = pool

    def __contains__(self, name: str) -> bool:
        return name in self._pools

    def keys(self, name: str, keys: Iterable[str]) -> list[str]:
        """What the pages are called in the store; the KV pool's have the engine's own names."""
        suffix = self._suffix.get(name, "")
        return [key + suffix for key in keys]

    def pieces(self, name: str, keys: Sequence[str], host_indices: Any) -> Pieces:
        """Where pages of this pool lie; ValueError for indices that do not belong to the keys."""
        pool = self._pools[name]
        if host_indices is None or host_indices.numel() != len(keys) * pool.page_size:
            given = 0 if host_indices is None else host_indices.numel()
            raise ValueError(f"{given} indices for {len(keys)} pages of {pool.page_size} in the pool {name}")
        return pieces_of(pool, keys, host_indices)


def restorable_prefixes(
    kv_pages: int, policies: Mapping[str, tuple[str, int]], present: Mapping[str, Sequence[bool]]
) -> tuple[list[int], dict[str, int]]:
    """Which prefixes can be restored, in pages, and how far each pool reaches by itself.

    `policies` has (hit policy, pages that must be there at the end) of each pool, `present` which of the first
    `kv_pages` pages it has.  ``all_pages``: every page of the prefix.  ``trailing_pages``: the last ones.  Any other policy
    says nothing about a prefix, and its pool is not reported.

    >>> restorable_prefixes(3, {"swa": ("trailing_pages", 1)}, {"swa": [True, False, True]})
    ([1, 3], {'kv': 3, 'swa': 3})
    """
    possible = list(range(1, kv_pages + 1))
    reach = {KV: kv_pages} if kv_pages else {}
    for name, (policy, trailing) in policies.items():
        there = present[name]
        if policy == "all_pages":
            first_gap = next((i for i in range(kv_pages) if not there[i]), kv_pages)
            fits = set(range(1, first_gap + 1))
        elif policy == "trailing_pages":
            fits = {n for n in range(1, kv_pages + 1) if all(there[max(0, n - trailing) : n])}
        else:
            continue
        if fits:
            reach[name] = max(fits)
        possible = [n for n in possible if n in fits]
    return possible, reach
