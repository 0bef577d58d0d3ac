# SPDX-License-Identifier: Apache-2.0
"""What --metrics needs is asked for before any work: no device is opened, no port bound."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from obmm.cli.main import main


@pytest.mark.parametrize("command", ["serve", "blocks serve"])
@pytest.mark.parametrize(
    ("metrics", "problem"), [("127.0.0.1:9857", "needs the extra `metrics`"), ("nonsense:x", "nonsense")]
)
def test_metrics_that_cannot_be_shown_end_the_command_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, metrics: str, problem: str
) -> None:
    np.save(tmp_path / "table.npy", np.zeros((2, 2), "<f4"))
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "prometheus_client" else real(name, *rest)
    )
    words = [*command.split(), *([str(tmp_path / "table.npy")] if command == "serve" else ["--size", "1MiB"])]
    done = CliRunner().invoke(main, [*words, "--plain", "--device", "emulator:/gone/s", "--metrics", metrics])
    assert done.exit_code == 1, done.output
    assert problem in done.output
    assert "/gone" not in done.output
