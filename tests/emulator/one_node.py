# SPDX-License-Identifier: Apache-2.0
"""A fabric of one node, on which the foreign programs of a file leave nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from obmm import emulator
from obmm.emulator import Fabric


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with emulator.start(nodes=1) as fabric:
        yield fabric
        status = fabric.status()
        assert (status["internal_errors"], status["nodes"]["a"]["regions"]) == (0, [])
