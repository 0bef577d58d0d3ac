# SPDX-License-Identifier: Apache-2.0
"""``obmm help``: what ``--help`` says, for who types it the other way round."""

from __future__ import annotations

import click

from obmm.cli.command import Command
from obmm.cli.text import shown
from obmm.names import listed


@click.command(cls=Command)
@click.argument("command", nargs=-1)
@click.pass_context
def help(ctx: click.Context, command: tuple[str, ...]) -> None:
    """What obmm does, or COMMAND (`obmm help emulate up`)."""
    assert ctx.parent is not None
    place: click.Context = ctx.parent
    for name in command:
        group = place.command
        found = group.get_command(place, name) if isinstance(group, click.Group) else None
        if found is None:
            names = group.list_commands(place) if isinstance(group, click.Group) else []
            there = f"; it has {listed(name, names)}" if names else ""
            raise click.ClickException(f"{place.command_path} has no command {shown(name)}{there}")
        place = click.Context(found, info_name=name, parent=place)
    click.echo(place.get_help())
