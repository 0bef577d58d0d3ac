# SPDX-License-Identifier: Apache-2.0
"""A run that ends before its end leaves nothing behind, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest


def _descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(each) for each in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found


def _says(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def _until(what, text):
    end = time.monotonic() + 15
    while not what():
        assert time.monotonic() < end, text
        time.sleep(0.02)


def _interrupt(process):
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does


ENDS = {
    "Ctrl-C": _interrupt,
    "SIGTERM": subprocess.Popen.terminate,
    "SIGKILL": subprocess.Popen.kill,
}
ARMS = {
    "own_far": ["--arms", "obmm-cc"],
    "row_server": ["--arms", "tcp"],
    "standin_daemon": ["--stand-in", "--arms", "sdk-nc"],
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize(("helper", "options"), ARMS.items(), ids=ARMS)
def test_an_ended_run_leaves_no_process_and_no_file(helper, options, end):
    with tempfile.TemporaryDirectory(prefix="b") as folder:
        environment = {**os.environ, "TMPDIR": folder, "XDG_RUNTIME_DIR": folder}
        environment.pop("OBMM_DEVICE", None)
        command = [sys.executable, "-m", "obmm.bench", "run", "--preset", "smoke", "--repeat", "100", *options]
        with subprocess.Popen(
            [*command, "-o", f"{folder}/x.json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        ) as process:
            _until(lambda: any(helper in _says(each) for each in _descendants(process.pid)), "it never began")
            started = _descendants(process.pid)
            end(process)
            _, said = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "Traceback" not in said, said
        _until(lambda: not any(map(_alive, started)), "processes stay")
        _until(lambda: not _left(folder), f"{_left(folder)} stay")


def _left(folder):
    """What lies there but folders and the lock of the folder of fabrics, which are for the next one."""
    return [str(each) for each in Path(folder).rglob("*") if not each.is_dir() and each.name != ".lock"]
