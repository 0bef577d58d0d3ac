# SPDX-License-Identifier: Apache-2.0
"""Every block of code on every page, read against what exists: commands, options, modules, names, data.

Python runs in test_programs.py, what serves and fetches in test_consoles.py; here run the lines of the tables below.  A command
that no table knows fails.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from obmm.cli.main import main
from tests.pages.blocks_of_code import PAGES, ROOT, blocks

RUN_ELSEWHERE = {"docs/tutorial.md": "tests/examples/test_tutorial.py"}
RUN_HERE = {  # page -> lines of its console blocks that run as they stand, on a fabric of their own
    "docs/emulator.md": (
        "obmm emulate up",
        "OBMM_DEVICE=emulator#a obmm smoke",
        "obmm emulate status",
        "obmm emulate down",
    ),
    "docs/fabric.md": ("obmm bench model --json",),
}
NOT_RUN = {  # first word of a line -> why it is only read
    "pip": "installs",
    "gcc": "run by tests/test_c_library.py",
    "g++": "run by tests/test_c_library.py",
    "export": "for the lines around it",
    "systemctl": "needs systemd",
    "vllm": "needs the engine and a model",
    "openssl": "makes a key",
    "umask": "makes a key",
    ".": "a shell's own",
    "git": "needs the network",
    "grep": "looks something up",
}
ENGINES = {"sglang", "vllm"}
NO_COMMANDS = re.compile(
    r"[─│┌└▼◀▶]|^\s*(client|server|transcript|tag|derive)\b|^a \d+ |^A submitted gather|^\s+decisions", re.M
)
"""Pictures, traces, formulas and messages: nothing to run."""


def named(pairs: list[tuple[str, str]]) -> list[str]:
    return [f"{page}-{number}" for number, (page, _) in enumerate(pairs)]


def lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line.removeprefix("$ ").strip() for line in joined.splitlines() if line.strip() and line.strip()[0] != "#"]


CONSOLE = blocks({"", "sh", "console", "bash"})
PYTHON = blocks({"python"})
KINDS = {"", "sh", "console", "bash", "python", "json", "toml", "c"}
COMPARED = {("tutorial.md", "text")}  # what is printed: tests/examples/test_tutorial.py compares it


def test_no_block_is_of_an_unknown_kind():
    for page in PAGES:
        for kind in re.findall(r"^```(\w+)$", page.read_text(), re.MULTILINE):
            assert kind in KINDS or (page.name, kind) in COMPARED, f"{page.name}: {kind}"


def commands(line: str) -> list[list[str]]:
    """The words of each command of a line, without comments, prompts and variables."""
    line = re.sub(r"^\((.*)\)", r"\1", line.split(" # ")[0].rstrip().removesuffix("#"))
    found = []
    for part in re.split(r"&&|;|(?<!\|)\|(?!\|)", re.sub(r"\$\([^)]*\)", "X", line)):
        words = shlex.split(part, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            found.append(words)
    return found


def check_obmm(words: list[str], where: str) -> None:
    """The command exists, and so does every option."""
    command: click.Command = main
    rest = words[1:]
    context = click.Context(main)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        chosen = [command.get_command(context, name.strip(",")) for name in rest[:1]]
        assert chosen[0] is not None, f"{where}: no command {rest[0]!r}"
        command, rest = chosen[0], rest[1:]
        if rest[:1] == ["--"]:
            return
    known = {option for each in command.get_params(context) for option in (*each.opts, *each.secondary_opts)}
    for word in rest:
        if word == "--":
            return
        if re.match(r"--?[a-z]", word):
            assert word.split("=")[0] in known, f"{where}: {' '.join(words)}: no option {word}"


def check(words: list[str], where: str) -> None:
    first = words[0]
    if first == "obmm":
        check_obmm(words, where)
    elif first == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in words[1:]:
            if re.fullmatch(r"[a-z0-9-]+", word) and "-C" not in words:
                assert word in targets, f"{where}: make {word}"
    elif first.endswith("python"):
        if words[1] == "-m":
            top = words[2].partition(".")[0]
            assert top in ENGINES or importlib.util.find_spec(top), f"{where}: {words[2]}"
        else:
            assert (ROOT / words[1]).is_file(), f"{where}: {words[1]}"
    else:
        assert first in NOT_RUN, f"{where}: {first!r} is neither run nor known"


@pytest.mark.parametrize(("page", "text"), CONSOLE, ids=named(CONSOLE))
def test_commands_on_a_page_exist_with_their_options(page, text):
    if page in RUN_ELSEWHERE or NO_COMMANDS.search(text):
        return
    for line in lines(text):
        if page == "docs/commands.md" and "#" not in line:  # the overview: a command, and what it is for
            line = re.split(r"\s{3,}|, | \| ", line)[0]
        for words in commands(line):
            check(words, f"{page}: {line}")


@pytest.mark.parametrize(("page", "text"), PYTHON, ids=named(PYTHON))
def test_python_on_a_page_compiles_and_names_what_exists(page, text):
    tree = ast.parse(text, page)
    compile(tree, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "obmm":
            if node.module == "obmm.nn":
                pytest.importorskip("torch", reason="pip install torch")
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                there = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                assert there, f"{page}: {node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "obmm":
            assert node.attr == "nn" or hasattr(importlib.import_module("obmm"), node.attr), f"{page}: obmm.{node.attr}"


@pytest.mark.parametrize(("page", "text"), [*blocks({"json"}), *blocks({"toml"})])
def test_data_on_a_page_parses(page, text):
    if "..." in text or "…" in text:  # shortened for people
        return
    try:
        json.loads(text)
    except ValueError:
        if text.lstrip()[0] in "{":  # several objects, or a comment behind
            return
        tomllib.loads(text)


@pytest.mark.parametrize("page", RUN_HERE)
def test_these_lines_run_as_they_stand(page, tmp_path):
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OBMM_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(runtime)}
    text = (ROOT / page).read_text()
    try:
        for line in RUN_HERE[page]:
            assert line in text, f"{page} has no {line!r} any more"
            done = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    finally:
        subprocess.run(["obmm", "emulate", "down"], env=environment, capture_output=True, check=False, timeout=30)


def test_tables_name_what_exists():
    assert all((ROOT / page).is_file() and (ROOT / test).is_file() for page, test in RUN_ELSEWHERE.items())
