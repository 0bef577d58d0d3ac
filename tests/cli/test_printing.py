# SPDX-License-Identifier: Apache-2.0
"""What people see: no cut lines in a pipe, no colour where none is wanted, one line where the extra is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import obmm
from obmm import emulator


@pytest.fixture(scope="module")
def device():
    with emulator.start(nodes=1) as fabric, obmm.open(fabric.device("a")) as opened:
        with opened.export_region("2MiB", label="a-label-of-almost-forty-eight-characters-long"):
            yield fabric.device("a")


def run(*arguments: str, python: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "obmm.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
    )


def test_a_table_in_a_pipe_is_not_cut(device):
    done = run("ls", OBMM_DEVICE=device, COLUMNS="40")
    assert done.returncode == 0, done.stderr
    assert "a-label-of-almost-forty-eight-characters-long" in done.stdout
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    "arguments", [("ls",), ("doctor",), ("explain", "EXPORT", "EINVAL"), ("--help",)], ids=" ".join
)
def test_NO_COLOR_is_honoured_even_where_colour_is_forced(device, arguments):
    done = run(*arguments, OBMM_DEVICE=device, NO_COLOR="1", FORCE_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*\b(?:3[0-7]|9[0-7])\b", done.stdout + done.stderr)


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_the_extra_the_command_says_one_line(tmp_path, package):
    hide = tmp_path / "sitecustomize.py"
    hide.write_text(
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name == {package!r} else real(name, *a)\n"
    )
    done = run("--version", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"needs the package {package}: pip install 'obmm[cli]'" in done.stderr


def test_the_front_door_shows_what_users_need_and_nothing_else():
    names = dir(obmm)
    assert set(obmm.__all__) <= set(names)
    assert not [name for name in names if name.startswith("_") and name != "__version__"]
    for name in names:
        assert getattr(obmm, name) is not None


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"
"""As where torch is not installed: importing it fails, and no finder knows it."""
WITH_TORCH = """
import importlib.abc, importlib.machinery, sys
class Heavy(importlib.abc.MetaPathFinder):  # where torch is installed: found, and loading it is too much
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "torch" else None
    def exec_module(self, module):
        raise SystemExit("torch was loaded")
sys.meta_path.insert(0, Heavy())
"""
either_way = pytest.mark.parametrize(("before", "nn"), [(WITHOUT_TORCH, False), (WITH_TORCH, True)])


def fresh(program: str) -> str:
    """What a new interpreter prints: nothing else of obmm was imported there."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sub_packages_are_reachable_after_import_obmm():
    rooms = [name for name in obmm._ROOMS if name != "nn"]
    program = f"import obmm\nfor name in {rooms}: print(getattr(obmm, name).__name__)"
    assert fresh(program).split() == [f"obmm.{name}" for name in rooms]


@either_way
def test_tab_completion_offers_what_users_need_and_loads_no_torch(before, nn):
    program = "import obmm, rlcompleter; print(*rlcompleter.Completer({'obmm': obmm}).attr_matches('obmm.'))"
    offered = {word.removeprefix("obmm.").rstrip("()") for word in fresh(before + program).split()}
    assert offered == {*obmm.__all__, *obmm._ROOMS} - {"__version__"} - (set() if nn else {"nn"})


@either_way
def test_help_shows_the_doors_text_and_every_public_name(before, nn):
    said = fresh(before + "import pydoc, obmm; print(pydoc.plaintext.document(obmm))")
    assert "lend memory" in said
    for name in obmm.__all__:
        if name != "__version__":
            assert name in said, name
    assert "_modelled" not in said
    assert "import_module" not in said


@either_way
def test_what_looks_through_the_door_finds_names_or_none(before, nn):
    program = (
        "import inspect, pydoc, obmm; pydoc.render_doc(obmm)\n"
        "names = [name for name, _ in inspect.getmembers(obmm)]\n"
        "print(hasattr(obmm, 'nn'), 'nn' in names, 'nn' in dir(obmm))"
    )
    assert fresh(before + program).split() == [str(nn)] * 3


def test_without_torch_a_room_for_it_says_what_is_missing():
    said = "obmm.nn is for models in torch: pip install torch"
    for line in ("import obmm.nn", "from obmm import nn", "from obmm.nn import Embedding", "import obmm; obmm.nn"):
        program = (
            f"try:\n    {line.replace('; ', chr(10) + '    ')}\nexcept (ImportError, AttributeError) as e: print(e)"
        )
        assert fresh(WITHOUT_TORCH + program).strip() == said, line


def test_loggers_are_silent_until_a_program_configures_them():
    done = subprocess.run(
        [sys.executable, "-c", "import logging, obmm; logging.getLogger('obmm.exchange.server').error('x')"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""


def test_the_manual_page_says_what_the_commands_say():
    script = Path(__file__).resolve().parents[2] / "docs" / "build_man.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
