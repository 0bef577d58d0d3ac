# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from obmm import emulator
from obmm.sdk.standin import StandIn

from .process import Process


@pytest.fixture(scope="session")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=3) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture(scope="session", params=["daemon", "in-process"])
def standin(fabric: emulator.Fabric, request: pytest.FixtureRequest) -> Iterator[StandIn]:
    """Every test runs in both modes: the rules must not depend on who applies them (16.2)."""
    with StandIn(fabric, mode=request.param) as standin:
        yield standin


Spawn = Callable[..., Process]


@pytest.fixture
def spawn(standin: StandIn) -> Iterator[Spawn]:
    """Processes of their own for one test."""
    started: list[Process] = []

    def spawn(node: str, user: tuple[int, int] | None = None, **environment: str) -> Process:
        process = Process(standin, node, user, **environment)
        started.append(process)
        return process

    yield spawn
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def processes(standin: StandIn) -> Iterator[dict[str, Process]]:
    found = {"a": Process(standin, "a"), "a2": Process(standin, "a"), "b": Process(standin, "b")}
    yield found
    for process in found.values():
        process.close()


@pytest.fixture
def fresh(standin: StandIn) -> Iterator[None]:
    """Each test has names of its own and must leave none behind."""
    before = standin.status()
    yield
    after = standin.status()
    new = {kind: [each for each in after[kind] if each not in before[kind]] for kind in ("objects", "busy")}
    assert new == {"objects": [], "busy": []}
    assert after["leases"] <= before["leases"]


@pytest.fixture
def a(processes: dict[str, Process], fresh: None) -> Process:
    """An initialised process on node a."""
    assert processes["a"].start() == [0, 0]
    return processes["a"]


@pytest.fixture
def a2(processes: dict[str, Process], fresh: None) -> Process:
    """Another one there."""
    assert processes["a2"].start() == [0, 0]
    return processes["a2"]


@pytest.fixture
def b(processes: dict[str, Process], fresh: None) -> Process:
    """One on node b."""
    assert processes["b"].start() == [0, 0]
    return processes["b"]
