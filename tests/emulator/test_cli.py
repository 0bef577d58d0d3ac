# SPDX-License-Identifier: Apache-2.0
"""``obmm emulate`` as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from obmm.cli.emulate import emulate
from obmm.cli.emulate_status import print_status

from .node import MIB, Node, memory


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's runtime folder with the fabric of `obmm emulate up` in it."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.delenv("OBMM_DEVICE", raising=False)
        assert invoke("up", "--nodes", "x,y").exit_code == 0
        yield folder
        invoke("down")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(emulate, arguments, catch_exceptions=False)


def told(*arguments: str) -> dict[str, object]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, object] = json.loads(result.output)
    return document


@pytest.fixture
def x(runtime: Path) -> Iterator[Node]:
    node = Node(str(runtime / "obmm" / "fabric.sock"), "x")
    yield node
    node.close()


def test_status_lists_the_nodes(runtime: Path) -> None:
    assert list(told("status")["nodes"]) == ["x", "y"]  # type: ignore[call-overload]
    assert "0x40a" in invoke("status").output


def test_status_of_a_server_that_was_started_by_an_older_obmm(
    capsys: pytest.CaptureFixture[str], runtime: Path
) -> None:
    """It has no profile to name, and everything else is shown."""
    answer = told("status")
    del answer["modelled"]
    print_status(answer)
    shown = capsys.readouterr().out
    assert "MODELLED" not in shown
    assert "0x40a" in shown


def test_a_second_up_is_refused(runtime: Path) -> None:
    result = invoke("up")
    assert result.exit_code == 1
    assert re.search(r"already runs on .*; `obmm emulate down --name \w+` ends it", result.output)


@pytest.mark.parametrize("option", ["--name", "--fabric"])
def test_every_command_takes_the_name_that_up_took(option: str) -> None:
    taking = [
        one for name, one in emulate.commands.items() if name != "up" and any(p.name == "socket" for p in one.params)
    ]
    assert len(taking) >= 5
    for command in taking:
        assert any(option in parameter.opts for parameter in command.params), command.name


def test_open_emulator_is_the_fabric_of_up(runtime: Path) -> None:
    import obmm

    with obmm.open("emulator#y") as device:
        assert "#y" in repr(device)


def test_program_window_by_mem_id(runtime: Path, x: Node) -> None:
    exported = x.export(4 * MIB)
    told_pa = told("program-window", "--node", "y", "--owner", "x", "--mem-id", str(exported.mem_id))["pa"]
    y = Node(str(runtime / "obmm" / "fabric.sock"), "y")
    y.name = "b"  # the second node of a default topology
    imported = y.import_(told_pa, 4 * MIB, "a")  # type: ignore[arg-type]
    fd = y.open_region(imported)
    start = y.map(fd, 4 * MIB)
    assert memory(start, 4 * MIB)[:4] == bytes(4)
    assert invoke("program-window", "--node", "y", "--pa", str(told_pa), "--remove").exit_code == 0
    y.unmap(start, 4 * MIB)
    os.close(fd)
    y.unimport(imported)
    y.close()
    x.unexport(exported.mem_id)


def test_program_window_without_a_target_says_what_is_missing(runtime: Path) -> None:
    result = invoke("program-window", "--node", "y", "--owner", "x")
    assert result.exit_code == 2
    assert "--tokenid, --uba, --length" in result.output


def test_inject_lists_faults_and_arms_one(runtime: Path, x: Node) -> None:
    assert "node-death" in invoke("inject").output
    assert invoke("inject", "--node", "x", "ummu-refuses", "value=1").exit_code == 0
    with pytest.raises(PermissionError):
        x.export()
    assert invoke("inject", "--node", "x", "reset").exit_code == 0
    x.unexport(x.export().mem_id)


def test_inject_of_an_unknown_fault_names_the_known_ones(runtime: Path) -> None:
    result = invoke("inject", "--node", "x", "gremlins")
    assert result.exit_code == 1
    assert "revoke" in result.output


def test_unknown_node_is_refused_with_the_nodes(runtime: Path) -> None:
    result = invoke("tree", "--node", "z")
    assert (result.exit_code, "x, y" in result.output) == (1, True)


def test_tree_shows_the_nodes_files(runtime: Path, x: Node) -> None:
    mem_id = x.export().mem_id
    files = told("tree", "--node", "x")["files"]
    assert files[f"/sys/devices/obmm/obmm_shmdev{mem_id}/size"] == "0x200000\n"  # type: ignore[index]
    x.unexport(mem_id)


def test_run_executes_the_program_on_the_node(runtime: Path) -> None:
    command = [sys.executable, "-m", "obmm.cli.main", "emulate", "run", "--node", "y", "--"]
    script = 'echo "$OBMM_DEVICE"; test -c /dev/obmm && cat /sys/devices/ub_bus_controller0/*/primary_cna'
    done = subprocess.run([*command, "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [f"emulator:{runtime}/obmm/fabric.sock#y", "0x050a"], done.stderr


def test_run_of_nothing_known_is_refused(runtime: Path) -> None:
    result = invoke("run", "--", "no-such-program-anywhere")
    assert (result.exit_code, "no such program" in result.output) == (1, True)


@pytest.mark.parametrize("command", ["status", "down", "tree", "inject"])
def test_without_a_fabric_every_command_says_how_to_start_one(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("OBMM_DEVICE", raising=False)
    result = invoke(command)
    assert (result.exit_code, "obmm emulate up" in result.output) == (1, True)


def test_up_with_a_topology_file_and_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    topology = tmp_path / "bad.toml"
    topology.write_text("[[host]]\nname = 7\n")
    result = invoke("up", "--topology", str(topology))
    assert (result.exit_code, "host" in result.output) == (1, True)
    ready = told("up", "--name", "mine", "--nodes", "1")
    assert told("down", "--fabric", "mine")["pid"] == ready["pid"]
    assert not os.path.exists(str(ready["socket"]))
