# SPDX-License-Identifier: Apache-2.0
"""Go programs: those that make their own system calls are refused, those that ask libc through cgo are answered."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from obmm.cli.main import main
from obmm.emulator import Fabric
from obmm.emulator.program import ProgramError, check_program, environment
from obmm.host import c_library

from .foreign import FOREIGN, ROOT
from .one_node import fabric

__all__ = ["fabric"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("go")


def build(folder: Path, name: str, **more: str) -> Path:
    """The program of tests/foreign/`name`.go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("this machine has no go")
    caches = {"GOCACHE": str(folder / "cache"), "GOPATH": str(folder / "go"), "GO111MODULE": "off"}
    program = folder / (name + more.get("CGO_ENABLED", "1"))
    built = subprocess.run(
        [go, "build", "-o", program, FOREIGN / f"{name}.go"],
        env=os.environ | caches | {"CGO_ENABLED": "1"} | more,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="module")
def through_c(folder: Path) -> Path:
    return build(folder, "through_c", CGO_CFLAGS=f"-I{ROOT / 'native'}")


def run(fabric: Fabric, *command: str | Path) -> subprocess.CompletedProcess[str]:
    env = environment(fabric.device(), os.environ | {"LC_ALL": "C"})
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("cgo", "reason"), [("0", "statically linked"), ("1", "is a Go program.*cgo")])
def test_a_program_that_makes_its_own_calls_is_refused_with_the_reason(folder: Path, cgo: str, reason: str) -> None:
    """Linked with libc for names and users, or without: `os.Open` goes past it."""
    with pytest.raises(ProgramError, match=reason):
        check_program(build(folder, "own", CGO_ENABLED=cgo))


def test_a_program_that_asks_libc_is_answered(fabric: Fabric, through_c: Path) -> None:
    """C's open, read, ioctl, mmap and close, from two threads of Go's."""
    done = run(fabric, through_c)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "read: invalid argument",
        "command 0: inappropriate ioctl for device",
        "region 1: remote memory",
        "unexport while mapped: device or resource busy",
        "gone: no such file or directory",
    ]


def test_run_starts_it_and_says_what_is_not_answered(fabric: Fabric, through_c: Path) -> None:
    socket = fabric.device().removeprefix("emulator:").split("#")[0]
    command = ["obmm", "emulate", "run", "--fabric", socket, "--", str(through_c)]
    started: list[tuple[Path, list[str], dict[str, str]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execve", lambda *words: started.append(words))
        result = CliRunner().invoke(main, command[1:])
    assert (result.exit_code, len(started)) == (0, 1), result.output
    assert "os and syscall see this machine" in result.output
    program, arguments, env = started[0]
    done = subprocess.run(arguments, executable=program, env=env, capture_output=True, text=True, timeout=60)
    assert "region 1: remote memory" in done.stdout


def test_another_program_that_starts_it_says_so_too(fabric: Fabric, through_c: Path) -> None:
    done = run(fabric, "sh", "-c", f"{through_c}; true")
    assert "region 1: remote memory" in done.stdout
    assert f"{through_c} is a Go program: but for what it asks of libc through cgo, it runs beside" in done.stderr


@pytest.mark.parametrize("how", ["preloaded", "by name"])
def test_a_program_on_the_installed_c_library(fabric: Fabric, folder: Path, how: str) -> None:
    program = build(
        folder,
        "on_library",
        CGO_CFLAGS=f"-I{c_library.include_dir()}",
        CGO_LDFLAGS=f"-L{c_library.library_dir()} -lobmm -pthread",
    )
    if how == "preloaded":
        done = run(fabric, program, "/dev/obmm")
    else:
        done = subprocess.run([program, fabric.device()], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "region 1: 0\n", "")
