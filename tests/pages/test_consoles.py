# SPDX-License-Identifier: Apache-2.0
"""Every console block that serves or fetches runs, line by line, on two emulated nodes; test_reading.py reads the others.

A line runs as it is printed but for what `SWAPS` says.
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

import numpy as np
import pytest

from obmm.exchange import ArrayManifest, Key
from obmm.files import array_writer
from tests.pages.blocks_of_code import NEEDS, ROOT, blocks

pytestmark = pytest.mark.timeout(240)

SWAPS = {
    "node-a": "127.0.0.1",  # two emulated nodes are one host
    "4GiB": "4MiB",
    "2MiB": "64KiB",
    "/models/flash": "toy",  # a checkpoint that takes no minutes
    "/tmp/toy": "toy",
    "--numa 0,1": "--numa 0",
}
STAYS = re.compile(r"obmm (serve|engram publish|blocks serve) ")
SERVES = re.compile(r"obmm (serve|fetch|engram publish|blocks serve) ")
READS = re.compile(r"obmm (fetch|engram|blocks) ")
RUN_ELSEWHERE = {"docs/tutorial.md": "tests/examples/test_tutorial.py"}
LEFT_OUT = {  # a line of a block that runs -> why it does not
    "make setup": "this environment is made",
    ". .venv/bin/activate": "it is on the path",
    "python tests/engines/try_engine.py toy /tmp/toy": "minutes; `toy` is a smaller one",
    "obmm emulate up": "they run",
    "obmm blocks prove": "tests/blocks/test_commands.py",
}
OVERVIEWS = {"obmm demo                      the main job on two emulated nodes"}
"""First lines of blocks that list commands beside what they are for."""
ORDER = {"docs/engram-tables.md": (0, 3, 1, 2)}
"""Where a block reads what an earlier one serves, and another one stands between."""


def scripts() -> dict[str, str]:
    """Page -> its lines from the first block on that serves or fetches."""
    found: dict[str, list[str]] = {}
    for page, text in blocks({"", "sh", "console", "bash"}):
        if page in RUN_ELSEWHERE or NEEDS.match(text) or text.splitlines()[0] in OVERVIEWS:
            continue
        if SERVES.search(text) or (page in found and READS.search(text)):
            found.setdefault(page, []).append(text)
    return {page: "".join(texts[at] for at in ORDER.get(page, range(len(texts)))) for page, texts in found.items()}


class Shell:
    """Runs lines in an empty folder; what serves goes on until the next one serves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.serving = folder, contextlib.ExitStack()
        (folder / "run").mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OBMM_")}
        self.environment = {
            **kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state"),
        }  # fmt: skip
        self.seed = "SEED"

    def run(self, line: str) -> str:
        for printed, here in SWAPS.items():
            line = line.replace(printed, here)
        line = line.replace("--seed SEED", f"--seed {self.seed}")
        node = "a" if STAYS.search(line) else "b"
        environment = self.environment | {"OBMM_DEVICE": f"emulator#{node}"}
        if STAYS.search(line):
            self.serving.close()
            self.serving.enter_context(self._stays(line, environment))
            return ""
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if found := re.search(r"--seed (\w+)", done.stdout):
            self.seed = found[1]
        return done.stdout

    @contextlib.contextmanager
    def _stays(self, line: str, environment: dict[str, str]) -> Iterator[None]:
        command = line.replace("obmm ", "exec obmm ")
        log = self.folder / "log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            ) as process,
        ):  # fmt: skip
            try:
                assert process.stdout is not None
                assert process.stdout.readline(), f"{line}\n{log.read_text()}"  # it says what it serves once it does
                yield
                process.send_signal(signal.SIGINT)
                process.stdout.read()
                assert process.wait(30) == 0, f"{line}\n{log.read_text()}"
            finally:
                process.kill()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.run("obmm emulate up")
    with shell.serving:
        yield shell
    shell.run("obmm emulate down")


def furnish(folder: Path) -> None:
    """The files that pages name."""
    table = np.random.default_rng(3).random((64, 8), np.float32)
    for name in ("table.npy", "TABLE.npy"):
        np.save(folder / name, table)
    (folder / "checkpoint").mkdir()
    for path in ("model.safetensors", "checkpoint/model.safetensors"):
        with array_writer(folder / path, ArrayManifest(table.dtype, table.shape), "model.embed_tokens.weight") as file:
            file.write(table.reshape(-1).view(np.uint8).data)
    sys.path.insert(0, str(ROOT / "tests" / "engram"))
    try:
        from toy_checkpoints import deepseek
    finally:
        sys.path.pop(0)
    deepseek(folder / "toy")
    Key.generate(folder / "cluster.key")
    (folder / ".config" / "obmm").mkdir(parents=True)
    os.link(folder / "cluster.key", folder / ".config" / "obmm" / "cluster.key")


@pytest.mark.usefixtures("default_port")
@pytest.mark.parametrize("page", scripts())
def test_lines_that_serve_and_fetch_run(page, shell):
    furnish(shell.folder)
    ran = []
    for line in scripts()[page].splitlines():
        line = line.removeprefix("$ ").partition(" #")[0].strip()
        if line and line not in LEFT_OUT:
            shell.run(line)
            ran.append(line)
    assert ran


def test_no_line_serves_behind_those_that_read():
    """Pasted as printed, the next line would run before there is something to read."""
    lines = [(page, line) for page, text in blocks({"", "sh", "console", "bash"}) for line in text.splitlines()]
    assert [each for each in lines if SERVES.search(each[1])]
    assert not [each for each in lines if re.search(r"&\s*(#.*)?$", each[1])]


def test_the_pages_with_such_lines_are_found():
    assert scripts().keys() >= {
        "docs/exchange.md", "docs/files.md", "docs/commands.md", "docs/blocks.md", "docs/engram-tables.md",
    }  # fmt: skip
    assert all((ROOT / test).is_file() for test in RUN_ELSEWHERE.values())
