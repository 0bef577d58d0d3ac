# SPDX-License-Identifier: Apache-2.0
"""``obmm explain``: the explanation table, for people and programs."""

from __future__ import annotations

import dataclasses
import json

import click

from obmm.explanations import EXPLANATIONS, causes


@click.command()
@click.argument("operation", required=False)
@click.argument("errno", required=False)
@click.option("--json", "as_json", is_flag=True, help="for programs")
def explain(operation: str | None, errno: str | None, as_json: bool) -> None:
    """What ERRNO means for OPERATION (for example: EXPORT EINVAL), and the fix.

    Without ERRNO every answer of the operation, without OPERATION everything.
    """
    wanted_operation = operation.upper() if operation else None
    wanted_errno = errno.upper() if errno else None
    pairs = [(op, name) for op, name in EXPLANATIONS if wanted_operation in (None, op) and wanted_errno in (None, name)]
    if not pairs and wanted_operation and wanted_errno and causes(wanted_operation, wanted_errno):
        pairs = [(wanted_operation, wanted_errno)]
    if not pairs:
        answers = [name for op, name in EXPLANATIONS if op == wanted_operation]
        known = "its answers" if answers else "operations"
        listed = ", ".join(answers or dict.fromkeys(op for op, _ in EXPLANATIONS))
        raise click.ClickException(
            f"nothing is known about {operation or 'any operation'} ending with {errno or 'any errno'}; {known}: {listed}"
        )
    if as_json:
        rows = [
            {
                "operation": op,
                "errno": name,
                "causes": [dataclasses.asdict(cause) for cause in causes(op, name)],
            }
            for op, name in pairs
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for op, name in pairs:
        click.secho(f"{op} -> {name}", bold=True)
        for cause in causes(op, name):
            click.echo(f"  [{cause.rules}] {cause.meaning}")
            click.echo(f"      fix: {cause.fix}")
