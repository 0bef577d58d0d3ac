# SPDX-License-Identifier: Apache-2.0
"""Every command in a pipe: no escape sequence, no drawn line, nothing cut; and NO_COLOR is honoured by each.

A command that is not in the table fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import obmm
from obmm import emulator
from obmm.cli.main import main

pytestmark = pytest.mark.timeout(240)

ESCAPE = re.compile(r"\x1b")
COLOUR = re.compile(r"\x1b\[[\d;]*\b(?:[34][0-8]|9[0-7]|10[0-7])\b")
DRAWN = re.compile("[\u2500-\u259f]")
LONG = "a-tensor-with-a-name-of-almost-eighty-characters-as-checkpoints-have-them.weight"
STAYING = {  # go on until they are interrupted: run once, beside what asks them
    "serve": "serve {folder}/" + LONG + ".npy --plain --port 0 --device {a}",
    "blocks serve": "blocks serve --size 4MiB --block-bytes 64KiB --plain --port 0 --device {a}",
    "engram publish": "engram publish {folder}/toy --name toy --plain --port 0 --device {a}",
}
LINES = {
    "demo": "demo",
    "smoke": "smoke 4MiB --device {a}",
    "explain": "explain EXPORT",
    "fetch": "fetch {serve} --rows 0:3 --plain --device {b}",
    "ls": "ls --device {a}",
    "gc": "gc --device {a}",
    "doctor": "doctor --device {a}",
    "help": "help emulate",
    "lease ls": "lease ls --port {port}",
    "lease end": "lease end --holder nobody --port {port}",
    "blocks status": "blocks status {blocks serve}/kv --plain",
    "blocks evict": "blocks evict {blocks serve}/kv --count 1 --plain",
    "blocks prove": "blocks prove {blocks serve}/kv --plain --device {b}",
    "engram inspect": "engram inspect {engram publish}/toy --plain --device {b}",
    "engram verify": "engram verify {engram publish}/toy {folder}/toy --plain --device {b}",
    "emulate status": "emulate status --fabric {socket}",
    "emulate inject": "emulate inject --fabric {socket}",
    "emulate trace": "emulate trace --fabric {socket} --last 50",
    "emulate tree": "emulate tree --fabric {socket} --node a",
    "emulate run": "emulate run --help",  # becomes the program that it runs
    "emulate up": "emulate up --nodes 1",
    "emulate down": "emulate down",
    "emulate program-window": "emulate program-window --fabric {socket} --node b --owner a --mem-id {mem_id}",
    "open-broker": "open-broker --policy {folder}/policy.toml --check",
    "bench run": "bench run --preset smoke --arms local,obmm-cc --workloads row -o {folder}/results.json --device {b}",
    "bench report": "bench report {folder}/results.json -o {folder}/report",
    "bench compare": "bench compare {folder}/results.json {folder}/results.json",
    "bench model": "bench model --rows 24",
}
AS_READ = {"bench serve": "bench serve --help"}  # goes on; tests/bench/test_twonodes.py runs it
BEFORE = ("bench run", "emulate up")  # what others need


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from leaves(inner, (*path, name))
    else:
        yield " ".join(path)


def test_no_command_is_forgotten():
    assert set(leaves(main)) == LINES.keys() | STAYING.keys() | AS_READ.keys()


class World:
    """Two nodes with what the commands look at, and what each command printed."""

    def __init__(self, folder: Path, fabric: emulator.Fabric) -> None:
        self.names = {
            "folder": str(folder), "socket": str(fabric.socket), "a": fabric.device("a"), "b": fabric.device("b"),
        }  # fmt: skip
        self.environment = {
            "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "40",
            "TERM": "xterm-256color", "MPLCONFIGDIR": str(folder),
        }  # fmt: skip
        self.said: dict[str, str] = {}

    def words(self, line: str) -> list[str]:
        return re.sub(r"\{([^}]+)\}", lambda found: self.names[found[1]], line).split()

    def run(self, name: str, **environment: str) -> str:
        line = LINES.get(name) or AS_READ[name]
        kept = {"OBMM_DEVICE": None, "NO_COLOR": None, "FORCE_COLOR": None, "CLICOLOR_FORCE": None}
        done = CliRunner().invoke(
            main,
            self.words(line),
            env={**kept, **self.environment, **environment},
            color=bool(environment),
            prog_name="obmm",
        )
        assert done.exit_code == 0, f"{line}\n{done.output}"
        return done.output

    @contextlib.contextmanager
    def staying(self, name: str) -> Iterator[None]:
        """One that goes on, in a process of its own: where it listens is noted, and all that it says."""
        command = [sys.executable, "-P", "-m", "obmm.cli.main", *self.words(STAYING[name])]
        kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=kept | self.environment
        ) as process:
            assert process.stdout is not None
            lines: list[str] = []
            while not (lines and "elsewhere: " in lines[-1]):
                lines.append(process.stdout.readline())
                assert lines[-1], "".join(lines)
            (port,) = set(re.findall(r"127\.0\.0\.1:(\d+)", "".join(lines)))
            self.names[name] = f"127.0.0.1:{port}"
            try:
                yield
            finally:
                process.send_signal(signal.SIGINT)
                self.said[name] = "".join(lines) + process.stdout.read()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    (folder / "run").mkdir(mode=0o700)
    np.save(folder / f"{LONG}.npy", np.ones((8, 4), "<f4"))
    (folder / "policy.toml").write_text('[[allow]]\nusers = ["root"]\nregions = "any"\n')
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engram"))
    try:
        from toy_checkpoints import deepseek
    finally:
        sys.path.pop(0)
    deepseek(folder / "toy")
    with emulator.start(nodes=2) as fabric, contextlib.ExitStack() as life:
        world = World(folder, fabric)
        device = life.enter_context(obmm.open(fabric.device("a")))
        region = life.enter_context(device.export_region("2MiB", label="a-label-of-almost-forty-eight-characters-long"))
        world.names["mem_id"] = str(region.mem_id)
        with contextlib.ExitStack() as serving:
            for name in STAYING:
                serving.enter_context(world.staying(name))
            world.names["port"] = world.names["serve"].rpartition(":")[2]
            with obmm.connect(world.names["serve"], plain=True, name="a-reader-with-a-long-name") as peer:
                with contextlib.ExitStack() as held:
                    held.callback(peer.fetch(LONG).release)
                    for name in sorted(LINES, key=lambda name: (name not in BEFORE, name == "emulate down")):
                        world.said[name] = world.run(name)
                    world.run("emulate up")
                    for name in sorted(LINES.keys() - {"demo", "bench run", "emulate up", "blocks prove"}):
                        world.said[f"{name}, NO_COLOR"] = world.run(name, NO_COLOR="1", FORCE_COLOR="1")
        yield world


@pytest.mark.parametrize("name", [*LINES, *STAYING])
def test_a_pipe_gets_whole_plain_lines(name, world):
    said = world.said[name]
    assert said.strip()
    assert not ESCAPE.search(said), said
    assert not DRAWN.search(said), said
    assert "…" not in said, said


def test_long_names_are_whole_although_the_pipe_says_that_it_is_narrow(world):
    assert LONG in world.said["lease ls"]
    assert LONG in world.said["serve"]
    assert "a-reader-with-a-long-name" in world.said["lease ls"]
    assert "a-label-of-almost-forty-eight-characters-long" in world.said["ls"]


@pytest.mark.parametrize("name", sorted(LINES.keys() - {"demo", "bench run", "emulate up", "blocks prove"}))
def test_NO_COLOR_is_honoured_where_colour_is_forced(name, world):
    assert not COLOUR.search(world.said[f"{name}, NO_COLOR"])
