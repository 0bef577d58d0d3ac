# SPDX-License-Identifier: Apache-2.0
"""``obmm doctor``: is this host ready?"""

from __future__ import annotations

import dataclasses
import json
import time

import click

from obmm.cli.inventory import users_of
from obmm.driver.backend import Backend
from obmm.errors import ObmmError
from obmm.host.check import Check
from obmm.host.doctor import diagnose, worst

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red", "skipped": "bright_black"}


@click.command()
@click.option("--device", help="default: OBMM_DEVICE, else /dev/obmm")
@click.option("--probe", is_flag=True, help="also make a scratch region and see whether ownership takes effect")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def doctor(device: str | None, probe: bool, as_json: bool) -> None:
    """Check this host: driver, permissions, firmware, controllers, windows, limits.

    Has no side effects (but for --probe) and needs no privilege; what only root may read is skipped.  Exit status: 0
    when no check ends with an error, else 1.
    """
    try:
        backend = Backend.parse(device)
    except ObmmError as error:
        raise click.ClickException(str(error)) from error
    started = time.monotonic()
    checks: list[Check] = []
    if not as_json:
        click.echo(f"obmm doctor on {backend}")
    for check in diagnose(backend, users=users_of(backend)):
        checks.append(check)
        if not as_json:
            _show(check)
    if probe:
        checks.append(_probe(backend))
        if not as_json:
            _show(checks[-1])
    verdict = worst(checks)
    if as_json:
        document = {
            "backend": str(backend),
            "emulated": backend.is_emulator,
            "verdict": verdict,
            "seconds": round(time.monotonic() - started, 4),
            "checks": [dataclasses.asdict(check) for check in checks],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        counts = {status: sum(check.status == status for check in checks) for status in _COLOURS}
        click.secho(", ".join(f"{count} {status}" for status, count in counts.items() if count), bold=True)
    raise SystemExit(1 if verdict == "error" else 0)


def _probe(backend: Backend) -> Check:
    from obmm.host.ownership import probe_ownership
    from obmm.region.device import Device

    try:
        with Device(backend) as device:
            return probe_ownership(device)
    except ObmmError as error:
        return Check("ownership", "skipped", f"the device cannot be opened: {error.strerror}")


def _show(check: Check) -> None:
    click.echo(f"  {click.style(f'{check.status:<8}', fg=_COLOURS[check.status])} {check.name:<18} {check.text}")
    if check.fix and check.status != "skipped":
        click.echo(f"  {'':<8} {'':<18} fix: {check.fix}")
