# SPDX-License-Identifier: Apache-2.0
"""The unit files: what they start exists, and systemd accepts them where it can be asked."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from obmm.cli.main import main

UNITS = sorted((Path(__file__).resolve().parents[2] / "packaging").glob("*.service"))


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_what_a_unit_starts_are_commands_and_options_of_ours(path: Path) -> None:
    words = unit(path)["Service"]["ExecStart"].split()
    assert words[0] == "/usr/bin/obmm"
    text = CliRunner().invoke(main, [words[1], "--help"]).output
    for word in words[2:]:
        assert not word.startswith("--") or word in text
    assert unit(path)["Service"]["Type"] == "notify"
    assert "HUP" in unit(path)["Service"]["ExecReload"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    # the command itself need not be installed where the unit is checked
    copy = tmp_path / path.name.replace("@", "@x")
    copy.write_text(path.read_text().replace("/usr/bin/obmm", "/bin/true"))
    answer = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    ours = [line for line in answer.stderr.splitlines() if path.stem.partition("@")[0] in line]
    assert ours == [], answer.stderr
