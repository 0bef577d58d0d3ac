# SPDX-License-Identifier: Apache-2.0
"""``obmm blocks status``: what an owner says of its store, as text."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from obmm.cli.output import console
from obmm.cli.serve_status import seconds
from obmm.cli.text import cell, shown


def show_store(where: str, facts: dict[str, Any]) -> None:
    """Whatever the owner says is shown; what it does not say is a dash."""
    said = {name: shown(facts.get(name, "-")) for name in _FIGURES}
    click.echo(
        f"{shown(where)}: {said['blocks']} blocks in {said['slots']} slots of {said['capacity']} bytes, {said['free']} free, "
        f"{said['reserved']} reserved, {said['pinned']} pinned, incarnation {said['incarnation']}"
    )
    counts = facts.get("counts")
    named = sorted(counts.items()) if isinstance(counts, dict) else []
    click.echo(", ".join(f"{shown(count)} {shown(name)}" for name, count in named) or "nothing happened yet")
    users = facts.get("users")
    table = Table("user", "tenant", "reserved", "pins", "expires")
    for user in users if isinstance(users, list) else []:
        if isinstance(user, dict):
            texts = (cell(user.get(name, "-")) for name in ("name", "tenant", "reserved", "pins"))
            table.add_row(*texts, f"in {seconds(user.get('expires_in_s'))}")
    if table.row_count:
        console().print(table)


_FIGURES = ("blocks", "slots", "capacity", "free", "reserved", "pinned", "incarnation")
