# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import without_a_device, without_torchvision

without_torchvision()
without_a_device()

import sglang_world as world  # noqa: E402  (after the stand-ins)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, one million rows each."""
    from toy_checkpoints import deepseek

    folder = tmp_path_factory.mktemp("toy") / "model"
    deepseek(folder, base=world.BASE, heads=world.HEADS, order=world.ORDER)
    return folder


@pytest.fixture
def parallel() -> Iterator[None]:
    with world.parallel():
        yield


@pytest.fixture
def load_door(monkeypatch: pytest.MonkeyPatch, fabric: Any, parallel: None) -> Iterator[Callable[..., None]]:
    """Load the engine's plug-ins with the door's setting, and undo what they replaced afterwards."""
    kept = world.originals()

    def load(source: str, **options: Any) -> None:
        options = {"source": source, "plain": True, "device": fabric.device("b"), "decode_ms": 2000, **options}
        monkeypatch.setenv("SGLANG_OBMM_ENGRAM", json.dumps(options))
        world.load_plugins()

    yield load
    world.close_doors()
    world.restore(kept)
