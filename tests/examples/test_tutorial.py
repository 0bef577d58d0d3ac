# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md, step by step as it is printed: its files are written, its commands run, on two emulated nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
STAYS = "# stays"

pytest.importorskip("torch", reason="the tutorial is for torch: pip install torch")
pytest.importorskip("safetensors", reason="pip install 'obmm[files]'")


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"```(python|sh|text)\n(.*?)```", PAGE, re.DOTALL)


def printed_as(page: str, said: str) -> bool:
    """Whether a program said what the page shows; ... stands for anything."""
    pattern = ".*".join(re.escape(part) for part in page.rstrip().split("..."))
    return re.fullmatch(pattern, said.rstrip(), re.DOTALL) is not None


@pytest.fixture
def shell(tmp_path):
    """An environment in which `obmm` and `python` are this one's, in an empty folder, with a runtime folder of its own."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    work = tmp_path / "first-hour"
    work.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OBMM_")}
    environment = {
        **kept,
        "PATH": path,
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_STATE_HOME": str(tmp_path),
        "HOME": str(work),
    }
    staying: list[subprocess.Popen[str]] = []
    yield work, environment, staying
    for process in staying:
        process.kill()
        process.wait()
    subprocess.run(["obmm", "emulate", "down"], env=environment, capture_output=True, check=False, timeout=30)


@pytest.mark.usefixtures("default_port")
@pytest.mark.timeout(240)
def test_every_step_of_the_tutorial_runs_as_printed(shell):
    work, environment, staying = shell
    ran, shown, said = [], 0, ""
    for kind, text in blocks():
        if kind == "text":
            assert printed_as(text, said), f"the page shows\n{text}and it was\n{said}"
            shown += 1
            continue
        if kind == "python":
            name = re.match(r"# file: (\S+)\n", text)
            assert name, f"a program without a name: {text[:40]}"
            (work / name[1]).write_text(text)
            continue
        for line in text.splitlines():
            if STAYS in line:
                process = subprocess.Popen(
                    ["bash", "-c", line],
                    cwd=work,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                staying.append(process)
                assert process.stdout is not None
                said = "".join(process.stdout.readline() for _ in range(3))
                assert "serving 'embed.weight'" in said
            else:
                if line.endswith("down"):  # Ctrl-C first, as the page says
                    staying[0].send_signal(signal.SIGINT)
                    assert staying[0].wait(timeout=30) == 0
                done = subprocess.run(
                    ["bash", "-c", line],
                    cwd=work,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
                said = done.stdout
            ran.append(line)
    assert len(ran) >= 6
    assert shown >= 5
