# SPDX-License-Identifier: Apache-2.0
"""E8: what others wrote is shown as text, also in errors: no terminal acts on it."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from obmm.cli.command import Command
from obmm.cli.main import main
from obmm.errors import ObmmError

WILD = "\x1b[2J\x9b31m\u202egone"


@pytest.mark.parametrize(
    "error", [ObmmError(5, WILD), OSError(5, WILD), OSError(5, "no", WILD), click.ClickException(WILD)]
)
def test_an_error_with_escape_sequences_is_shown_as_text(error: Exception) -> None:
    @click.command(cls=Command)
    def command() -> None:
        raise error

    answer = CliRunner().invoke(command)
    assert answer.exit_code == 1
    assert not {"\x1b", "\x9b", "\u202e"} & set(answer.output)
    assert "\\x1b[2J\\x9b31m\\u202egone" in answer.output


@pytest.mark.parametrize(
    "line",
    [
        ["serve", WILD], ["serve", "--name", WILD, "x.npy"], ["fetch", WILD, "table", "--plain"], ["engram", "inspect", WILD],
        ["bench", "report", WILD], ["bench", "compare", WILD, WILD], ["blocks", "status", WILD, "--plain"], ["explain", WILD, WILD],
        ["ls", "--device", WILD], ["emulate", "status", "--fabric", WILD], ["open-broker", "--policy", WILD], [WILD],
        ["lease", "end", "--lease", WILD], ["help", WILD], ["smoke", "--device", WILD], ["blocks", "serve", "--size", WILD],
    ],
)  # fmt: skip
def test_arguments_are_shown_as_text(line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may come from a script, out of somebody else's file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    answer = CliRunner().invoke(main, line)
    assert answer.exit_code in (1, 2)
    assert not {"\x1b", "\x9b", "\u202e"} & set(answer.output), ascii(answer.output)


def test_the_names_of_a_policys_rules_are_shown_as_text(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[allow]]\nname = "\\u001b[2J"\nusers = [{os.geteuid()}]\ncontrol = true\n')
    policy.chmod(0o600)
    answer = CliRunner().invoke(main, ["open-broker", "--check", "--policy", str(policy)])
    assert answer.exit_code == 0
    assert "\\x1b[2J: " in answer.output
