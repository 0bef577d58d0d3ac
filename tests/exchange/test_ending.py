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
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import obmm
from obmm import emulator
from obmm.cli.logs import line_writer
from obmm.driver.descriptor import Descriptor
from tests.exchange.conftest import left_behind, until
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


@pytest.mark.parametrize("command", ["blocks serve", "engram publish", "bench serve"])
def test_the_operator_reaches_every_command_that_serves(
    fabric: emulator.Fabric, tmp_path: Path, key: Path, command: str
) -> None:
    """Its advice for the leases of the dead is `obmm lease end`."""
    from tests.engram.toy_checkpoints import deepseek

    deepseek(tmp_path / "checkpoint")
    what = {
        "blocks serve": ("--size", "1MiB", "--block-bytes", "16KiB"),
        "engram publish": (tmp_path / "checkpoint", "--name", "toy"),
        "bench serve": ("--footprint", "1MiB"),
    }[command]
    before = left_behind(fabric)
    with tempfile.TemporaryDirectory(prefix="obmm") as runtime:  # the path of a socket has 107 bytes
        environment = os.environ | {"XDG_RUNTIME_DIR": runtime}
        line = (
            *command.split(),
            *what,
            "--port",
            "0",
            "--host",
            "127.0.0.1",
            "--key",
            key,
            "--json",
            "--device",
            fabric.device("a"),
        )
        with subprocess.Popen(
            [sys.executable, "-m", "obmm.cli.main", *map(str, line)], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout
                port = json.loads(process.stdout.readline())["port"]
                shows = run("lease", "ls", "--port", port, "--json", env={"XDG_RUNTIME_DIR": runtime})
                assert json.loads(shows.stdout)["server"]["leases"] == 0, shows
                process.send_signal(signal.SIGHUP)
                ended = run(
                    "lease", "end", "--holder", "nobody", "--port", port, "--yes", env={"XDG_RUNTIME_DIR": runtime}
                )
                assert "0 lease(s) ended" in ended.stdout, ended
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
    until(lambda: left_behind(fabric) == before)


def test_a_taken_port_is_found_before_tables_of_the_benchmark_are_filled(
    fabric: emulator.Fabric, start: Callable[..., obmm.Server], key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from obmm.bench import twonodes

    monkeypatch.setattr(twonodes, "_filled", lambda *_: pytest.fail("work before checks"))
    taken = start()
    with contextlib.ExitStack() as stack, pytest.raises(obmm.ObmmArgumentError, match="Address already in use"):
        twonodes.serving(stack, 1 << 20, "127.0.0.1", taken.port, fabric.device("a"), {"key": [key]}, lambda *_: None)


def nobody_reads(process: subprocess.Popen[str]) -> None:
    """Fill the pipe that is its stderr to the last byte."""
    with contextlib.closing(Descriptor.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)) as pipe:
        for piece in (b"x" * 4096, b"x"):
            with contextlib.suppress(BlockingIOError):
                while os.write(pipe.fileno(), piece):
                    pass


def test_a_server_whose_log_nobody_reads_ends_when_it_is_told_to(
    fabric: emulator.Fabric, tmp_path: Path, table: Path
) -> None:
    how = ("--host", "127.0.0.1", "--plain", "--json", "--grace", "0.2")
    with served(fabric, tmp_path, *how, table=table) as (process, line):
        with contextlib.closing(obmm.connect(f"127.0.0.1:{json.loads(line)['port']}", plain=True)) as peer:
            lease = peer.fetch("table")
            nobody_reads(process)
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGTERM)
            until(lambda: not lease.usable)
            lease.release()
            assert process.wait(30) == 0


def test_a_broker_whose_log_nobody_reads_goes_on_and_ends(fabric: emulator.Fabric, tmp_path: Path) -> None:
    policy = tmp_path / "broker.toml"
    policy.write_text(f"[[allow]]\nusers = [{os.geteuid()}]\ncontrol = true\n")
    policy.chmod(0o600)
    with tempfile.TemporaryDirectory(prefix="obmm") as folder:
        line = ("open-broker", "--policy", policy, "--socket", f"{folder}/b", "--audit", tmp_path / "audit")
        command = [sys.executable, "-m", "obmm.cli.main", *map(str, line), "--device", fabric.device("a")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr
                assert "open-broker on" in process.stderr.readline()
                nobody_reads(process)
                for _ in range(3):
                    process.send_signal(signal.SIGHUP)
                    obmm.open(f"broker:{folder}/b").close()
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
            finally:
                process.kill()


def test_a_pipe_as_audit_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "audit")
    with pytest.raises(OSError, match="No such device or address"):
        line_writer(tmp_path / "audit")
    with contextlib.closing(Descriptor.open(tmp_path / "audit", os.O_RDONLY | os.O_NONBLOCK)):
        write = line_writer(tmp_path / "audit")
        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                write("x" * 1000)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_command_may_begin_with_a_closed_descriptor(number: int) -> None:
    line = f"exec {sys.executable} -m obmm.cli.main explain EXPORT EINVAL {number}>&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e300"])
def test_a_grace_that_no_clock_counts_is_refused_before_any_work(tmp_path: Path, table: Path, seconds: str) -> None:
    done = run("serve", table, "--plain", "--port", "0", "--journal", tmp_path / "j", "--grace", seconds)
    assert done.returncode == 2
    assert "--grace" in done.stderr
