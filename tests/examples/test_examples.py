# SPDX-License-Identifier: Apache-2.0
"""Every example runs as its user would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAYS = {
    "word_embeddings.py": "3 sentence embeddings equal the local ones bit for bit",
    "engram_table.py": "every byte right",
    "one_reader_per_node.py": "gathered by one of them, every byte right",
    "frames.py": "column of 5 words -> rows (5, 16)",
    "gpu_rows.py": "in a stream: <StreamGather of 8 rows, 1 runs, 0 failed",
}
ARGUMENTS = {"gpu_rows.py": ["--fake"]}  # no accelerator is needed
MODULES = {"words.py"}  # imported by others


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAYS.keys() | MODULES


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_is_short(name: str) -> None:
    path = EXAMPLES / name
    assert len(path.read_text().splitlines()) < 60
    done = subprocess.run(
        [sys.executable, path, *ARGUMENTS.get(name, [])], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
