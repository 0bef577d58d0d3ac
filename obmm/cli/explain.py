# SPDX-License-Identifier: Apache-2.0
"""``obmm explain``: the explanation table, for people and programs."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from errno import errorcode

import click

from obmm.causes import Cause
from obmm.cli.command import Command
from obmm.cli.text import shown
from obmm.explanations import EXPLANATIONS, answers, explained, sought
from obmm.names import near
from obmm.operations import Operation, called


def _begun(words: Iterable[str], begun: str) -> list[str]:
    """For completion: those that begin so, in any case."""
    return sorted(word for word in set(words) if word.lower().startswith(begun.lower()))


def _complete_operation(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    return _begun([each.printed for each in Operation], begun)


def _complete_errno(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    return _begun([name for op in called(context.params.get("operation") or "") for name in answers(op)], begun)


@click.command(cls=Command)
@click.argument("operation", required=False, shell_complete=_complete_operation)
@click.argument("errno", required=False, shell_complete=_complete_errno)
@click.option("--json", "as_json", is_flag=True, help="for programs")
def explain(operation: str | None, errno: str | None, as_json: bool) -> None:
    """What ERRNO means for OPERATION (for example: EXPORT EINVAL), and the fix.

    Both as an error prints them, in any case, ERRNO also as a number; for the SDK and URMA also the answer's own number or
    name (sdk.map 6020).  Without ERRNO every answer of the operation, without OPERATION everything.

    One word that is no operation: an errno (EINVAL, 22), a signal (SIGBUS) or a rule (X14), wherever it is known.
    """
    found: list[tuple[str, str, tuple[Cause, ...]]] = []
    if not operation:
        found = [(Operation(op), name, known) for (op, name), known in EXPLANATIONS.items()]
    else:
        found = [(op, name, known) for op in called(operation) for name, known in explained(op, errno).items()]
        if not found and not errno:
            found = [(place, name, known) for (place, name), known in sought(operation).items()]
    if not found:
        raise click.ClickException(_unknown(operation or "", errno))
    if as_json:
        rows = [
            {"operation": op, "errno": name, "causes": [dataclasses.asdict(cause) for cause in known]}
            for op, name, known in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for op, name, known in found:
        click.secho(f"{op.printed if isinstance(op, Operation) else op} -> {name}", bold=True)
        for cause in known:
            click.echo(f"  [{cause.rules}] {cause.said}")
            click.echo(f"      fix: {cause.fix}")


def _unknown(operation: str, errno: str | None) -> str:
    """What was asked for, and what may have been meant."""
    found = called(operation)
    if found and errno:
        known = ", ".join(dict.fromkeys(name for op in found for name in answers(op)))
        return f"{found[0].printed} ending with {shown(errno)}: nothing is known; its answers: {known}"
    if re.fullmatch(r"\d+|SIG[A-Z]+", operation.upper()) or operation.upper() in errorcode.values():
        return f"nothing is known to end with {shown(operation)}; `obmm explain` shows all that is"
    if re.fullmatch(r"[A-Z]{1,2}\d+[a-z]?", operation):
        return f"no errno here is by a rule {shown(operation)}; docs/conformance/rules.md lists the rules"
    names = {op.printed.upper(): op.printed for op in Operation}
    meant = [names[name] for name in near(operation.upper(), names)]
    likely = f"did you mean {' or '.join(meant)}? " if meant else ""
    return f"no operation is called {shown(operation)}; {likely}`obmm explain` shows all {len(Operation)}"
