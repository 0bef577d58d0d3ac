# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the core rooms: two emulated nodes, `a` exports and `b` imports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import obmm
from obmm import Device, emulator


@pytest.fixture(scope="session")
def fabric() -> Iterator[emulator.Fabric]:
    """Two emulated nodes for the whole run; nothing may break inside their server."""
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


def left_behind(fabric: emulator.Fabric) -> dict[str, object]:
    """What exists in the fabric: as before when a test gave everything back."""
    found: dict[str, object] = {}
    for name, node in fabric.status()["nodes"].items():
        for key in ("regions", "windows", "open_files"):
            if node[key]:
                found[f"{name}.{key}"] = node[key]
    return found


@pytest.fixture
def a(fabric: emulator.Fabric) -> Iterator[Device]:
    """The exporter.  Whatever a test leaves in the fabric fails it, and no later one."""
    before = left_behind(fabric)
    with obmm.open(fabric.device("a")) as device:
        yield device
    assert left_behind(fabric) == before


@pytest.fixture
def b(fabric: emulator.Fabric, a: Device) -> Iterator[Device]:
    """The importer."""
    with obmm.open(fabric.device("b")) as device:
        yield device
