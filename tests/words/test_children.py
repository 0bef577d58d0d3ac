# SPDX-License-Identifier: Apache-2.0
"""Children run the package's own modules, whatever lies in the current folder."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import obmm
from obmm.children import python_module

PACKAGE = Path(obmm.__file__).parent


def test_a_json_py_in_the_current_folder_is_not_run(tmp_path: Path) -> None:
    for name in ("json", "click", "obmm", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger was run')\n")
    done = subprocess.run(
        python_module("obmm.cli.main", "explain", "EXPORT", "EINVAL"),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "EXPORT" in done.stdout


def test_it_runs_from_a_folder_whose_child_is_called_obmm(tmp_path: Path) -> None:
    (tmp_path / "obmm").mkdir()
    done = subprocess.run(
        python_module("obmm.cli.main", "--version"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_nothing_in_the_package_starts_a_module_in_another_way() -> None:
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "children.py" and re.search(r'executable,\s*"-m"', path.read_text())
    ]
    assert found == []
