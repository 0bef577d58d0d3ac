# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from obmm.bench import results
from obmm.cli.bench import bench


@pytest.fixture(scope="session")
def results_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of seconds with every arm and every workload, on an emulated fabric."""
    path = tmp_path_factory.mktemp("bench") / "smoke.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OBMM_DEVICE", raising=False)
        ran = CliRunner().invoke(bench, ["run", "--preset", "smoke", "-o", str(path)])
    assert ran.exit_code == 0, ran.output
    return path


@pytest.fixture
def document(results_file: Path) -> dict[str, Any]:
    return results.read(results_file)


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(results.SCHEMA.read_text())
    return found


@pytest.fixture(scope="session")
def report_folder(results_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    ran = CliRunner().invoke(bench, ["report", str(results_file), "-o", str(folder)])
    assert ran.exit_code == 0, ran.output
    return folder
