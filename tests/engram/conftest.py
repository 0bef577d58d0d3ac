# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from publisher import Publisher, command

from obmm import emulator

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=2) as started:
        yield started
        assert started.status()["internal_errors"] == 0


@pytest.fixture(scope="module")
def engram(fabric: emulator.Fabric) -> Command:
    """Run ``obmm engram`` on node b."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "OBMM_DEVICE": fabric.device("b")}
        return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, env=variables)

    return run


@pytest.fixture
def publisher(fabric: emulator.Fabric, tmp_path: Path) -> Iterator[Callable[..., Publisher]]:
    started: list[Publisher] = []

    def start(checkpoint: Path, *options: object) -> Publisher:
        port = () if "--port" in options else ("--port", 0)
        started.append(Publisher(fabric, checkpoint, "--journal", tmp_path / f"journal{len(started)}", *port, *options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()
