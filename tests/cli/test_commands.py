# SPDX-License-Identifier: Apache-2.0
"""Commands as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from obmm import emulator
from obmm.cli.main import main
from obmm.demo import DIM, ROWS, TABLES


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=1) as fabric:
        yield fabric


def obmm(*arguments: str, device: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"OBMM_DEVICE": device} if device else {})
    return subprocess.run(
        [sys.executable, "-m", "obmm.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=110,
    )


@pytest.mark.parametrize("name", main.list_commands(None))
def test_every_listed_command_exists_and_has_help(name):
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_overview_and_version():
    done = obmm("--help")
    assert done.returncode == 0
    for name in main.list_commands(None):
        assert name in done.stdout
    assert obmm("--version").stdout.startswith("obmm ")


def test_explain_prints_the_table_entry():
    result = CliRunner().invoke(main, ["explain", "import", "einval"])
    assert "[I14]" in result.output
    assert "fix:" in result.output
    (row,) = json.loads(CliRunner().invoke(main, ["explain", "IMPORT", "EINVAL", "--json"]).output)
    assert row["operation"] == "IMPORT"


def test_explain_of_an_errno_that_an_operation_never_gives_lists_its_answers():
    result = CliRunner().invoke(main, ["explain", "IMPORT", "EDOM"])
    assert result.exit_code != 0
    assert "EINVAL, ENODEV" in result.output
    assert "UNEXPORT" not in result.output


def test_smoke_passes_on_the_emulator_and_says_so(fabric):
    done = obmm("smoke", "6MiB", device=fabric.device())
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"smoke ok: backend={fabric.device()}"
    assert "says nothing about hardware" in done.stdout


def test_smoke_rounds_up_with_a_notice_and_speaks_json(fabric):
    document = json.loads(obmm("smoke", "5MiB", "--nc", "--json", device=fabric.device()).stdout)
    assert document["result"] == "ok"
    assert document["emulated"] is True
    steps = {step["name"]: step for step in document["steps"]}
    assert "rounded up" in steps["export"]["text"]
    assert all(step["status"] == "ok" for step in steps.values())
    assert "nc window" in steps["import"]["text"]


def test_smoke_without_a_device_fails_with_the_reason(tmp_path):
    done = obmm("smoke", "--json", device=f"emulator:{tmp_path}/none")
    assert done.returncode == 1
    (step, _) = json.loads(done.stdout)["steps"]
    assert (step["name"], step["status"]) == ("open", "failed")
    assert "obmm emulate up" in step["text"]


def test_demo_verifies_every_byte_and_ends_with_the_promised_line():
    done = obmm("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == (
        f"demo ok: rows={TABLES * ROWS} bytes_verified={TABLES * ROWS * DIM * 4} backend=emulator nodes=2"
    )
