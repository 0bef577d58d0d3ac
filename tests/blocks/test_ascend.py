# SPDX-License-Identifier: Apache-2.0
"""vLLM-Ascend's back end, with ordinary memory in the device's place: its own package is not here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from obmm.blocks import BlockStoreError
from obmm.integrations import vllm_ascend
from obmm.integrations.vllm_ascend import ObmmBackend
from tests.blocks.rig import BLOCK, Rig

CONFIG = SimpleNamespace(world_size=2, rank=1)


def stage(host: int, device: int, size: int) -> None:
    ctypes.memmove(host, device, size)


def unstage(host: int, device: int, size: int) -> None:
    ctypes.memmove(device, host, size)


@pytest.fixture
def backend(rig: Callable[..., Rig]) -> ObmmBackend:
    made = rig()
    return ObmmBackend(
        CONFIG,
        model="m",
        stage=stage,
        unstage=unstage,
        source=f"127.0.0.1:{made.port}/kv",
        key=str(made.key),
        device=str(made.b.backend),
    )


def test_blocks_in_pieces_go_and_come_back(backend: ObmmBackend) -> None:
    memory = np.random.default_rng(1).integers(0, 256, 4 * BLOCK, dtype=np.uint8)
    landing = np.zeros_like(memory)
    base, there = memory.ctypes.data, landing.ctypes.data
    offsets, sizes = [[0, 1000], [3000, 9000]], [[1000, 500], [2000, 100]]
    backend.set_device()
    backend.register_buffer([base, there], [memory.nbytes, landing.nbytes])
    assert backend.exists(["a", "b"]) == [0, 0]
    assert backend.put(["a", "b"], [[base + at for at in block] for block in offsets], sizes) == [0, 0]
    assert backend.exists(["a", "b", "c"]) == [1, 1, 0]
    where = [[there + at for at in block] for block in offsets]
    assert backend.get(["a", "c"], where, sizes) == [0, -1]
    assert np.array_equal(landing[:1500], memory[:1500])
    assert not landing[3000:].any()
    assert backend.get(["b"], where[1:], sizes[1:]) == [0]
    assert np.array_equal(landing[3000:5000], memory[3000:5000])
    backend.close()


def test_memory_that_was_not_registered_is_not_touched(backend: ObmmBackend) -> None:
    memory = np.zeros(64, np.uint8)
    backend.register_buffer([memory.ctypes.data], [64])
    assert backend.put(["a"], [[memory.ctypes.data + 32]], [[64]]) == [-1]
    assert backend.exists(["a"]) == [0]
    backend.close()


def test_the_schedulers_client_only_asks(rig: Callable[..., Rig]) -> None:
    made = rig()
    options = {"model": "m", "source": f"127.0.0.1:{made.port}/kv", "key": str(made.key), "device": str(made.b.backend)}
    client = ObmmBackend.create_scheduler_client(CONFIG, **options)
    assert client.exists(["a"]) == [0]
    assert client.put(["a"], [[4096]], [[8]]) == [-1]
    client.close()


def test_without_an_owner_a_lazy_back_end_has_nothing_and_raises_nothing(rig: Callable[..., Rig]) -> None:
    made = rig()
    options = {"source": f"127.0.0.1:{made.port}/other", "key": str(made.key), "device": str(made.b.backend)}
    late = ObmmBackend(CONFIG, model="m", stage=stage, unstage=unstage, lazy_init=True, **options)
    assert late.exists(["a"]) == [0]
    assert late.put(["a"], [[4096]], [[8]]) == late.get(["a"], [[4096]], [[8]]) == [-1]
    late.close()


@pytest.mark.parametrize(
    "options", [{}, {"source": None}, {"source": "h:1/kv", "tls": 3}, {"source": "h:1/kv", "x": 1}]
)
def test_settings_that_cannot_be_are_misses_of_a_lazy_back_end(options: dict) -> None:
    late = ObmmBackend(CONFIG, model="m", stage=stage, unstage=unstage, lazy_init=True, **options)
    assert late.exists(["a"]) == [0]
    assert late.put(["a"], [[4096]], [[8]]) == late.get(["a"], [[4096]], [[8]]) == [-1]
    late.close()


def test_an_owner_that_is_away_is_looked_for_now_and_then(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tried = rig(), []

    def away(*arguments: object, **options: object) -> None:
        tried.append(arguments)
        raise BlockStoreError.because(111, "no owner", "start one")

    options = {"source": f"127.0.0.1:{made.port}/kv", "key": str(made.key), "device": str(made.b.backend)}
    late = ObmmBackend(CONFIG, model="m", stage=stage, unstage=unstage, lazy_init=True, **options)
    with monkeypatch.context() as patched:
        patched.setattr(vllm_ascend, "BlockDoor", away)
        patched.setattr(vllm_ascend, "RETRY_S", 600.0)
        assert [late.exists(["a"]) for _ in range(50)] == [[0]] * 50
    assert len(tried) == 1
    late._not_before = 0.0
    memory = np.zeros(64, np.uint8)
    assert late.put(["a"], [[memory.ctypes.data]], [[64]]) == [0]
    late.close()
