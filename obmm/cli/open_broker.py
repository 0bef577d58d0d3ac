# SPDX-License-Identifier: Apache-2.0
"""``obmm open-broker``: nodes for processes without privilege."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from contextlib import suppress
from pathlib import Path

import click

from obmm.broker.broker import Broker
from obmm.broker.policy import Policy
from obmm.cli.command import Command
from obmm.cli.logs import line_writer, tell
from obmm.cli.notify import Watchdog, notify
from obmm.cli.observing import watched
from obmm.cli.serving import LOOK_S, until_ready_no_reload
from obmm.cli.text import shown
from obmm.driver.backend import Backend, ensure_runtime_directory

POLICY = "/etc/obmm/broker.toml"
SOCKET = "broker.sock"


@click.command("open-broker", cls=Command)
@click.option("--policy", "policy_path", default=POLICY, show_default=True, help="who may open what (TOML)")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="default: /run/obmm/broker.sock as root, else broker.sock in the runtime folder",
)
@click.option("--device", help="default: OBMM_DEVICE, else /dev/obmm")
@click.option("--audit", type=click.Path(path_type=Path), help="append the audit log to this file (default: stdout)")
@click.option("--metrics", metavar="HOST:PORT", help="/metrics and /healthz there (default: nowhere)")
@click.option("--check", is_flag=True, help="read the policy, say what it allows, and stop")
def open_broker(
    policy_path: str, socket_path: Path | None, device: str | None, audit: Path | None, metrics: str | None, check: bool
) -> None:
    """Open nodes for processes without privilege, as the policy allows, one audit line each.

    They use it with obmm.open("broker:SOCKET") or OBMM_DEVICE=broker:SOCKET.  Runs until SIGTERM or SIGINT; SIGHUP reads
    the policy again.
    """
    policy = Policy(policy_path)
    if check:
        _show(policy)
        return
    until_ready_no_reload()
    backend = Backend.parse(device)
    if backend.broker is not None:
        raise click.UsageError("a broker does not stand on another broker: name the device itself")
    place = socket_path or (Path("/run/obmm") if os.geteuid() == 0 else ensure_runtime_directory()) / SOCKET
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    with (
        Broker(backend, policy, place, audit=line_writer(audit)) as broker,
        watched(broker, metrics, lambda: [broker.figures]),
    ):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: signals.put(number))
        ended: list[BaseException] = []
        thread = threading.Thread(target=_run, args=(broker, ended), name="obmm-broker", daemon=True)
        thread.start()
        tell(f"obmm open-broker on {place} for {backend}, {len(policy.rules)} rules")
        notify("READY=1")
        watchdog = Watchdog(lambda: broker.alive)
        while thread.is_alive():
            watchdog.look()
            with suppress(queue.Empty):
                if signals.get(timeout=watchdog.patience(LOOK_S)) != signal.SIGHUP:
                    break
                _reload(broker, policy_path)
        notify("STOPPING=1")
    if ended:
        raise click.ClickException(f"the broker ended by itself: {ended[0]}; it serves no more")


def _run(broker: Broker, ended: list[BaseException]) -> None:
    try:
        broker.serve()
    except BaseException as error:
        ended.append(error)


def _reload(broker: Broker, path: str) -> None:
    try:
        broker.reload(Policy(path))
    except Exception as error:  # whatever the file holds and the system says, who is served stays served
        tell(f"the policy stays as it was: {getattr(error, 'strerror', None) or repr(error)}")
    else:
        tell("policy read again")


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
        click.echo(f"{shown(rule.name)}: {json.dumps(whom)} -> {json.dumps(what)}")
