# SPDX-License-Identifier: Apache-2.0
"""Readers that end without a word of theirs, and servers that are ended while leases are out."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import obmm
from obmm import emulator
from tests.exchange.conftest import left_behind
from tests.exchange.test_commands import TABLE, run, served


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "table.npy", TABLE)
    return tmp_path / "table.npy"


SCRIPTS = {
    "an open table": "table = peer.open('table', device)\nprint(table[3].sum())",
    "a view of it": "region = peer.import_region('table', device)\nview = region.map('r').view()\nprint(view[0])",
    "a dropped region": "peer.import_region('table', device)",
    "a lease only": "lease = peer.fetch('table')",
    "an exception": "table = peer.open('table', device)\nraise SystemExit(3)",
    "its own device": "table = peer.open('table')\nprint(table[3].sum())",
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_a_script_that_ends_without_closing_gives_its_leases_back(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path, what: str
) -> None:
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--key", key, "--json", table=table) as (_, line):
        address = f"127.0.0.1:{json.loads(line)['port']}"
        script = (
            f"import obmm\npeer = obmm.connect({address!r}, key={str(key)!r})\n"
            f"device = obmm.open({fabric.device('b')!r})\n{SCRIPTS[what]}\n"
        )
        environment = os.environ | {"OBMM_DEVICE": fabric.device("b")}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False, env=environment
        )
        assert done.returncode == (3 if what == "an exception" else 0), done.stderr
        assert "Traceback" not in done.stderr
        assert not {name for name in left_behind(fabric) if name.startswith("b.")}
        with obmm.connect(address, key=key) as peer:
            assert peer.status()["server"]["leases"] == 0


def test_a_program_that_ends_does_not_wait_for_a_server_that_is_gone(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path
) -> None:
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--key", key, "--json", table=table) as (process, line):
        script = (
            f"import obmm, os, signal\npeer = obmm.connect('127.0.0.1:{json.loads(line)['port']}', key={str(key)!r})\n"
            f"device = obmm.open({fabric.device('b')!r})\n"
            "tables = [peer.open('table', device) for _ in range(20)]\n"
            f"os.kill({process.pid}, signal.SIGSTOP)\n"
        )
        try:
            began = time.monotonic()
            subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
            assert time.monotonic() - began < 20, "twenty leases are not waited for one by one"
        finally:
            process.send_signal(signal.SIGCONT)
        gone = run("gc", "--yes", "--device", fabric.device("b"))
        assert gone.returncode == 0, gone
        with obmm.connect(f"127.0.0.1:{json.loads(line)['port']}", key=key) as peer:
            assert peer.status()["server"]["leases"] == 0, "what had no time is what gc gives back"


def test_a_server_told_to_end_names_the_dead_once_and_the_commands_that_it_prints_end_it(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path
) -> None:
    options = ("--host", "127.0.0.1", "--key", key, "--json", "--grace", "0.2", "--term", "0.5")
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with served(fabric, tmp_path, *options, table=table) as (process, line):
        port = json.loads(line)["port"]
        script = (
            f"import obmm, os\npeer = obmm.connect('127.0.0.1:{port}', key={str(key)!r}, name='reader')\n"
            "lease = peer.fetch('table')\nos._exit(0)\n"
        )
        subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
        process.send_signal(signal.SIGTERM)
        lines: list[str] = []
        assert process.stderr
        while "obmm lease end" not in (lines[-1] if lines else ""):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        assert process.poll() is None, "a region is not taken from under a reader who may live"
        time.sleep(1.5)  # long enough for what was repeated before: a line each 0.6 s
        words = shlex.split(lines[-1])
        assert words[0] == "obmm"
        ended = run(*words[1:], env=environment)
        assert "1 lease(s) ended" in ended.stdout, ended
        said = "".join(lines) + process.stderr.read()  # to its end: also what the pipe's buffer holds
        assert process.wait(30) == 0
        assert said.count("was not released by reader@127.0.0.1") == 1, said
        assert said.count("revoking") == 1, said
        assert "force=True" not in said
        assert "obmm gc --yes" in said


def test_a_second_signal_gives_the_dead_up(fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path) -> None:
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--key", key, "--json", table=table) as (process, line):
        with contextlib.closing(obmm.connect(f"127.0.0.1:{json.loads(line)['port']}", key=key)) as peer:
            peer.fetch("table")
            process.send_signal(signal.SIGTERM)
            assert process.stderr
            while "asking for them" not in process.stderr.readline():
                pass
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
            assert process.returncode == 0
            peer.close(timeout=0, force=True)


@pytest.mark.parametrize("way", ["fetch", "open", "command"])
def test_a_name_that_does_not_exist_is_answered_with_those_that_do(
    fabric: emulator.Fabric, b: obmm.Device, tmp_path: Path, table: Path, key: Path, way: str
) -> None:
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--key", key, "--json", table=table) as (_, line):
        address = f"127.0.0.1:{json.loads(line)['port']}"
        if way == "command":
            said = run("fetch", address, "tabel", "--key", key, "--device", fabric.device("b"))
            assert said.returncode == 1
            assert "it publishes table" in said.stderr
            return
        with obmm.connect(address, key=key) as peer:
            with pytest.raises(obmm.ObmmError, match="no region 'tabel' is published here; it publishes table"):
                peer.fetch("tabel") if way == "fetch" else peer.open("tabel", b)
