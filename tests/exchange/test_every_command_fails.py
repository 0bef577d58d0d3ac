# SPDX-License-Identifier: Apache-2.0
"""Every system call of every command fails once, in turn: one sentence and status 1, or it did not matter; nothing stays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from obmm import emulator
from obmm.cli.main import main
from obmm.exchange import Server
from obmm.exchange.control import ControlSocket, control_path
from tests.exchange.conftest import left_behind, until
from tests.exchange.failing_commands import WHOLE, at_once, play

pytestmark = pytest.mark.timeout(0 if WHOLE else 60)

Start = Callable[..., Server]
COMMANDS = (
    "ls --device {b}",
    "ls --json --device {b}",
    "gc --device {b}",
    "gc --yes --device {b}",
    "doctor --device {b}",
    "doctor --json --device {b}",
    "explain EXPORT EINVAL",
    "help fetch",
    "smoke --device {b}",
    "lease ls --port {port}",
    "lease end --lease 00000000 --port {port}",
    "fetch 127.0.0.1:{remote} table --key {key} --device {b}",
    "fetch 127.0.0.1:{remote} table --rows 0:3 --key {key} --device {b}",
    "fetch 127.0.0.1:{remote} table --all -o {folder}/out.npy --key {key} --device {b}",
    "serve --status 127.0.0.1:{port} --key {key}",
    "serve {folder}/table.npy --port 0 --host 127.0.0.1 --key {key} --journal {folder}/j --device {b}",
    "open-broker --check --policy {folder}/broker.toml",
    "emulate status --fabric {fabric}",
    "emulate trace --fabric {fabric}",
    "blocks status 127.0.0.1:{port}/none --key {key}",
    "engram inspect {folder}/t.safetensors",
    "bench report {folder}/none.json",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "table.npy", np.arange(4096, dtype="<f4").reshape(64, 64))
    return tmp_path / "table.npy"


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder with a short name: the path of a socket has 107 bytes, and pytest's own are long beside other workers."""
    with tempfile.TemporaryDirectory(prefix="obmm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_system_call_of_a_command_fails_once(
    fabric: emulator.Fabric, start: Start, key: Path, table: Path, line: str, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, runtime: Path,
) -> None:  # fmt: skip
    from obmm import open as open_device
    from obmm.files import export_for, fill, open_arrays

    (tmp_path / "XDG_STATE_HOME").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "XDG_STATE_HOME"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr("obmm.cli.serve.until_interrupted", at_once)
    (tmp_path / "broker.toml").write_text(f"[[allow]]\nusers = [{os.geteuid()}]\ncontrol = true\n")
    (tmp_path / "broker.toml").chmod(0o600)
    (runtime / "obmm").mkdir(mode=0o700)
    with open_device(fabric.device("a")) as owner:
        (array,) = open_arrays(table)
        region = export_for(owner, array, "table", numa=0, pmd=False)
        server = start({"table": (region, fill(region, array, lambda done: None).to_json())})
        names = {
            "a": fabric.device("a"), "b": fabric.device("b"), "port": server.port, "remote": server.port, "key": key,
            "folder": tmp_path, "fabric": fabric.socket,
        }  # fmt: skip
        arguments = line.format(**names).split()
        control = control_path(runtime / "obmm", server.port)
        with ControlSocket(server, control):
            CliRunner().invoke(main, arguments)  # what is imported late is there from now on
            tried = play(arguments, monkeypatch, lambda: left_behind(fabric), 6)
            until(lambda: server.status()["server"]["leases"] == 0)
        server.close(timeout=5)
        region.close()
    print(f"{line.split(' --')[0]}: {tried} failures tried")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")], "no temporary file"
