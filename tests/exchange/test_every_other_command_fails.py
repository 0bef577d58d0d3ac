# SPDX-License-Identifier: Apache-2.0
"""Commands of blocks, tables, the benchmark, the emulator and the broker: each of their system calls fails once."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import obmm
from obmm import emulator
from obmm.blocks import BlockOwner, SlotLayout
from obmm.cli import open_broker
from obmm.cli.main import main
from obmm.emulator.runtime import fabric_directory, remove_stale
from obmm.engram import FAMILIES, Checkpoint, find_tables, plan, publish
from obmm.exchange import Server
from tests.exchange.conftest import left_behind, until
from tests.exchange.failing_commands import WHOLE, at_once, play

pytestmark = pytest.mark.timeout(0 if WHOLE else 120)

Start = Callable[..., Server]
NAMED = "of-the-test"  # the fabric that `emulate up` starts

COMMANDS = (
    "blocks serve --size 1MiB --block-bytes 16KiB --port 0 --host 127.0.0.1 --key {key} --journal {folder}/j --device {a}",
    "blocks status 127.0.0.1:{port}/kv --key {key}",
    "blocks evict 127.0.0.1:{port}/kv --key {key}",
    "blocks prove 127.0.0.1:{port}/kv --key {key} --device {b}",
    "engram inspect {checkpoint}",
    "engram inspect 127.0.0.1:{port}/toy --key {key}",
    "engram verify 127.0.0.1:{port}/toy {checkpoint} --key {key} --device {b}",
    "engram publish {checkpoint} --name other --port 0 --host 127.0.0.1 --key {key} --journal {folder}/j --device {a}",
    "emulate status --fabric {fabric}",
    "emulate inject --fabric {fabric}",
    "emulate inject --fabric {fabric} --node a reset",
    "emulate program-window --fabric {fabric} --node b --owner a --mem-id {mem_id} --pa {pa}",
    "emulate tree --fabric {fabric} --node a",
    "emulate run --fabric {fabric} --node a -- true",
    "bench compare {results} {results}",
    "bench report {results} -o {folder}/report --json",
    "bench model --rows 100 --json",
    "bench serve --footprint 1MiB --port 0 --host 127.0.0.1 --key {key} --device {a}",
    "open-broker --policy {folder}/broker.toml --socket {runtime}/b --audit {folder}/audit --device {a}",
)
SLOW = (
    "demo --json",
    "blocks prove",
    "bench run --preset smoke --arms local --workloads row -o {folder}/out.json",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures of one arm."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    ran = CliRunner().invoke(main, ["bench", "run", "--preset", "smoke", "--arms", "local", "-o", str(path)])
    assert ran.exit_code == 0, ran.output
    return path


@pytest.fixture
def names(
    fabric: emulator.Fabric, start: Start, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """What the lines name: a store of blocks and a published table on node a, a checkpoint, a policy."""
    from tests.engram.toy_checkpoints import deepseek

    (tmp_path / "broker.toml").write_text(f"[[allow]]\nusers = [{os.geteuid()}]\ncontrol = true\n")
    (tmp_path / "broker.toml").chmod(0o600)
    deepseek(tmp_path / "checkpoint")
    with ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="obmm"))
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        owner = stack.enter_context(obmm.open(fabric.device("a")))
        opened = stack.enter_context(Checkpoint(str(tmp_path / "checkpoint")))
        planned = plan(opened, find_tables(opened, FAMILIES), model="toy")
        region, manifest = publish(owner, opened, planned, label="toy")
        stack.enter_context(region)
        server = start({"toy": (region, manifest.to_dict())})
        blocks = BlockOwner(owner, SlotLayout.for_blocks(16 << 10, 16))
        stack.callback(blocks.close, force=True)
        blocks.serve(server)
        stack.callback(server.close, timeout=5)
        yield {
            "a": fabric.device("a"), "b": fabric.device("b"), "fabric": fabric.socket, "port": server.port, "key": key,
            "folder": tmp_path, "checkpoint": tmp_path / "checkpoint", "mem_id": region.mem_id, "pa": 0,
            "runtime": runtime, "server": server,
        }  # fmt: skip


def children() -> int:
    """Processes that this one started and that run."""
    found = 0
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):  # that thread has ended
            found += sum(_runs(each) for each in Path(f"/proc/self/task/{task}/children").read_text().split())
    return found


def _runs(pid: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def ended_when_ready(state: str) -> None:
    """In place of telling the service manager: the signal that ends the command, as it would come."""
    if state == "READY=1":
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_system_call_of_a_command_fails_once(
    fabric: emulator.Fabric, names: dict[str, Any], results: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("obmm.cli.blocks", "obmm.cli.engram", "obmm.cli.serving"):
        monkeypatch.setattr(f"{place}.until_interrupted", at_once)
    monkeypatch.setattr(open_broker, "notify", ended_when_ready)
    # it ends with its own: what exec would replace is the test
    monkeypatch.setattr(os, "execve", lambda *arguments: subprocess.run(["true"], check=True))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    arguments = line.format(**names, results=results).split()
    free = ["emulate", "program-window", "--fabric", str(names["fabric"]), "--node", "b", "--remove", "--pa"]

    def after() -> None:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        if "program-window" in line:
            for entry in fabric.status()["nodes"]["b"]["decoder"]:
                CliRunner().invoke(main, [*free, str(entry["pa"])])

    server = names["server"]
    leases = server.status()["server"]["leases"]

    def left() -> Any:
        return left_behind(fabric), server.status()["server"]["leases"] - leases, children()

    before = left()
    tried = play(arguments, monkeypatch, left, 4, after)
    assert left() == before
    print(f"{line.split(' --')[0]}: {tried} failures tried")


@pytest.mark.parametrize("line", SLOW)
def test_every_system_call_of_a_command_with_processes_of_its_own_fails_once(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OBMM_DEVICE", raising=False)
    tried = play(line.format(folder=tmp_path).split(), monkeypatch, children, 2)
    print(f"{line.split(' --')[0]}: {tried} failures tried")


def test_every_system_call_of_starting_and_ending_a_fabric_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails: a fabric runs and can be ended, or none does and another one can be started."""
    with tempfile.TemporaryDirectory(prefix="obmm") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        monkeypatch.delenv("OBMM_DEVICE", raising=False)

        def running() -> bool:
            remove_stale()
            return fabric_directory(NAMED).path.exists()

        def end() -> None:
            if running():  # it may be ending already, then no answer comes
                CliRunner().invoke(main, ["emulate", "down", "--fabric", NAMED])
            until(lambda: not running())

        def begin() -> None:
            end()
            assert CliRunner().invoke(main, ["emulate", "up", "--name", NAMED]).exit_code == 0

        tried = play(["emulate", "up", "--name", NAMED], monkeypatch, running, 3, end)
        begin()
        try:
            tried += play(["emulate", "down", "--fabric", NAMED], monkeypatch, running, 3, begin)
        finally:
            end()
    print(f"emulate up and down: {tried} failures tried")
