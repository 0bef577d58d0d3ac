# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

from obmm import emulator

from .node import Node


@pytest.fixture
def fabric() -> Iterator[emulator.Fabric]:
    """A fabric of two nodes; the test fails if anything broke inside its server."""
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture
def a(fabric: emulator.Fabric) -> Iterator[Node]:
    node = Node(fabric, "a")
    yield node
    node.close()


@pytest.fixture
def b(fabric: emulator.Fabric) -> Iterator[Node]:
    node = Node(fabric, "b")
    yield node
    node.close()
