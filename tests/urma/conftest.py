# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from obmm import urma
from obmm.urma.standin import StandIn

NBYTES = 1 << 20


class OwnerProcess:
    """`owner.py` on node b."""

    def __init__(self, standin: StandIn, node: str = "b", **more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.urma.owner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd(), **standin.environment(node, **more)},
        )

    def ask(self, name: str, *arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def register(self, seed: int = 1, nbytes: int = NBYTES, access: str = "r") -> tuple[int, bytes]:
        number, ticket = self.ask("register", seed, nbytes, access)
        return number, bytes.fromhex(ticket)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(20)


@pytest.fixture(scope="session")
def standin() -> Iterator[StandIn]:
    with StandIn(("a", "b", "c")) as standin:
        yield standin


@pytest.fixture(autouse=True)
def _on_node_a(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is on node a, for one test: other rooms' tests must not find a library."""
    for name, value in standin.environment("a").items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def library(standin: StandIn) -> urma.Library:
    return urma.load(standin.library)


@pytest.fixture
def context(standin: StandIn, library: urma.Library) -> Iterator[urma.Context]:
    with urma.Context(library=library) as context:
        yield context
    standin.mend()


@pytest.fixture
def spawn(standin: StandIn) -> Iterator[Callable[..., OwnerProcess]]:
    started: list[OwnerProcess] = []

    def spawn(node: str = "b", **more: str) -> OwnerProcess:
        started.append(OwnerProcess(standin, node, **more))
        return started[-1]

    yield spawn
    for each in started:
        each.close()


@pytest.fixture(scope="session")
def shared_owner(standin: StandIn) -> Iterator[OwnerProcess]:
    """One for all tests that do not end it."""
    owner = OwnerProcess(standin)
    yield owner
    owner.close()


@pytest.fixture
def owner(shared_owner: OwnerProcess) -> OwnerProcess:
    return shared_owner
