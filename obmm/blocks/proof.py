# SPDX-License-Identifier: Apache-2.0
"""Proof of reuse: a block that one process stored is loaded by another one, on another node, which never stored it."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm.blocks.keys import Namespace
from obmm.blocks.store import BlockStore
from obmm.driver.process import boot_id

BLOCKS = 16
_MODEL = "obmm blocks prove"

Open = Callable[[Namespace], BlockStore]


@dataclass(frozen=True, slots=True)
class Proof:
    """What one process saw; both sides of a proof name the same incarnation."""

    role: str
    seed: str
    host: str
    boot: str
    pid: int
    device: str
    incarnation: str
    blocks: int
    nbytes: int
    stored: int
    hits: int
    verified: int
    hits_of_another_model: int

    @property
    def holds(self) -> bool:
        """The writer stored every block; the reader loaded each, right to the last byte, and stored none."""
        if self.role == "store":
            return self.stored == self.blocks
        return self.verified == self.hits == self.blocks and not self.stored and not self.hits_of_another_model


def new_seed() -> str:
    """16 hexadecimal digits that both sides are told."""
    return secrets.token_hex(8)


def store_blocks(open_store: Open, seed: str) -> Proof:
    """Store blocks whose bytes follow from the seed."""
    with open_store(_namespace(seed)) as store:
        contents = [_content(seed, i, store.block_bytes) for i in range(BLOCKS)]
        stored = int(store.put(_keys(), contents).sum())
        return _proof(store, "store", seed, stored=stored)


def load_blocks(open_store: Open, seed: str) -> Proof:
    """Load what another process stored, compare every byte, and see that another model finds nothing."""
    with open_store(_namespace(seed)) as store:
        memory = [np.zeros(store.block_bytes, np.uint8) for _ in range(BLOCKS)]
        found = store.get(_keys(), memory)
        verified = sum(
            bool(there) and np.array_equal(memory[i], _content(seed, i, len(memory[i])))
            for i, there in enumerate(found)
        )
        with open_store(Namespace(model=f"not {_MODEL}", seed=seed)) as stranger:
            others = int(stranger.exists(_keys()).sum())
        return _proof(store, "load", seed, hits=int(found.sum()), verified=verified, hits_of_another_model=others)


def _proof(store: BlockStore, role: str, seed: str, **counts: int) -> Proof:
    facts: dict[str, Any] = {"stored": store.stats()["stored"], "hits": 0, "verified": 0, "hits_of_another_model": 0}
    return Proof(
        role=role,
        seed=seed,
        host=socket.gethostname(),
        boot=boot_id().hex()[:8],
        pid=os.getpid(),
        device=store.backend,
        incarnation=store.incarnation,
        blocks=BLOCKS,
        nbytes=BLOCKS * store.block_bytes,
        **(facts | counts),
    )


def _namespace(seed: str) -> Namespace:
    return Namespace(model=_MODEL, seed=seed)


def _keys() -> list[bytes]:
    return [b"proof %d" % i for i in range(BLOCKS)]


def _content(seed: str, index: int, size: int) -> npt.NDArray[np.uint8]:
    digest = hashlib.sha256(f"{seed} {index}".encode()).digest()
    return np.random.default_rng(list(digest)).integers(0, 256, size, dtype=np.uint8)
