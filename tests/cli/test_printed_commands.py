# SPDX-License-Identifier: Apache-2.0
"""Commands that a message or a page prints: each is a command that exists, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from obmm.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PLACES = [*sorted((ROOT / "obmm").rglob("*.py")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
QUOTED = re.compile(r"`+((?:OBMM_\w+=\S+ )?obmm [a-z][^`\n]*?)`+")
LINE = re.compile(r"^(?:\$ |    )?((?:OBMM_\w+=\S+ )?obmm [a-z].*)$", re.MULTILINE)


def printed() -> list[tuple[str, str]]:
    found = []
    for path in PLACES:
        text = path.read_text()
        lines = QUOTED.findall(text) + (LINE.findall(text) if path.suffix == ".md" else [])
        found += [(str(path.relative_to(ROOT)), line) for line in dict.fromkeys(lines)]
    return found


def test_the_pages_and_messages_were_looked_at() -> None:
    assert len(printed()) > 100


@pytest.mark.parametrize(("place", "line"), printed())
def test_a_printed_command_exists_with_its_options(place: str, line: str) -> None:
    try:
        words = shlex.split(line.partition("   ")[0].partition(" #")[0])
    except ValueError:
        words = line.split()
    words = words[words.index("obmm") + 1 :]
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{place}: {line!r}: {context.command_path} has no command {words[0]}"
        command, context = inner, click.Context(inner, parent=context, info_name=words[0])
        words = words[1:]
    if isinstance(command, click.Group) or any(each in ("run", "--") for each in line.split()[1:3]):
        return  # alternatives (up|down), or somebody else's command behind it
    known = {each for parameter in command.get_params(context) for each in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word in ("|", "&&", ";", "&", ">", "--"):
            break
        if word.startswith("--"):
            assert word.rstrip(".,:;)]").partition("=")[0] in known, f"{place}: {line!r} has no option {word}"
