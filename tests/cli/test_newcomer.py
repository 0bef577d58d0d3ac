# SPDX-License-Identifier: Apache-2.0
"""What somebody meets who uses the commands for the first time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import obmm
from obmm import emulator
from obmm.cli.command import Group
from obmm.cli.main import main

BOX = re.compile("[\u2500-\u259f]")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "obmm.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
    )


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as opened:
        with opened.export_region("2MiB", label="a-label"):
            yield fabric


def test_help_is_what_dashdash_help_says() -> None:
    runner = CliRunner()
    assert (
        runner.invoke(main, ["help"], prog_name="obmm").output
        == runner.invoke(main, ["--help"], prog_name="obmm").output
    )
    for words in (["ls"], ["emulate"], ["emulate", "up"]):
        asked = runner.invoke(main, ["help", *words], prog_name="obmm")
        assert asked.exit_code == 0
        assert asked.output.split() == runner.invoke(main, [*words, "--help"], prog_name="obmm").output.split()
    wrong = runner.invoke(main, ["help", "fetsch"])
    assert wrong.exit_code == 1
    assert "it has fetch, " in wrong.output


@pytest.mark.parametrize(("typed", "meant"), [("fetsch", "fetch"), ("leases", "lease"), ("dokter", "doctor")])
def test_a_mistyped_command_names_the_one_that_was_meant(typed: str, meant: str) -> None:
    answer = CliRunner().invoke(main, [typed])
    assert answer.exit_code == 2
    assert meant in answer.output


@pytest.mark.parametrize(
    ("asked", "meant"), [("EXPROT", "EXPORT"), ("maps", "MMAP"), ("UNIMPORTED", "UNIMPORT"), ("exports", "EXPORT")]
)
def test_explain_of_something_unknown_suggests_what_is_like_it(asked: str, meant: str) -> None:
    answer = CliRunner().invoke(main, ["explain", asked])
    assert answer.exit_code == 1
    assert re.search(rf"did you mean .*\b{meant}\b", answer.output)
    assert len(answer.output) < 200, "no wall of names"


def test_explain_of_something_like_nothing_says_where_all_are() -> None:
    answer = CliRunner().invoke(main, ["explain", "ZZZ"])
    assert "no operation is called ZZZ; `obmm explain` shows all" in answer.output
    assert CliRunner().invoke(main, ["explain"]).exit_code == 0


@pytest.mark.parametrize("arguments", [("ls",), ("emulate", "status"), ("bench", "model")], ids=" ".join)
def test_a_pipe_gets_columns_of_text_and_no_drawn_lines(fabric: emulator.Fabric, arguments: tuple[str, ...]) -> None:
    extra = ("--fabric", str(fabric.socket)) if arguments[0] == "emulate" else ()
    done = run(*arguments, *extra, OBMM_DEVICE=fabric.device("a"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not BOX.search(done.stdout), done.stdout


def test_who_started_a_fabric_and_did_not_name_it_is_told_how(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "OBMM_DEVICE": "/dev/obmm"}
    if Path("/dev/obmm").exists():
        pytest.skip("this machine has a device of its own")
    assert "emulated" not in run("doctor", **environment).stdout.replace("obmm emulate up", "")
    up = run("emulate", "up", "--nodes", "2", **environment)
    assert up.returncode == 0, up.stderr
    try:
        lost = run("ls", **environment)
        assert lost.returncode == 1
        (device,) = re.findall(r"OBMM_DEVICE=(emulator#\w+)", lost.stderr)
        assert run("ls", **environment | {"OBMM_DEVICE": device}).returncode == 0, "the advice works as it is printed"
        looked = run("doctor", **environment)
        (command,) = re.findall(r"`(obmm doctor --device \S+)`", looked.stdout)
        assert run(*command.split()[1:], **environment).returncode == 0
    finally:
        run("emulate", "down", **environment)


def test_gc_without_yes_says_that_it_changes_nothing(fabric: emulator.Fabric) -> None:
    answer = CliRunner().invoke(main, ["gc", "--device", fabric.device("a")])
    assert answer.output.startswith("nothing is changed without --yes"), answer.output
    done = CliRunner().invoke(main, ["gc", "--yes", "--device", fabric.device("a")])
    assert "without --yes" not in done.output


def test_a_cut_safetensors_file_is_a_file_that_is_cut(tmp_path: Path) -> None:
    header = json.dumps({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(16)
    path = tmp_path / "t.safetensors"
    for length in (0, 4, 8, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        answer = CliRunner().invoke(main, ["serve", str(path), "--plain"])
        assert answer.exit_code == 1
        assert answer.output.startswith(f"Error: FILE: {path} is "), answer.output
        assert "ENGRAM" not in answer.output
        assert answer.output.count("fix:") == 1


def test_every_command_ends_in_order_and_with_one_sentence() -> None:
    assert isinstance(main, Group), "what obmm.cli.command gives is around all commands"
