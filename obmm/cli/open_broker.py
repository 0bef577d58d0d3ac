# SPDX-License-Identifier: Apache-2.0
"""``obmm open-broker``: nodes for processes without privilege."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import click

from obmm.backend import Backend
from obmm.broker import Broker
from obmm.broker_policy import Policy
from obmm.errors import ObmmError

POLICY = "/etc/obmm/broker.toml"
SOCKET = "/run/obmm/broker.sock"


@click.command("open-broker")
@click.option("--policy", "policy_path", default=POLICY, show_default=True, help="who may open what (TOML)")
@click.option(
    "--socket", "socket_path", type=click.Path(path_type=Path), help="default: broker.sock in the runtime folder"
)
@click.option("--device", help="default: OBMM_DEVICE, else /dev/obmm")
@click.option("--audit", type=click.Path(path_type=Path), help="append the audit log to this file (default: stdout)")
@click.option("--check", is_flag=True, help="read the policy, say what it allows, and stop")
def open_broker(policy_path: str, socket_path: Path, device: str | None, audit: Path | None, check: bool) -> None:
    """Open nodes for processes without privilege, as the policy allows, one audit line each.

    They use it with obmm.open("broker:SOCKET") or OBMM_DEVICE=broker:SOCKET.  Runs until SIGTERM or SIGINT.
    """
    try:
        policy = Policy(policy_path)
        if check:
            _show(policy)
            return
        backend = Backend.parse(device)
        socket_path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write = partial(click.echo, file=audit.open("a", buffering=1)) if audit else click.echo
        broker = Broker(backend, policy, socket_path, audit=write)
    except (ObmmError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: broker.stop())
    with broker:
        click.echo(f"obmm open-broker on {socket_path} for {backend}, {len(policy.rules)} rules", err=True)
        broker.serve()


def _show(policy: Policy) -> None:
    for rule in policy.rules:
        whom = {"users": sorted(rule.users), "groups": sorted(rule.groups)}
        what = {
            "control": rule.control,
            "regions": rule.regions,
            "labels": list(rule.labels),
            "kinds": sorted(rule.kinds),
            "access": "rw" if rule.writable else "r",
        }
        click.echo(f"{rule.name}: {json.dumps(whom)} -> {json.dumps(what)}")
