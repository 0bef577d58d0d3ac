# SPDX-License-Identifier: Apache-2.0
"""`make` looks at the machine before it downloads anything."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "native" / "tools" / "preflight.py"
FAMILIES = {
    "debian": ("apt-get install", "ID=debian"),
    "ubuntu": ("apt-get install", "ID=ubuntu\nID_LIKE=debian"),
    "openeuler": ("dnf install", 'ID="openEuler"'),
    "rocky": ("dnf install", 'ID="rocky"\nID_LIKE="rhel centos fedora"'),
    "suse": ("zypper install", 'ID="opensuse-leap"\nID_LIKE="suse opensuse"'),
    "arch": ("pacman -S", "ID=arch"),
    "alpine": ("apk add", "ID=alpine"),
}
LACKS = {  # what a machine lacks: how it is played, what is said, its package on each kind of distribution
    "python": (
        "sys.version_info = (3, 9, 2, 'final', 0)",
        "Python 3.9 is too old, 3.11 or newer is needed",
        {
            "apt-get": "python3.11 python3.11-venv python3.11-dev", "dnf": "python3.11 python3.11-devel",
            "zypper": "python311 python311-devel", "pacman": "python", "apk": "python3",
        },
    ),
    "venv": (
        "sys.modules['venv'] = None",
        "the modules venv and ensurepip of Python",
        {"apt-get": "python3-venv", "dnf": "python3", "zypper": "python3", "pacman": "python", "apk": "python3"},
    ),
    "ensurepip": (
        "sys.modules['ensurepip'] = None",
        "the modules venv and ensurepip of Python",
        {"apt-get": "python3-venv", "dnf": "python3", "zypper": "python3", "pacman": "python", "apk": "python3"},
    ),
    "headers": (
        "import sysconfig; found = sysconfig.get_paths(); sysconfig.get_paths = lambda *_: {**found, 'include': '/nowhere'}",
        "Python's headers (/nowhere/Python.h)",
        {"apt-get": "python3-dev", "dnf": "python3-devel", "zypper": "python3-devel", "pacman": "python", "apk": "python3-dev"},
    ),
    "compiler": (
        "os.environ['CC'] = 'no-such-compiler'",
        "a C compiler (no-such-compiler)",
        {"apt-get": "gcc", "dnf": "gcc", "zypper": "gcc", "pacman": "gcc", "apk": "gcc"},
    ),
    "libc": (
        "os.environ['CC'] = 'false'",
        "the C library's headers (stdlib.h)",
        {"apt-get": "libc6-dev", "dnf": "glibc-devel", "zypper": "glibc-devel", "pacman": "glibc", "apk": "musl-dev"},
    ),
}  # fmt: skip


def preflight(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, folder], capture_output=True, text=True, env=os.environ | environment, timeout=60
    )


@pytest.fixture
def clone(tmp_path):
    """What `make setup` reads before it downloads: the Makefile and the tools."""
    folder = tmp_path / "clone"
    (folder / "native").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "native" / "tools", folder / "native" / "tools")
    return folder


def make_on(
    clone: Path, played: str, os_release: str, own: bool = True
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """`make setup` with a Python that finds the machine as it is played; what it was asked to run."""
    (clone / "os-release").write_text(os_release)
    (clone / "player.py").write_text(
        f"""import builtins, os, runpy, sys
theirs = "/usr/bin/python" + ("%d.%d" % sys.version_info[:2] if {own} else "3.0")
resolved = os.path.realpath
os.path.realpath = lambda name, **more: theirs if name == "/usr/bin/python3" else resolved(name, **more)
real = builtins.open
builtins.open = lambda name, *rest, **more: real({str(clone / "os-release")!r} if name == "/etc/os-release" else name, *rest, **more)
{played}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    )
    python = clone / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >> {clone}/asked\nexec {sys.executable} {clone}/player.py "$@"\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "setup", f"PYTHON={python}"], cwd=clone, capture_output=True, text=True, timeout=60, env=kept
    )
    return done, (clone / "asked").read_text().splitlines()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lack", LACKS)
def test_make_says_what_is_missing_with_the_packages_name_before_any_download(clone, lack, family):
    played, said, packages = LACKS[lack]
    install, os_release = FAMILIES[family]
    done, asked = make_on(clone, played, os_release)
    assert done.returncode != 0
    assert said in done.stderr
    assert f"fix: {install} {packages[install.split()[0]]}\n" in done.stderr
    assert asked == ["native/tools/preflight.py .venv"], "nothing else ran: no environment, no pip"
    assert not (clone / ".venv").exists()


def test_everything_that_is_missing_is_said_at_once(clone):
    done, _ = make_on(clone, LACKS["venv"][0] + "\n" + LACKS["headers"][0], "ID=debian")
    assert "fix: apt-get install python3-dev python3-venv\n" in done.stderr


@pytest.mark.parametrize(
    ("family", "headers"), [("ubuntu", "python{}-dev"), ("rocky", "python{}-devel"), ("suse", "python{}-devel")]
)
def test_a_python_beside_the_distributions_own_has_packages_of_its_own(clone, family, headers):
    done, _ = make_on(clone, LACKS["headers"][0], FAMILIES[family][1], own=False)
    version = "{}.{}".format(*sys.version_info).replace(".", "" if family == "suse" else ".")
    assert f" {headers.format(version)}\n" in done.stderr


def test_an_unknown_distribution_is_told_what_and_no_package(clone):
    done, _ = make_on(clone, LACKS["compiler"][0], "ID=plan9")
    assert LACKS["compiler"][1] in done.stderr
    assert "fix:" not in done.stderr


def test_a_machine_without_python_is_told_so():
    done = subprocess.run(
        ["make", "-n", "-B", "setup", "PYTHON=no-such-python"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "no no-such-python: install Python 3.11 or newer" in done.stdout  # what make would run first


def test_the_look_itself_runs_on_an_old_python():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))


def test_a_whole_machine_is_silent(tmp_path):
    done = preflight(tmp_path / ".venv")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_compiler_is_said_with_the_fix(tmp_path):
    done = preflight(tmp_path / ".venv", CC="no-such-compiler")
    assert done.returncode == 1
    assert "a C compiler (no-such-compiler)" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("version", ["3.9.1", "3.99.0"])
def test_an_environment_of_another_python_is_replaced(tmp_path, version):
    folder = tmp_path / ".venv"
    folder.mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    done = preflight(folder)
    assert done.returncode == 0
    assert "made anew" in done.stdout
    assert not folder.exists()


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path):
    folder = tmp_path / ".venv"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    done = preflight(folder)
    assert done.returncode == 1
    assert "is not a virtual environment" in done.stderr
    assert (folder / "thesis.txt").exists()


def environment(folder: Path) -> None:
    """A virtual environment of this Python, as far as the look goes."""
    (folder / "bin").mkdir(parents=True)
    version = "{}.{}.{}".format(*sys.version_info)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\nversion = {version}\n")
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "bin" / "pip").write_text(f"#!{folder}/bin/python\n")


def test_an_environment_of_this_python_stays(tmp_path):
    environment(tmp_path / ".venv")
    done = preflight(tmp_path / ".venv")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / ".venv" / "bin" / "pip").exists()


def test_an_environment_of_a_renamed_clone_is_made_anew(tmp_path):
    environment(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / ".venv")
    done = preflight(tmp_path / ".venv")
    assert "was moved, or lost its Python: made anew" in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(tmp_path):
    environment(tmp_path / ".venv")
    (tmp_path / ".venv" / "bin" / "python").unlink()
    (tmp_path / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
    assert "lost its Python: made anew" in preflight(tmp_path / ".venv").stdout
    assert not (tmp_path / ".venv").exists()
