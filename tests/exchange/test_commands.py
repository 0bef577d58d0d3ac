# SPDX-License-Identifier: Apache-2.0
"""Commands that end and continue well: signals at every step, refusals as one sentence, printed commands that run."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import obmm
from obmm import emulator
from obmm.cli import serving
from obmm.cli.command import sentence
from obmm.cli.main import main
from obmm.cli.serve_status import show_status
from obmm.cli.text import shown
from obmm.exchange import Key, Server
from obmm.exchange.door import _has_ipv6
from tests.exchange.conftest import left_behind, until
from tests.exchange.test_kill import victim

Start = Callable[..., Server]
TABLE = np.arange(4096, dtype="<f4").reshape(64, 64)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "obmm.cli.main", *map(str, arguments)]


def run(*arguments: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | (env or {}),
        **options,
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "table.npy", TABLE)
    return tmp_path / "table.npy"


@contextlib.contextmanager
def served(fabric: emulator.Fabric, tmp_path: Path, *options: object, table: Path) -> Iterator[Any]:
    """`obmm serve` on node a, its first line read; whatever happens it is gone afterwards."""
    arguments = command(
        "serve", table, "--port", 0, "--device", fabric.device("a"), "--journal", tmp_path / "j", *options
    )
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    before = left_behind(fabric)
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                assert process.stderr
                raise AssertionError(process.stderr.read())
            yield process, line
        finally:
            for _ in range(2):
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
    until(lambda: left_behind(fabric) == before)


# --- C1: signals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_after_the_line_ends_the_server_in_order(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path, number: signal.Signals
) -> None:
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--key", key, "--json", table=table) as (process, _):
        process.send_signal(number)
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert not (tmp_path / "j").exists(), "nothing is out"


@pytest.mark.parametrize("mode", ["--plain", "--key"])
def test_sighup_ends_nothing_in_any_mode(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path, mode: str
) -> None:
    how = (mode, key) if mode == "--key" else (mode,)
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--json", *how, table=table) as (process, line):
        process.send_signal(signal.SIGHUP)
        assert process.stderr
        while "read again" not in process.stderr.readline():
            pass
        credentials: dict[str, Any] = {"key": key} if mode == "--key" else {"plain": True}
        obmm.connect(f"127.0.0.1:{json.loads(line)['port']}", **credentials).close()


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.3, 0.45, 0.6])
def test_sigterm_leaves_nothing_of_a_fetch(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path, delay: float
) -> None:
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--key", key, "--json", table=table) as (_, line):
        address = f"127.0.0.1:{json.loads(line)['port']}"
        out = tmp_path / "out"
        out.mkdir()
        before = left_behind(fabric)
        arguments = command(
            "fetch", address, "table", "--all", "-o", out / "x.npy", "--key", key, "--device", fabric.device("b")
        )
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(0.5 + delay)  # any moment will do: the test is for each of them
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        assert "Traceback" not in errors
        assert set(os.listdir(out)) <= {"x.npy"}, "no temporary file"
        assert left_behind(fabric) == before
        with obmm.connect(address, key=key) as peer:
            until(lambda: peer.status()["server"]["leases"] == 0)


def test_a_server_that_ends_by_itself_takes_the_command_down(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr("obmm.exchange.waiter.STUMBLES", 2)

    def broken(longest: float) -> list[Any]:
        raise OSError(errno.EBADF, "Bad file descriptor")

    def announce() -> None:
        monkeypatch.setattr(server._service._selector, "select", broken)
        server._service.mailbox.post(lambda: None)

    try:
        with pytest.raises(click.ClickException, match="ended by itself"):
            serving.until_interrupted(server, {}, 1.0, announce)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_the_service_manager_is_told_of_ready_alive_and_ending(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        with served(fabric, tmp_path, "--host", "127.0.0.1", "--key", key, "--json", table=table) as (process, _):
            assert manager.recv(100) == b"READY=1"
            assert manager.recv(100) == b"WATCHDOG=1"
            assert manager.recv(100) == b"WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while (state := manager.recv(100)) == b"WATCHDOG=1":
                pass
            assert state == b"STOPPING=1"


# --- C2: one sentence --------------------------------------------------------------------------------------------------


def test_errors_of_the_system_say_what_why_and_what_to_do() -> None:
    assert sentence(OSError(errno.ENOSPC, "No space left on device", "/x")) == (
        "/x: No space left on device; the disk is full: make room, or write elsewhere"
    )
    assert sentence(OSError("odd")) == "odd"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("fetch", "no such host", "x", "--plain"), "Name or service not known|no address|Temporary failure|not known"),
        (("fetch", "127.0.0.1:1", "x", "--plain"), "Connection refused"),
        (("fetch", "127.0.0.1:1", "x", "--plain", "-o", "/gone/x.npy"), "there is no folder /gone"),
        (("fetch", "a" * 300, "x", "--plain"), "a{20}"),
        (("serve", "/gone.npy", "--plain"), "No such file"),
        (("open-broker", "--policy", "/gone.toml"), "/gone.toml: No such file or directory; check the path"),
        (("lease", "ls", "--port", "1"), "no server of this user answers"),
        (("gc", "--device", "emulator:/gone"), "gone"),
        (("ls", "--device", "emulator:/gone"), "gone"),
    ],
)
def test_mistakes_are_one_sentence_and_status_1(arguments: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    answer = run(*arguments, env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert answer.returncode == 1, answer
    assert "Traceback" not in answer.stderr
    import re

    assert re.search(problem, answer.stderr), answer.stderr
    assert len(answer.stderr.strip().splitlines()) <= 3


def test_a_closed_stdout_a_full_disk_and_no_home_are_no_tracebacks(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        answer = subprocess.run(command("explain"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    reader, writer = os.pipe()
    os.close(reader)
    answer = subprocess.run(command("explain"), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert answer.returncode == 1
    assert answer.stderr == ""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOME", "XDG_"))}
    ask = "import os, obmm.cli.fetch, pwd; from obmm.cli.main import main; os.setuid(54321); main(['fetch', '127.0.0.1:1', 'x'])"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", ask], capture_output=True, text=True, check=False, env=environment
    )
    if os.geteuid() == 0:
        assert answer.returncode != 0
        assert "Traceback" not in answer.stderr, answer.stderr


# --- C3: checks before work --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("default_port")
@pytest.mark.timeout(240)
def test_what_is_unfit_is_found_before_anything_is_exported(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path, start: Start
) -> None:
    taken = start()
    before = left_behind(fabric)
    for options, problem in (
        (("--key", key, "--name", "not a name"), "not a name for a region"),
        (("--key", tmp_path / "gone.key"), "cannot be read"),
        (("--key", key, "--host", "127.0.0.1", "--port", taken.port), "Address already in use"),
        (("--key", key, "--host", "192.0.2.1"), "address of this machine"),
        (("--key", key, "--journal", tmp_path / "gone" / "j"), "cannot be used"),
        (("--key", key, "--access", tmp_path / "gone.toml"), "cannot be read"),
        (("--key", key, "--port", 0, "--term", 0), "lease term"),
    ):
        answer = run("serve", table, "--device", fabric.device("a"), "--journal", tmp_path / "j", *options)
        assert answer.returncode == 1 or "Usage" in answer.stderr, answer
        assert problem in answer.stderr, answer.stderr
        assert "Traceback" not in answer.stderr
    assert left_behind(fabric) == before


# --- C4: printed commands run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["--plain", "--key"])
def test_the_printed_fetch_runs_in_the_mode_it_was_printed_in(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path, mode: str
) -> None:
    how = (mode, key) if mode == "--key" else (mode,)
    with served(fabric, tmp_path, "--host", "127.0.0.1", *how, table=table) as (process, line):
        assert process.stdout
        while "elsewhere: " not in line:
            line = process.stdout.readline()
        words = shlex.split(line.partition("elsewhere: ")[2])
        place = words.index("obmm")
        environment = dict(each.split("=", 1) for each in words[:place])
        answer = run(*words[place + 1 :], env=environment)
        assert answer.returncode == 0, answer.stderr
        assert "fetch ok" in answer.stdout


def spaced_key(folder: Path, key: Path) -> tuple[object, ...]:
    (folder / "my keys").mkdir()
    shutil.copy(key, folder / "my keys" / "the key's")
    return "--host", "127.0.0.1", "--key", folder / "my keys" / "the key's"


def named_keys(folder: Path, key: Path) -> tuple[object, ...]:
    Key.generate(folder / "another.key")
    rules = folder / "rules.toml"
    rules.write_text(
        '[[key]]\nname = "a"\nfile = "another.key"\n[[allow]]\nkeys = ["a"]\nregions = ["others"]\n'
        f'[[key]]\nname = "b"\nfile = "{key}"\n[[allow]]\nkeys = ["b"]\nregions = ["table"]\n'
    )
    rules.chmod(0o600)
    return "--host", "127.0.0.1", "--access", rules


def on_ipv6(folder: Path, key: Path) -> tuple[object, ...]:
    if not _has_ipv6():
        pytest.skip("no IPv6 here")
    return "--host", "::1", "--key", key


def without_rows(folder: Path, key: Path) -> tuple[object, ...]:
    np.save(folder / "table.npy", np.zeros((0, 4), "<f4"))
    return "--host", "127.0.0.1", "--key", key


@pytest.mark.parametrize("options", [spaced_key, named_keys, on_ipv6, without_rows])
def test_the_printed_fetch_runs_in_a_shell(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path, options: Callable[[Path, Path], tuple[object, ...]]
) -> None:
    """Copied as it stands, whatever names and arrays there are."""
    with served(fabric, tmp_path, *options(tmp_path, key), table=table) as (process, line):
        assert process.stdout
        while "elsewhere: " not in line:
            line = process.stdout.readline()
        before, _, after = line.partition("elsewhere: ")[2].partition("obmm ")
        command = f"{before}{shlex.quote(sys.executable)} -m obmm.cli.main {after}"
        answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert "fetch ok" in answer.stdout, answer


def test_the_operator_ends_the_leases_of_the_dead_with_the_command(
    fabric: emulator.Fabric, tmp_path: Path, table: Path, key: Path
) -> None:
    with served(fabric, tmp_path, "--host", "127.0.0.1", "--key", key, "--json", table=table) as (_, line):
        port = json.loads(line)["port"]
        environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
        with obmm.connect(f"127.0.0.1:{port}", key=key, name="[/dead]") as peer:
            lease = peer.fetch("table")
            shows = run("lease", "ls", "--port", port, env=environment | {"COLUMNS": "200"})
            assert "[/dead]@127.0.0.1" in shows.stdout
            would = run("lease", "end", "--holder", "[/dead]", "--port", port, env=environment)
            assert "1 lease(s) would be ended; add --yes" in would.stdout
            done = run("lease", "end", "--holder", "[/dead]", "--port", port, "--yes", env=environment)
            assert "1 lease(s) ended" in done.stdout
            until(lambda: not lease.usable)


# --- E5: what gc removes it releases ---------------------------------------------------------------------------------


def test_gc_knows_where_a_process_imported_that_was_killed_within_import(
    fabric: emulator.Fabric, a: obmm.Device, start: Start, key: Path
) -> None:
    """The driver had answered and the process had not noted it yet: no other device's gc may release that lease."""
    with a.export_region("2MiB", label="table") as table:
        server = start({"table": table})
        with victim("half", fabric.device("b"), server.port, key) as client:
            assert client.go() == "fetched"
            client.begin()
            client.process.wait(30)
        assert left_behind(fabric)["b.regions"]
        other = run("gc", "--yes", "--device", fabric.device("a"))
        assert "lease" not in other.stdout
        assert server.status()["server"]["leases"] == 1, "the import is there"
        done = run("gc", "--yes", "--device", fabric.device("b"))
        assert f"of table at 127.0.0.1:{server.port}: released" in done.stdout, done
        assert server.status()["server"]["leases"] == 0
        server.close(timeout=5)


def test_gc_releases_what_it_removes(
    fabric: emulator.Fabric, a: obmm.Device, start: Start, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    with a.export_region("2MiB", label="table") as table:
        with table.map("rw") as mapping:
            with mapping.writing():
                mapping.store("<u4", 0, 7)
            mapping.publish()
        server = start({"table": table})
        with victim("client", fabric.device("b"), server.port, key) as client:
            for name in ("opened", "connected", "fetched", "imported"):
                assert client.go() == name
            alive = run("gc", "--yes", "--device", fabric.device("b"))
            assert "0 of 1 regions removed" in alive.stdout
            assert server.status()["server"]["leases"] == 1, "its holder lives"
            client.kill()
        other = run("gc", "--yes", "--device", fabric.device("a"))
        assert "lease" not in other.stdout, "the import is on another device"
        plan = run("gc", "--device", fabric.device("b"))
        assert "would be released" in plan.stdout, plan
        assert server.status()["server"]["leases"] == 1
        done = run("gc", "--yes", "--device", fabric.device("b"))
        assert done.returncode == 0, done
        assert f"of table at 127.0.0.1:{server.port}: released" in done.stdout
        assert server.status()["server"]["leases"] == 0
        assert list((tmp_path / "state" / "obmm" / "held").iterdir()) == []
        server.close(timeout=0.1)


def test_a_process_that_ends_well_leaves_no_notes(
    start: Start, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    server = start()
    code = (
        f"import obmm\nwith obmm.connect('127.0.0.1:{server.port}', key={str(key)!r}) as peer:\n"
        "    peer.fetch('table').release()\n    peer.fetch('table')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert list((tmp_path / "obmm" / "held").iterdir()) == []


# --- E8: texts of others -----------------------------------------------------------------------------------------------


def test_texts_of_others_are_shown_as_text() -> None:
    assert shown("a\x1b[31mb\x00\n") == "a\\x1b[31mb\\x00\\n"
    assert shown("\u202eabc\ud800") == "\\u202eabc\\ud800"
    assert len(shown("x" * 10_000)) == 256


def test_a_status_with_anything_in_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "[/x][red]\x1b]0;title\x07"
    items = [
        {"kind": "region", "region": evil, "bytes": "many", "state": evil, "leases": {evil: evil}},
        {"kind": "lease", "lease": evil, "client": evil, "address": evil, "identity": evil, "state": None},
        {},
    ]
    show_status(evil, {"server": {"mode": evil, "refused": {evil: evil}, "uptime_s": "x"}, "items": items})
    show_status("x", {"server": {}, "items": []})
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[/x][red]" in out.replace("\n", "")


def test_ls_and_gc_show_labels_and_impossible_pids_of_others(
    fabric: emulator.Fabric, b: obmm.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from obmm.region.stamp import OwnerStamp

    real = OwnerStamp.find
    evil = [(1 << 31, "[red]x"), (0xFFFFFFFF, "[/x]\x1b[2J"), (0, "")]
    for pid, label in evil:

        def find(priv: bytes, pid: int = pid, label: str = label) -> Any:
            stamp = real(priv)
            return stamp and replace(stamp, pid=pid, label=label)

        monkeypatch.setattr(OwnerStamp, "find", staticmethod(find))
        with b.export_region("2MiB", label="plain"):
            for arguments in (("ls",), ("ls", "--json"), ("gc",)):
                answer = CliRunner().invoke(main, [*arguments, "--device", fabric.device("b")])
                assert answer.exit_code == 0, answer.output
                assert "\x1b[2J" not in answer.output
                assert "unknown" in answer.output or "cannot be seen" in answer.output


# --- E11: what a process with a key shows ------------------------------------------------------------------------------


def test_a_command_with_a_key_cannot_be_dumped(key: Path) -> None:
    code = (
        "import ctypes, resource\nfrom obmm.cli.exchange_options import protection\n"
        f"protection(({str(key)!r},), None, False)\n"
        "print(ctypes.CDLL(None).prctl(3), resource.getrlimit(resource.RLIMIT_CORE)[0])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["0", "0"]
