# SPDX-License-Identifier: Apache-2.0
"""``obmm lease``: look at the leases of a running ``obmm serve`` of this user, and end those of the dead."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from obmm.cli.command import Group
from obmm.cli.serve_status import show_status
from obmm.cli.text import shown
from obmm.driver.backend import runtime_directory
from obmm.exchange import DEFAULT_PORT, PeerUnreachableError
from obmm.exchange.control import ask, control_path

_PORT = click.option("--port", default=DEFAULT_PORT, show_default=True, help="the server's port on this host")
_JSON = click.option("--json", "as_json", is_flag=True, help="for programs")


RUN = Path("/run")
"""Where services have their runtime folders (packaging/obmm-serve@.service)."""


def _asked(port: int, request: dict[str, Any]) -> dict[str, Any]:
    """What the server on `port` answers; where none does, the refusal names the servers that have a socket here."""
    try:
        return ask(control_path(runtime_directory(), port), request)
    except PeerUnreachableError as error:
        here = [f"--port {number}" for number in _ports(runtime_directory()) if number != port]
        of_services = [
            f"XDG_RUNTIME_DIR={shlex.quote(str(folder.parent))} obmm lease ls --port {number}"
            for folder in sorted(RUN.glob("obmm-serve-*/obmm"))
            for number in _ports(folder)
        ]
        known = ", ".join([*here, *of_services])
        raise PeerUnreachableError(f"{error.strerror}{f' Others here: {known}' if known else ''}") from None


def _ports(folder: Path) -> list[int]:
    """Of the servers that have a control socket in `folder`."""
    names = (path.name.removeprefix("serve-").removesuffix(".sock") for path in folder.glob("serve-*.sock"))
    return sorted(int(name) for name in names if name.isdigit())


@click.group(cls=Group)
def lease() -> None:
    """Leases of a running `obmm serve` of this user (or of any user, as root with the same XDG_RUNTIME_DIR)."""


@lease.command("ls")
@_PORT
@_JSON
def list_leases(port: int, as_json: bool) -> None:
    """Show what it serves, and who holds which lease."""
    status = _asked(port, {"do": "status"})["status"]
    if as_json:
        click.echo(json.dumps(status, indent=2))
    else:
        show_status(f"port {port}", status)


@lease.command("end")
@click.option("--lease", "lease_id", help="one lease: its 8 digits in `obmm lease ls`")
@click.option("--holder", help="all of a client: its name, or name@address")
@click.option("--address", help="all that connected from this address")
@click.option("--identity", help="all of a certificate's or key's name")
@click.option("--region", help="all on a region, earlier exports too")
@click.option("--yes", is_flag=True, help="end them; without it they are only shown")
@_PORT
@_JSON
def end(
    lease_id: str | None,
    holder: str | None,
    address: str | None,
    identity: str | None,
    region: str | None,
    yes: bool,
    port: int,
    as_json: bool,
) -> None:
    """Give up leases whose holders are dead; those that fit everything that is named.

    A holder that lives and goes on reading gets a machine-level error when the region is unexported: be sure.
    """
    which = {"lease": lease_id, "holder": holder, "address": address, "identity": identity, "region": region}
    if not any(which.values()):
        raise click.UsageError("name a --lease, --holder, --address, --identity or --region")
    ended = _asked(port, {"do": "end" if yes else "match", **which})["ended"]
    if as_json:
        click.echo(json.dumps({"ended": yes, "leases": ended}))
        return
    for each in ended:
        what = f"{each['lease']} of {each['region']}, {each['holder']}, {each['state']}"
        click.echo(f"{'ended' if yes else 'would end'}: {shown(what)}")
    click.echo(f"{len(ended)} lease(s) {'ended' if yes else 'would be ended; add --yes'}")
