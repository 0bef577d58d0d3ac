# SPDX-License-Identifier: Apache-2.0
"""`obmm lease` where no server answers: it names those that have a socket on this host."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from obmm.cli import lease
from obmm.driver.backend import runtime_directory


@pytest.mark.parametrize("words", [("ls",), ("end", "--holder", "x")])
def test_a_refused_command_names_other_ports_and_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(lease, "RUN", tmp_path)
    (tmp_path / "own").mkdir(mode=0o700)
    runtime_directory().mkdir(exist_ok=True)
    (runtime_directory() / "serve-4000.sock").touch()
    service = tmp_path / "obmm-serve-embeddings"
    (service / "obmm").mkdir(parents=True)
    (service / "obmm" / "serve-13857.sock").touch()
    done = CliRunner().invoke(lease.lease, [*words, "--port", "1"])
    assert done.exit_code == 1
    assert f"Others here: --port 4000, XDG_RUNTIME_DIR={service} obmm lease ls --port 13857" in done.output
    (service / "obmm" / "serve-13857.sock").unlink()
    (runtime_directory() / "serve-4000.sock").unlink()
    assert "Others here" not in CliRunner().invoke(lease.lease, [*words, "--port", "1"]).output
