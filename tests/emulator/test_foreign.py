# SPDX-License-Identifier: Apache-2.0
"""Unmodified C programs through libobmm_preload.so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from obmm import emulator
from obmm.emulator import Fabric
from obmm.emulator.program import ProgramError, check_program, environment

from .foreign import ROOT, compile_program
from .node import CNA, EID


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("foreign")


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


def start(fabric: Fabric, node: str, *command: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(part) for part in command],
        env=environment(fabric.device(node)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(program: subprocess.Popen[str]) -> str:
    try:
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert (program.returncode, err) == (0, "")
    return out


@pytest.mark.parametrize("name", ["loopback", "descriptors", "signals", "table"])
def test_program(fabric: Fabric, folder: Path, name: str) -> None:
    program = compile_program(name, folder)
    before = fabric.status()["nodes"]["a"]["regions"]
    assert finish(start(fabric, "a", program)) == f"{name} ok\n"
    assert fabric.status()["nodes"]["a"]["regions"] == before


def test_program_built_with_fortify(fabric: Fabric, folder: Path) -> None:
    program = compile_program("loopback", folder, "-O2", "-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64")
    assert finish(start(fabric, "b", program)) == "loopback ok\n"


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_client_from_many_threads_under_sanitizers(fabric: Fabric, folder: Path, sanitizer: str) -> None:
    native = [str(path) for room in ("core", "emulator") for path in sorted((ROOT / "native" / room).glob("*.c"))]
    program = compile_program("threads", folder, "-g", f"-fsanitize={sanitizer}", *native)
    # the shadow memory of older runtimes lies where randomised addresses may be
    fixed = ["setarch", "-R"] if not subprocess.run(["setarch", "-R", "true"], check=False).returncode else []
    done = subprocess.run([*fixed, program, fabric.socket], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("threads ok\n", 0), done.stderr


def test_server_and_client_on_two_nodes(fabric: Fabric, folder: Path) -> None:
    exporter = start(fabric, "a", compile_program("exporter", folder))
    assert exporter.stdout is not None
    port = exporter.stdout.readline().strip()
    importer = start(fabric, "b", compile_program("importer", folder), port)
    assert importer.stdout is not None
    assert importer.stdin is not None
    tokenid, uba, length, cna = map(int, importer.stdout.readline().split())
    assert cna == CNA["a"]
    pa = fabric.program_window("b", owner_cna=cna, owner_eid=EID["a"], tokenid=tokenid, uba=uba, length=length)
    importer.stdin.write(f"{pa}\n")
    importer.stdin.flush()
    assert finish(importer) == "importer ok\n"
    assert finish(exporter) == "exporter ok\n"


def test_several_programs_at_once_on_different_nodes(fabric: Fabric, folder: Path) -> None:
    program = compile_program("descriptors", folder)
    running = [start(fabric, node, program) for node in "ab" for _ in range(3)]
    assert [finish(one) for one in running] == ["descriptors ok\n"] * 6


def test_shell_tools_see_the_nodes_files(fabric: Fabric) -> None:
    script = "stat -c %F /dev/obmm; test -c /dev/obmm && echo yes; grep OBMM /proc/devices; ls /dev | grep -x obmm; ls -d /dev/ob*"
    assert finish(start(fabric, "a", "sh", "-c", script)).splitlines() == [
        "character special file",
        "yes",
        "511 OBMM_SHMDEV",
        "obmm",
        "/dev/obmm",
    ]


def test_python_program_opens_the_driver_through_the_library(fabric: Fabric) -> None:
    code = "import obmm; d = obmm.open('/dev/obmm'); print(d); d.close()"
    assert "kernel" in finish(start(fabric, "a", sys.executable, "-c", code))


def test_unmapping_is_local_when_the_server_is_gone(folder: Path) -> None:
    program = compile_program("orphan", folder)
    with emulator.start(nodes=1) as mine:
        running = start(mine, "a", program)
        assert running.stdout is not None
        assert running.stdout.readline() == "mapped\n"
        os.kill(mine.server_pid, signal.SIGKILL)
        out, err = running.communicate("x", timeout=60)
    assert (running.returncode, out, err) == (0, "orphan ok\n", "")


def test_without_a_fabric_there_is_no_device(folder: Path) -> None:
    program = compile_program("descriptors", folder)
    env = environment("emulator:/nonexistent/socket#a")
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no emulated node answers" in done.stderr
    assert "No such" in done.stderr


def test_static_program_is_refused_with_the_reason(folder: Path) -> None:
    static = folder / "static"
    static.with_suffix(".c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-static", "-o", static, static.with_suffix(".c")], check=True, timeout=60)
    with pytest.raises(ProgramError, match="statically linked"):
        check_program(static)


def test_script_is_judged_by_its_interpreter(folder: Path) -> None:
    script = folder / "script"
    script.write_text("#!/usr/bin/env sh\ntrue\n")
    check_program(script)
    script.write_text(f"#!{folder / 'static'}\n")
    os.chmod(script, 0o755)
    with pytest.raises((ProgramError, FileNotFoundError)):
        check_program(script)
