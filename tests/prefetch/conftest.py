# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pool_node import config, serve

import obmm
from obmm import emulator
from obmm.prefetch.pool import EngramPool

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """Appendix A of the Engram specification."""
    loaded: dict[str, Any] = json.loads((DATA / "vectors.json").read_text())
    return loaded


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's behaviour without torch, whether it is installed or not."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(scope="module")
def pool_fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=2) as started:
        yield started
        assert started.status()["internal_errors"] == 0


@pytest.fixture(scope="module")
def pool_port(pool_fabric: emulator.Fabric) -> Iterator[int]:
    """Where node a's pool serves."""
    here, there = multiprocessing.Pipe()
    node = multiprocessing.get_context("spawn").Process(target=serve, args=(pool_fabric.device("a"), there))
    node.start()
    there.close()  # a child that dies is the end of the pipe, not silence
    yield here.recv()
    here.send("stop")
    node.join(30)
    assert node.exitcode == 0


@pytest.fixture
def pool(pool_fabric: emulator.Fabric, pool_port: int) -> Iterator[EngramPool]:
    """Node b's pool."""
    with obmm.open(pool_fabric.device("b")) as device:
        found = EngramPool(
            config(hosts=["127.0.0.1"], ports=[pool_port], max_batch_keys=100),
            device=device,
            credentials={"plain": True},
        )
        found.initialize()
        yield found
        found.shutdown()
