# SPDX-License-Identifier: Apache-2.0
"""``obmm gc``: remove what dead owners left, and nothing that cannot be proven dead."""

from __future__ import annotations

import json

import click

from obmm.backend import Backend
from obmm.cli.inventory import all_released, records_of
from obmm.cli.ls import as_dict
from obmm.device import Device
from obmm.errors import ObmmError
from obmm.inventory import Removal, plan_removal, removal_lock
from obmm.window import Window

CONSEQUENCE = (
    "Removing an export that another host still imports is a machine-level error there: its loads may fault, "
    "and in the worst case the host goes down (driver specification 8 and 17)."
)


@click.command()
@click.option("--device", help="default: OBMM_DEVICE, else /dev/obmm")
@click.option("--yes", is_flag=True, help="remove; without it only the plan is shown")
@click.option("--exports", is_flag=True, help="also exports of the dead whose leases are not known to be released")
@click.option("--force", is_flag=True, help="needed with --exports: accept the consequence")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def gc(device: str | None, yes: bool, exports: bool, force: bool, as_json: bool) -> None:
    """List, and with --yes remove, the regions of owners that are proven dead."""
    try:
        backend = Backend.parse(device)
        if exports:
            click.secho(CONSEQUENCE, fg="red", err=True)
        # numbers are reused at once: while we hold the lock, nobody else of obmm removes what the plan names
        with removal_lock():
            plan = list(plan_removal(records_of(backend), exports=exports, force=force, all_released=all_released))
            failures = _carry_out(backend, plan) if yes else {}
    except (ObmmError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        rows = [
            as_dict(step.record)
            | {"verdict": step.verdict, "reason": step.reason, "error": failures.get(step.record.mem_id)}
            for step in plan
        ]
        click.echo(json.dumps({"backend": str(backend), "removed": yes, "regions": rows}, indent=2))
    else:
        for step in plan:
            _show(step, yes, failures.get(step.record.mem_id))
        left = sum(step.verdict == "remove" for step in plan)
        click.echo(
            f"{left - len(failures) if yes else left} of {len(plan)} regions {'removed' if yes else 'would be removed'} on {backend}"
        )
    raise SystemExit(1 if failures else 0)


def _carry_out(backend: Backend, plan: list[Removal]) -> dict[int, str]:
    """Remove imports first, then exports -> mem_id: why it stayed."""
    failures = {}
    with Device(backend) as device:
        for step in sorted(
            (step for step in plan if step.verdict == "remove"), key=lambda step: step.record.kind == "export"
        ):
            record = step.record
            try:
                if record.kind == "export":
                    device.driver.unexport(record.mem_id)
                    continue
                device.driver.unimport(record.mem_id)
                if record.pa is not None:
                    device.windows.release(Window(record.pa, record.size, "cc"))
            except ObmmError as error:
                failures[record.mem_id] = str(error)
    return failures


def _show(step: Removal, yes: bool, failure: str | None) -> None:
    record = step.record
    label = record.stamp.label if record.stamp else ""
    if failure:
        what = click.style("failed", fg="red")
    elif step.verdict == "remove":
        what = click.style("removed" if yes else "would remove", fg="green")
    else:
        what = step.verdict
    click.echo(f"  {record.kind} {record.mem_id} {label!r}: {what} ({failure or step.reason})")
