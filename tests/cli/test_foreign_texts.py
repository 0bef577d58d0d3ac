# SPDX-License-Identifier: Apache-2.0
"""E8: what others wrote is shown as text, also in errors: no terminal acts on it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import obmm
from obmm.cli.command import Command
from obmm.cli.fetch import _in_words
from obmm.cli.main import main
from obmm.cli.serve_status import show_status
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


@pytest.mark.parametrize(
    "figure",
    [10**400, -(10**400), float("nan"), float("inf"), True, "x\x1b[2J", [[]], {}, None, 10**4000],
    ids=lambda each: repr(each)[:20],
)
def test_whatever_a_server_says_of_itself_is_shown(figure: object, capsys: pytest.CaptureFixture[str]) -> None:
    server = dict.fromkeys(("mode", "uptime_s", "connections", "leases", "refused", "lines_dropped", "closing"), figure)
    names = (
        "kind",
        "region",
        "bytes",
        "state",
        "leases",
        "lease",
        "client",
        "address",
        "identity",
        "connected",
        "expires_in_s",
    )
    items = [dict.fromkeys(names, figure) | {"kind": kind} for kind in ("region", "lease", figure)]
    show_status("here", {"server": server, "items": items})
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) < 4000


@pytest.mark.parametrize("dtype", ["<U1", "<U2", ">U1", [("word", "<U1"), ("count", "<i4")]])
def test_rows_of_characters_that_do_not_exist_are_shown(dtype: object) -> None:
    for byte in (b"\xff", b"\x11", b"\xd8"):
        rows = np.frombuffer(byte * 4 * np.dtype(dtype).itemsize, dtype)
        text = _in_words(rows)
        assert text.startswith("[")
        assert text.isprintable() or "\n" in text


class Answers:
    """An owner of a store that says what it wants."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def call(self, caller: object, body: bytes) -> bytes:
        return b"\0" + self.answer


USER = {"name": "[/x]\\[/y]", "tenant": "\x1b[2J\\[red]", "reserved": 10**400, "pins": None, "expires_in_s": 10**400}


@pytest.mark.parametrize(
    ("command", "answer", "status"),
    [
        *(("status", answer, 1) for answer in (b"", b"[]", b"5", b"\xff", b"[" * 5000, b"9" * 5000, b'"\x1b[2J"')),
        ("status", b"{}", 0),
        ("status", json.dumps({"users": [USER, 5, {}], "counts": {"\x1b[31m": "[/b]"}, "blocks": [1], "free": WILD}).encode(), 0),
        ("status", json.dumps({"users": {"a": 1}, "counts": [1], "slots": {"\x1b": 1}}).encode(), 0),
        *(("evict", answer, 1) for answer in (b"", b"\x01", bytes(100))),
    ],
)  # fmt: skip
def test_whatever_an_owner_of_blocks_says_is_shown_or_one_sentence(
    tmp_path: Path, command: str, answer: bytes, status: int
) -> None:
    with obmm.serve({}, port=0, plain=True, journal=tmp_path / "journal") as server:
        server.answer_calls("kv", Answers(answer))
        done = CliRunner().invoke(main, ["blocks", command, f"127.0.0.1:{server.port}/kv", "--plain"])
    assert done.exit_code == status, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    assert not {"\x1b", "\x9b", "\u202e"} & set(done.output), ascii(done.output)
