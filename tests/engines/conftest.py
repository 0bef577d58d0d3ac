# SPDX-License-Identifier: Apache-2.0
"""The engines' tests run with `make engines`, in its environment; `make test` imports no engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent

if os.environ.get("OBMM_ENGINES_STAGE"):
    # toy checkpoints, and a process that publishes them
    sys.path[:0] = [str(HERE), str(HERE.parent / "engram")]
else:
    collect_ignore_glob = ["on_*"]


@pytest.fixture(scope="session")
def fabric() -> Iterator[Any]:
    """Two emulated nodes: tables are published on a, engines run on b."""
    from obmm import emulator

    with emulator.start(nodes=2) as started:
        yield started


@pytest.fixture
def publish(fabric: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Publish a checkpoint from node a until the test is over."""
    from publisher import Publisher

    started: list[Any] = []

    def start(checkpoint: Path, *options: object) -> Any:
        port = () if "--port" in options else ("--port", 0)
        journal = tmp_path / f"journal{len(started)}"
        started.append(Publisher(fabric, checkpoint, "--journal", journal, *port, *options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()
