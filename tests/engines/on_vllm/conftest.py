# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import without_a_device

without_a_device()

import vllm_world as world  # noqa: E402  (after the stand-ins)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, one million rows each."""
    from toy_checkpoints import deepseek

    folder = tmp_path_factory.mktemp("toy") / "model"
    deepseek(folder, base=world.BASE, heads=world.HEADS, order=world.ORDER)
    return folder


@pytest.fixture
def options(fabric: Any) -> Callable[..., dict[str, Any]]:
    def made(source: str, **more: Any) -> dict[str, Any]:
        return {"source": source, "plain": True, "device": fabric.device("b"), "decode_ms": 2000, **more}

    return made


@pytest.fixture(autouse=True)
def _end_doors() -> Iterator[None]:
    yield
    world.close_doors()
