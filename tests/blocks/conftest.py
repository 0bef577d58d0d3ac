# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import obmm
from obmm import Device, emulator
from obmm.exchange import Key
from tests.blocks.rig import Rig
from tests.two_nodes import a, b, fabric

__all__ = ["a", "b", "fabric"]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    Key.generate(tmp_path / "cluster.key")
    return tmp_path / "cluster.key"


@pytest.fixture
def rig(a: Device, b: Device, key: Path, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Make an owner on node a; its `store()` is a user on node b."""
    with ExitStack() as stack:

        def make(**options: Any) -> Rig:
            rig = Rig(a, b, key, tmp_path / "leases.journal", **options)
            stack.callback(rig.close)
            return rig

        yield make


@pytest.fixture(scope="module")
def strict() -> Iterator[emulator.Fabric]:
    """Two nodes that do not snoop each other's caches."""
    with emulator.start(nodes=2, strict=True, seed=11) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture
def strict_rig(strict: emulator.Fabric, key: Path, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """The same on incoherent hosts."""
    with ExitStack() as stack:
        a = stack.enter_context(obmm.open(strict.device("a")))
        b = stack.enter_context(obmm.open(strict.device("b")))

        def make(**options: Any) -> Rig:
            rig = Rig(a, b, key, tmp_path / "leases.journal", **options)
            stack.callback(rig.close)
            return rig

        yield make
