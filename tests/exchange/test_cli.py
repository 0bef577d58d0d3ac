# SPDX-License-Identifier: Apache-2.0
"""`obmm serve` and `obmm fetch`, as processes on two emulated nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import obmm
from obmm import Server, emulator
from obmm.cli.fetch import fetch
from obmm.exchange import AuthenticationError, Key
from tests.exchange.conftest import FakeRegion, left_behind, until

TABLE = (np.arange(300 * 341, dtype="<f4") * np.float32(0.001)).reshape(300, 341)


def obmm_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "obmm.cli.main", *map(str, arguments)]


def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        obmm_command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=os.environ | (env or {})
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "table.npy", TABLE)
    return tmp_path / "table.npy"


@pytest.fixture
def serving(fabric: emulator.Fabric, key: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start `obmm serve --json` on node a; what it announced, and its process."""
    before = left_behind(fabric)
    processes: list[subprocess.Popen[str]] = []

    def serving(path: Path, *options: object) -> tuple[dict[str, Any], subprocess.Popen[str]]:
        command = obmm_command(
            "serve", path, "--port", 0, "--host", "127.0.0.1", "--key", key, "--device", fabric.device("a"), "--json",
            "--journal", tmp_path / "journal", *options,
        )  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout
        line = process.stdout.readline()
        if not line:
            assert process.stderr
            raise AssertionError(process.stderr.read())
        return json.loads(line), process

    yield serving
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    until(lambda: left_behind(fabric) == before)


def test_serve_and_fetch_rows_everything_and_status(
    serving: Any, table: Path, fabric: emulator.Fabric, key: Path, tmp_path: Path
) -> None:
    facts, process = serving(table)
    address = f"127.0.0.1:{facts['port']}"
    assert facts["emulated"] is True
    assert facts["mode"] == "key"
    command = ("fetch", address, "--key", key, "--device", fabric.device("b"))

    rows = run(*command, "table", "--rows", "3,17,42,100:102", "-o", tmp_path / "rows.npy", "--json")
    assert rows.returncode == 0, rows.stderr
    assert json.loads(rows.stdout)["rows"] == 5
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), TABLE[[3, 17, 42, 100, 101]])

    everything = run(*command, "--all", "-o", tmp_path / "all.npy")
    assert everything.returncode == 0, everything.stderr
    assert "fetch ok: backend=emulator" in everything.stdout
    assert "verified=sha256" in everything.stdout
    np.testing.assert_array_equal(np.load(tmp_path / "all.npy"), TABLE)

    status = run("serve", "--status", address, "--key", key)
    assert status.returncode == 0, status.stderr
    assert "table" in status.stdout
    assert "published" in status.stdout
    document = json.loads(run("serve", "--status", address, "--key", key, "--json").stdout)
    assert document["server"]["leases"] == 0

    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    for line in ("peer connected", "lease granted", "lease released", "region table revoked"):
        assert line in log
    assert key.read_text()[:16] not in log


def test_sighup_reads_the_keys_again_and_keeps_them_when_they_are_unfit(
    serving: Any, table: Path, key: Path, tmp_path: Path
) -> None:
    facts, process = serving(table)
    assert process.stderr

    def hang_up(until: str) -> None:
        process.send_signal(signal.SIGHUP)
        while until not in process.stderr.readline():
            pass

    old = Key.load(key)
    text = key.read_text()
    key.write_text("unfit")
    hang_up("stay as they were")
    obmm.connect(f"127.0.0.1:{facts['port']}", key=old).close()
    key.write_text(text[:-5] + "0123\n")
    hang_up("rules read again")
    obmm.connect(f"127.0.0.1:{facts['port']}", key=key).close()
    with pytest.raises(AuthenticationError):
        obmm.connect(f"127.0.0.1:{facts['port']}", key=old)


def test_mistakes_of_fetch_are_named(start: Callable[..., Server], key: Path) -> None:
    server = start()
    address = f"127.0.0.1:{server.port}"
    for arguments, problem in (
        (("--rows", "x"), "neither a row number nor a range"),
        (("--rows", "-1"), "rows are counted from 0"),
        (("--rows", "5:5"), "a range ends behind its start"),
        (("--rows", "1", "--all"), "either --rows or --all"),
        (("--plain",), "exactly one is needed"),
        (("table",), "modprobe"),
    ):
        answer = CliRunner().invoke(fetch, [address, "--key", str(key), "--device", "/dev/obmm", *arguments])
        assert answer.exit_code != 0, arguments
        assert problem in answer.output, arguments
        assert "Traceback" not in answer.output
    refused = CliRunner().invoke(fetch, [address, "--plain"])
    assert "asked for PLAIN mode" in refused.output


def test_fetch_lists_what_there_is(start: Callable[..., Server], key: Path) -> None:
    server = start({"a": FakeRegion(), "b": FakeRegion()})
    command = [f"127.0.0.1:{server.port}", "--key", str(key)]
    answer = CliRunner().invoke(fetch, command)
    assert answer.exit_code == 0
    assert "name one" in answer.output
    listed = json.loads(CliRunner().invoke(fetch, [*command, "--json"]).output)
    assert [each["region"] for each in listed] == ["a", "b"]


def test_rows_that_do_not_exist(serving: Any, table: Path, fabric: emulator.Fabric, key: Path) -> None:
    facts, _ = serving(table)
    command = [f"127.0.0.1:{facts['port']}", "--key", str(key), "--device", fabric.device("b")]
    answer = CliRunner().invoke(fetch, [*command, "--rows", "300"])
    assert "row 300 does not exist: the array has rows 0..299" in answer.output
    answer = CliRunner().invoke(fetch, [*command, "--rows", "0:2"])
    assert "0.001" in answer.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name a FILE"),
        (("gone.npy", "--plain"), "No such file"),
        (("gone.npy", "--plain", "--key", "k"), "exactly one is needed"),
    ],
)
def test_mistakes_of_serve_are_named(arguments: tuple[str, ...], problem: str) -> None:
    answer = run("serve", *arguments)
    assert answer.returncode != 0
    assert problem in answer.stderr
    assert "Traceback" not in answer.stderr


def test_no_key_says_how_to_make_one(table: Path, tmp_path: Path) -> None:
    answer = run("serve", table, env={"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert answer.returncode != 0
    assert "openssl rand -hex 32" in answer.stderr


@pytest.mark.usefixtures("default_port")
@pytest.mark.timeout(240)
def test_a_table_larger_than_the_node_is_refused_with_what_to_do(
    fabric: emulator.Fabric, key: Path, tmp_path: Path
) -> None:
    path = tmp_path / "huge.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 41,)})
        try:
            file.truncate(file.tell() + (4 << 41))
        except OSError:
            pytest.skip("this file system holds no sparse file of 8 TiB")
    before = left_behind(fabric)
    answer = run("serve", path, "--key", key, "--device", fabric.device("a"), "--journal", tmp_path / "j")
    assert answer.returncode == 1
    assert "8796093022208 bytes" in answer.stderr
    assert "split the table" in answer.stderr
    until(lambda: left_behind(fabric) == before)


@pytest.mark.parametrize("array", [np.array(7), np.zeros((0, 3)), np.array([("a", 1)], [("n", "S3"), ("v", ">i2")])])
def test_any_dtype_and_shape(serving: Any, fabric: emulator.Fabric, key: Path, tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "any.npy", array)
    facts, _ = serving(tmp_path / "any.npy", "--name", "any/thing")
    command = [f"127.0.0.1:{facts['port']}", "--key", str(key), "--device", fabric.device("b"), "--all"]
    answer = CliRunner().invoke(fetch, [*command, "-o", str(tmp_path / "out.npy")])
    assert answer.exit_code == 0, answer.output
    got = np.load(tmp_path / "out.npy")
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()


def test_an_importer_that_does_not_let_go_needs_a_second_interrupt(
    serving: Any, table: Path, fabric: emulator.Fabric, key: Path
) -> None:
    facts, process = serving(table, "--grace", "0.3")
    with obmm.connect(f"127.0.0.1:{facts['port']}", key=key) as peer:
        lease = peer.fetch("table")
        process.send_signal(signal.SIGINT)
        until(lambda: not lease.usable)
        assert process.stderr
        seen = ""
        while "are not released" not in seen:
            seen += process.stderr.readline()
        assert "1 lease(s) are not released" in seen
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "given up by force" in rest
        peer.close(timeout=0.1)
