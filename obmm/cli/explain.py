# SPDX-License-Identifier: Apache-2.0
"""``obmm explain``: the explanation table, for people and programs."""

from __future__ import annotations

import dataclasses
import json

import click

from obmm.cli.command import Command
from obmm.cli.text import shown
from obmm.explanations import EXPLANATIONS, answers, explained
from obmm.names import near
from obmm.operations import Operation, called


@click.command(cls=Command)
@click.argument("operation", required=False)
@click.argument("errno", required=False)
@click.option("--json", "as_json", is_flag=True, help="for programs")
def explain(operation: str | None, errno: str | None, as_json: bool) -> None:
    """What ERRNO means for OPERATION (for example: EXPORT EINVAL), and the fix.

    Both as an error prints them, in any case; for the SDK and URMA also the answer's own number or name (sdk.map 6020).
    Without ERRNO every answer of the operation, without OPERATION everything.
    """
    if operation:
        found = [(op, name, known) for op in called(operation) for name, known in explained(op, errno).items()]
    else:
        wanted = (errno or "").upper()
        found = [(Operation(op), name, known) for (op, name), known in EXPLANATIONS.items() if wanted in ("", name)]
    if not found:
        raise click.ClickException(_unknown(operation, errno))
    if as_json:
        rows = [
            {"operation": op, "errno": name, "causes": [dataclasses.asdict(cause) for cause in known]}
            for op, name, known in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for op, name, known in found:
        click.secho(f"{op.printed} -> {name}", bold=True)
        for cause in known:
            click.echo(f"  [{cause.rules}] {cause.said}")
            click.echo(f"      fix: {cause.fix}")


def _unknown(operation: str | None, errno: str | None) -> str:
    """What was asked for, and what may have been meant."""
    if not operation:
        return f"no operation is known to end with {shown(errno)}; `obmm explain` shows all"
    found = called(operation)
    if found and errno:
        known = ", ".join(dict.fromkeys(name for op in found for name in answers(op)))
        return f"{found[0].printed} ending with {shown(errno)}: nothing is known; its answers: {known}"
    names = {op.printed.upper(): op.printed for op in Operation}
    meant = [names[name] for name in near(operation.upper(), names)]
    likely = f"did you mean {' or '.join(meant)}? " if meant else ""
    return f"no operation is called {shown(operation)}; {likely}`obmm explain` shows all {len(Operation)}"
