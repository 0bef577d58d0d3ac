# SPDX-License-Identifier: Apache-2.0
"""Writes packaging/obmm.1, the manual page, from the commands' own help: ``python docs/build_man.py``; ``--check`` compares."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from obmm.cli.main import main as command

PAGE = Path(__file__).resolve().parents[1] / "packaging" / "obmm.1"


def escaped(text: str) -> str:
    """Text as roff takes it."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").replace("\b", "").split("\n")
    return "\n".join(("\\&" + line if line.startswith((".", "'")) else line) for line in lines)


def section(name: str, group: click.Command, context: click.Context) -> list[str]:
    """One command: how it is called, what it does, its options; then its subcommands."""
    own = click.Context(group, info_name=name, parent=context)
    lines = [
        f".SS {escaped(own.command_path)}",
        ".nf",
        escaped(f"{own.command_path} {' '.join(group.collect_usage_pieces(own))}"),
        ".fi",
    ]
    lines += [".PP", escaped(" ".join((group.help or "").split()))]
    for parameter in group.get_params(own):
        record = parameter.get_help_record(own)
        if record is not None:
            lines += [".TP", f".B {escaped(record[0])}", escaped(" ".join(record[1].split()))]
    if isinstance(group, click.Group):
        for each in group.list_commands(own):
            inner = group.get_command(own, each)
            if inner is not None and not inner.hidden:
                lines += section(each, inner, own)
    return lines


def text() -> str:
    """The whole page."""
    top = click.Context(command, info_name="obmm")
    lines = [
        '.TH OBMM 1 "" "obmm" "User Commands"',
        ".SH NAME",
        escaped("obmm - another node's memory, by plain loads and stores"),
    ]
    lines += [".SH SYNOPSIS", ".B obmm", "COMMAND [OPTIONS]", ".SH COMMANDS"]
    for name in command.list_commands(top):
        inner = command.get_command(top, name)
        if inner is not None:
            lines += section(name, inner, top)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(
            0
            if PAGE.read_text() == text()
            else f"{PAGE.name} is not what the commands say now: python docs/build_man.py"
        )
    PAGE.write_text(text())
