# SPDX-License-Identifier: Apache-2.0
"""A user's program, right and wrong, as mypy and pyright see the installed package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.timeout(300)  # a whole check of the package, on a machine that may be busy
WRONG = {number for number, line in enumerate((HERE / "wrong.py").read_text().splitlines(), 1) if "# wrong" in line}


def mypy(file: Path) -> set[int]:
    """The lines of `file` that mypy refuses, strictly."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "--show-error-codes",
            "--config-file=",
            str(file),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
    )
    assert done.returncode in (0, 1), done.stderr
    return {
        int(line.split(":")[1]) for line in done.stdout.splitlines() if f"{file.name}:" in line and " error: " in line
    }


def pyright(file: Path) -> set[int]:
    """The lines of `file` that pyright refuses, by its standard rules (the packaged build that needs no download)."""
    pytest.importorskip("basedpyright", reason="pip install basedpyright")
    settings = {
        "include": [str(file)],
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT)],
        "reportUnusedExpression": False,
    }
    config = HERE / f".{file.stem}.json"
    config.write_text(json.dumps(settings))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=280,
        )
    finally:
        config.unlink()
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {entry["range"]["start"]["line"] + 1 for entry in found if entry["severity"] == "error"}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_right_program_is_accepted(checker):
    assert checker(HERE / "right.py") == set()


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_each_wrong_line_is_refused_and_no_other(checker):
    assert checker(HERE / "wrong.py") == WRONG
