# SPDX-License-Identifier: Apache-2.0
"""The names that examples in docstrings may use: two emulated nodes, as the page of the package says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import obmm
from obmm import emulator
from tests.reference.examples import Ran, run
from tests.two_nodes import left_behind


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Every example has run, with a fabric of its own; they leave nothing in it."""
    folder: Path = tmp_path_factory.mktemp("examples")
    with (
        pytest.MonkeyPatch.context() as patch,
        emulator.start(nodes=2) as fabric,
        obmm.open(fabric.device("a")) as a,
        obmm.open(fabric.device("b")) as b,
    ):
        patch.setenv("XDG_STATE_HOME", str(folder))
        before = left_behind(fabric)
        done = run({"obmm": obmm, "np": np, "fabric": fabric, "a": a, "b": b}, folder)
        after = left_behind(fabric)
        if after != before:
            done.failures["everything"] = f"left in the fabric: {after}, at first {before}"
        yield done
