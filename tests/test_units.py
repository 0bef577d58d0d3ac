# SPDX-License-Identifier: Apache-2.0
"""Tests that share something dear run in one process, beside others, and long ones begin first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.units import APART, FIRST

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = """
import os
import pytest

@pytest.mark.parametrize("at", range(6))
def test_process(at):
    print(f"\\n{__name__}: {os.getpid()}")
"""


def test_the_named_files_exist():
    assert [file for file in (*FIRST, *APART) if not (ROOT / file).is_file()] == []
    assert set(APART) <= set(FIRST)


def test_a_file_is_run_by_one_process(tmp_path):
    """Which xdist's groups no more brought about, and nothing said so."""
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(SAMPLE)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-n", "2", "-rP", "-p", "no:cacheprovider", "-p", "no:randomly"),
            *("-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    processes = [line.split(": ") for line in ran.stdout.splitlines() if line.startswith("test_") and ": " in line]
    assert len(processes) == 12, ran.stdout
    by_file = {name: {process for file, process in processes if file == name} for name in ("test_a", "test_b")}
    assert [len(found) for found in by_file.values()] == [1, 1]
    assert by_file["test_a"] != by_file["test_b"]
