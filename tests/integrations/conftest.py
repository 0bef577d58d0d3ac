# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tables import Owner, owner

from obmm import emulator


@pytest.fixture(scope="module")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=2) as started:
        yield started
        assert started.status()["internal_errors"] == 0


@pytest.fixture
def served(fabric: emulator.Fabric, tmp_path: Path) -> Iterator[Owner]:
    """Edition 1, served from node a."""
    with owner(fabric.device("a"), tmp_path) as made:
        made.do("publish", 1)
        yield made


@pytest.fixture(scope="module")
def steady(fabric: emulator.Fabric, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """The same, for tests that only read."""
    with owner(fabric.device("a"), tmp_path_factory.mktemp("owner")) as made:
        made.do("publish", 1)
        yield made
