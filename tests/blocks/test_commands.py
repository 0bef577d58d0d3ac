# SPDX-License-Identifier: Apache-2.0
"""`obmm blocks`: what it prints runs, in the mode in which it was printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from obmm import emulator
from obmm.exchange import Key

OBMM = [sys.executable, "-P", "-m", "obmm.cli.main"]


def run(*arguments: str, device: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"OBMM_DEVICE": device} if device else {})
    done = subprocess.run([*OBMM, *arguments], capture_output=True, text=True, timeout=90, env=environment)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=2) as fabric:
        yield fabric


def serve(fabric: emulator.Fabric, folder: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    command = [*OBMM, "blocks", "serve", "--size", "1MiB", "--block-bytes", "16KiB", "--port", "0", *options]
    command += ["--journal", str(folder / "journal"), "--device", fabric.device("a")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(1 if "--json" in options else 3)]
    assert lines[-1], process.stderr.read() if process.stderr else ""
    return process, "".join(lines)


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    process.communicate(timeout=30)
    return process.returncode


@pytest.mark.parametrize("mode", ["plain", "key"])
def test_the_printed_commands_prove_reuse_on_another_node(fabric: emulator.Fabric, tmp_path: Path, mode: str) -> None:
    Key.generate(tmp_path / "key")
    options = ["--plain"] if mode == "plain" else ["--key", str(tmp_path / "key"), "--host", "127.0.0.1"]
    process, said = serve(fabric, tmp_path, *options)
    try:
        printed = re.search(r"obmm (blocks prove .*)", said)
        assert printed, said
        first = run(*shlex.split(printed[1].replace("HOST", "127.0.0.1")), device=fabric.device("a"))
        printed = re.search(r"obmm (blocks prove .*--seed.*)", first.stdout)
        assert printed, first.stdout
        second = run(*shlex.split(printed[1]), device=fabric.device("b"))
        assert "16 of 16 blocks, 16 right to the last byte, 0 for another model" in second.stdout
        source = shlex.split(printed[1])[2]
        how = ["--plain"] if mode == "plain" else ["--key", str(tmp_path / "key")]
        facts = json.loads(run("blocks", "status", source, *how, "--json").stdout)
        assert facts["blocks"] == 16
        assert "16 blocks in" in run("blocks", "status", source, *how).stdout
        assert run("blocks", "evict", source, *how, "--count", "6").stdout == "6 block(s) dropped\n"
        assert json.loads(run("blocks", "evict", source, *how, "--json").stdout) == {"evicted": 10}
        late = run(*shlex.split(printed[1]), device=fabric.device("b"), check=False)
        assert late.returncode == 1
        assert "the proof failed" in late.stderr
    finally:
        assert end(process) == 0


def test_without_an_address_the_proof_makes_its_own_nodes() -> None:
    said = run("blocks", "prove").stdout
    assert "loaded the same bytes" in said
    assert len(set(re.findall(r"incarnation (\w+)", said))) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["blocks", "status", "127.0.0.1:1/kv", "--plain"], "127.0.0.1:1"),
        (["blocks", "status", "nonsense", "--plain"], "HOST:PORT/NAME"),
        (["blocks", "prove", "nonsense", "--plain"], "host:port/name"),
        (["blocks", "serve", "--plain", "--size", "10MB"], "not a unit"),
        (["blocks", "serve", "--plain", "--size", "4KiB"], "at least"),
        (["blocks", "serve", "--plain", "--limit", "x"], "TENANT=SIZE"),
        (["blocks", "evict", "127.0.0.1:1/kv", "--plain", "--count", "-1"], "0.."),
    ],
)
def test_what_cannot_be_is_one_sentence(fabric: emulator.Fabric, arguments: list[str], problem: str) -> None:
    done = run(*arguments, device=fabric.device("a"), check=False)
    assert done.returncode in (1, 2)
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
