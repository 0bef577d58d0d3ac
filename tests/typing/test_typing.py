# SPDX-License-Identifier: Apache-2.0
"""A user's program, right and wrong, as mypy and pyright see the installed package."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.timeout(300)  # a whole check of the package, on a machine that may be busy
PROGRAMS = ("right.py", "wrong.py")
WRONG = {number for number, line in enumerate((HERE / "wrong.py").read_text().splitlines(), 1) if "# wrong" in line}


Refused = dict[str, set[int]]


@cache
def mypy() -> Refused:
    """The lines of each program that mypy refuses, strictly."""
    options = ("--strict", "--no-incremental", "--show-error-codes", "--config-file=")
    done = run("mypy", *options, *(str(HERE / name) for name in PROGRAMS))
    assert done.returncode in (0, 1), done.stderr
    errors = [line.split(":") for line in done.stdout.splitlines() if " error: " in line]
    return {name: {int(number) for file, number, *_ in errors if Path(file).name == name} for name in PROGRAMS}


@cache
def pyright() -> Refused:
    """The lines of each program that pyright refuses, by its standard rules (the packaged build that needs no download)."""
    settings = {
        "include": [str(HERE / name) for name in PROGRAMS],
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT)],
        "reportUnusedExpression": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "pyrightconfig.json"
        config.write_text(json.dumps(settings))
        done = run("basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config))
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS), done.stdout
    found = [(Path(each["file"]).name, each) for each in report["generalDiagnostics"] if each["severity"] == "error"]
    return {name: {each["range"]["start"]["line"] + 1 for file, each in found if file == name} for name in PROGRAMS}


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One check of both programs: what they import is read once."""
    pytest.importorskip(module, reason=f"pip install {module}")
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_a_right_program_is_accepted(checker):
    assert checker()["right.py"] == set()


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_each_wrong_line_is_refused_and_no_other(checker):
    assert WRONG
    assert checker()["wrong.py"] == WRONG
