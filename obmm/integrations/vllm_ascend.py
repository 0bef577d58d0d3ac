# SPDX-License-Identifier: Apache-2.0
"""vLLM-Ascend: a back end of its KV pool (docs/blocks.md).

Its registry of back ends is a closed dictionary, so that this class needs one line there.  It was written from a
description of the interface and has not been run inside vLLM-Ascend.

NPU memory cannot be read by this host's loads: a block is staged in pinned host memory.  `stage` and `unstage` copy
between the two; the default ones use torch and torch_npu where these are.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from obmm.blocks import Namespace, Pieces
from obmm.integrations.block_door import BlockDoor, logger_of

RETRY_S = 2.0  # an attempt can take as long as a connection's time-out

Copy = Callable[[int, int, int], None]
"""Copies `size` bytes from a device address to a host address, or back: ``copy(host, device, size)``."""


class ObmmBackend:
    """`exists`, `put` and `get` by lists of keys, addresses and sizes, as vLLM-Ascend's pool calls them.

    `options` are `BlockDoor`'s; `stage` and `unstage` move one piece between device and host memory.  Every call returns
    one number for each key, as the pool's other back ends do: `exists` 1 or 0, `put` and `get` 0 for success, else -1.
    """

    def __init__(
        self,
        parallel_config: Any,
        *,
        model: str,
        stage: Copy,
        unstage: Copy,
        lazy_init: bool = False,
        **options: Any,
    ) -> None:
        world = int(getattr(parallel_config, "world_size", 1))
        rank = int(getattr(parallel_config, "rank", 0))
        self._namespace = Namespace(door="vllm-ascend", format=1, model=model, world_size=world, rank=rank)
        self._options = options
        self._stage, self._unstage = stage, unstage
        self._door: BlockDoor | None = None
        self._not_before = 0.0
        self._registered: list[tuple[int, int]] = []
        if not lazy_init:
            self._open()

    @classmethod
    def create_scheduler_client(cls, parallel_config: Any, **options: Any) -> ObmmBackend:
        """For the scheduler, which only asks `exists`."""

        def never(host: int, device: int, size: int) -> None:
            raise RuntimeError("the scheduler's client moves no blocks")

        return cls(parallel_config, stage=never, unstage=never, **options)

    def set_device(self) -> None:
        """The pool chose this process's device: now the store is opened, in the process that uses it."""
        self._open()

    def register_buffer(self, ptrs: Sequence[int], lengths: Sequence[int]) -> None:
        """Device memory that blocks move from and to; anything outside is refused."""
        self._registered = [(int(start), int(start) + int(size)) for start, size in zip(ptrs, lengths, strict=True)]

    def exists(self, keys: Sequence[str]) -> list[int]:
        door, nothing = self._usable(), [0] * len(keys)
        if door is None:
            return nothing
        return door.quietly(
            "lookup", lambda: [int(flag) for flag in door.store.exists(list(keys), timeout=door.timeout)], nothing
        )

    def put(self, keys: Sequence[str], addrs: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> list[int]:
        door, nothing = self._usable(), [-1] * len(keys)
        if door is None:
            return nothing
        return door.quietly("store", lambda: self._put(door, keys, addrs, sizes), nothing)

    def get(self, keys: Sequence[str], addrs: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> list[int]:
        door, nothing = self._usable(), [-1] * len(keys)
        if door is None:
            return nothing
        return door.quietly("load", lambda: self._get(door, keys, addrs, sizes), nothing)

    def close(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            door.close()

    def _usable(self) -> BlockDoor | None:
        """The door, opened now if it was not; None, and a line in the log, where that fails: it is tried again after a while."""
        if self._door is None and time.monotonic() < self._not_before:
            return None
        try:
            return self._open()
        except Exception as error:  # settings that cannot be, too: these calls are the engine's
            logger_of("vllm-ascend").error("obmm: %s", error)
            self._not_before = time.monotonic() + RETRY_S
            return None

    def _open(self) -> BlockDoor:
        if self._door is None:
            self._door = BlockDoor("vllm-ascend", self._namespace, **self._options)
        return self._door

    def _put(self, door: BlockDoor, keys: Sequence[str], addrs: Any, sizes: Any) -> list[int]:
        host, pieces = self._room(addrs, sizes)
        for at, device, size in pieces:
            self._stage(at, device, size)
        stored = door.store.put(list(keys), _blocks(host, sizes), timeout=door.timeout)
        return [0 if flag else -1 for flag in stored]

    def _get(self, door: BlockDoor, keys: Sequence[str], addrs: Any, sizes: Any) -> list[int]:
        host, pieces = self._room(addrs, sizes)
        found = door.store.get(list(keys), _blocks(host, sizes), timeout=door.timeout)
        each = iter(pieces)
        for flag, block in zip(found, sizes, strict=True):
            for _ in block:
                at, device, size = next(each)
                if flag:
                    self._unstage(at, device, size)
        return [0 if flag else -1 for flag in found]

    def _room(self, addrs: Any, sizes: Any) -> tuple[Any, list[tuple[int, int, int]]]:
        """Host memory for all blocks, and (host, device, size) of each piece."""
        flat = [
            (int(a), int(n))
            for block, lengths in zip(addrs, sizes, strict=True)
            for a, n in zip(block, lengths, strict=True)
        ]
        for address, size in flat:
            if self._registered and not any(
                low <= address and address + size <= high for low, high in self._registered
            ):
                raise ValueError(f"[{address:#x}, +{size}) is in no registered buffer")
        host = ctypes.create_string_buffer(max(1, sum(size for _, size in flat)))
        at, pieces = ctypes.addressof(host), []
        for address, size in flat:
            pieces.append((at, address, size))
            at += size
        return host, pieces


def _blocks(host: Any, sizes: Any) -> Pieces:
    """The staged blocks, one behind the other."""
    totals = np.array([sum(map(int, block)) for block in sizes], np.uint32)
    starts = ctypes.addressof(host) + np.concatenate(([0], np.cumsum(totals[:-1], dtype=np.uint64))).astype(np.uint64)
    return Pieces.of_addresses(len(totals), starts, totals)
