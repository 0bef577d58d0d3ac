# SPDX-License-Identifier: Apache-2.0
"""An owner on one node and users on another, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import obmm
from obmm import Device
from obmm.blocks import BlockOwner, BlockStore, Namespace, SlotLayout
from obmm.exchange import Peer, Server

BLOCK = 5_000
MODEL = Namespace(model="m", dtype="u1")


def until(condition: Callable[[], Any], timeout: float = 20.0) -> Any:
    """Wait for a condition that other threads make true."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.005)
    return result


def content(key: bytes | str, size: int = BLOCK) -> npt.NDArray[np.uint8]:
    """The one right content of a key."""
    seed = MODEL.hash(key)
    return np.random.default_rng(list(seed)).integers(0, 256, size, dtype=np.uint8)


class Rig:
    """Owner, server, and whatever `store` and `peer` made."""

    def __init__(
        self,
        a: Device,
        b: Device,
        key: Path,
        journal: Path,
        *,
        slots: int = 16,
        block_bytes: int = BLOCK,
        cache: Any = "nc",
        term: float = 10.0,
        limits: dict[str, int] | None = None,
        port: int = 0,
    ) -> None:
        self.a, self.b, self.key, self.journal = a, b, key, journal
        self.options: dict[str, Any] = {"term": term, "limits": limits}
        self.layout = SlotLayout.for_blocks(block_bytes, slots, cache=cache)
        self.port = port
        self.peers: list[Peer] = []
        self.stores: list[BlockStore] = []
        self.start()

    def start(self) -> None:
        """A new owner, on the port of the last one."""
        self.owner = BlockOwner(self.a, self.layout, **self.options)
        self.server: Server = obmm.serve({}, host="127.0.0.1", port=self.port, key=self.key, journal=self.journal)
        self.port = self.server.port
        self.owner.serve(self.server)

    def stop(self) -> None:
        """The owner goes without a word to its users."""
        self.server.close(timeout=0, force=True)
        self.owner.close(force=True)

    def peer(self) -> Peer:
        peer = obmm.connect(f"127.0.0.1:{self.port}", key=self.key)
        self.peers.append(peer)
        return peer

    def store(self, namespace: Namespace = MODEL, **options: Any) -> BlockStore:
        """A user on node b."""
        device = options.pop("device", self.b)
        store = BlockStore(options.pop("peer", None) or self.peer(), device, namespace, **options)
        self.stores.append(store)
        return store

    def close(self) -> None:
        for store in self.stores:
            store.close()
        for peer in self.peers:
            peer.close(timeout=0.2, force=True)
        if not self.server.closed:
            self.owner.close(force=True, timeout=0)
            self.server.close(timeout=0, force=True)


def put(store: BlockStore, *keys: bytes | str, size: int = BLOCK) -> list[int]:
    """Store each key's right content."""
    return store.put(list(keys), [content(key, size) for key in keys]).tolist()


def get(store: BlockStore, *keys: bytes | str, size: int = BLOCK) -> list[int]:
    """Load, and check that what is there is right to the last byte."""
    out = [np.full(size, 0xEE, np.uint8) for _ in keys]
    found = store.get(list(keys), out).tolist()
    for key, there, memory in zip(keys, found, out, strict=True):
        assert not there or np.array_equal(memory, content(key, size)), f"wrong bytes for {key!r}"
    return found
