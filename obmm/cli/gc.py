# SPDX-License-Identifier: Apache-2.0
"""``obmm gc``: remove what dead owners left, and nothing that cannot be proven dead."""

from __future__ import annotations

import json

import click

from obmm.cli.command import Command
from obmm.cli.give_back import give_back
from obmm.cli.inventory import all_released, records_of
from obmm.cli.ls import as_dict
from obmm.cli.text import shown
from obmm.driver.backend import Backend
from obmm.errors import ObmmError
from obmm.host.inventory import Removal, plan_removal, removal_lock
from obmm.region.device import Device
from obmm.windows.provider import Window

CONSEQUENCE = (
    "Removing an export that another host still imports is a machine-level error there: its loads may fault, "
    "and in the worst case the host goes down (driver specification 8 and 17)."
)


@click.command(cls=Command)
@click.option("--device", help="default: OBMM_DEVICE, else /dev/obmm")
@click.option("--yes", is_flag=True, help="remove; without it only the plan is shown")
@click.option("--exports", is_flag=True, help="also exports of the dead whose leases are not known to be released")
@click.option("--force", is_flag=True, help="needed with --exports: accept the consequence")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def gc(device: str | None, yes: bool, exports: bool, force: bool, as_json: bool) -> None:
    """Remove the regions of owners that are proven dead, and release the leases that they held on other nodes.

    Without --yes it only shows what it would do.  Leases are those of imports on this device, and those that were never
    imported anywhere.
    """
    backend = Backend.parse(device)
    if exports:
        click.secho(CONSEQUENCE, fg="red", err=True)
    # numbers are reused at once: while we hold the lock, no other obmm process removes what the plan names
    with removal_lock():
        records = records_of(backend)
        plan = list(plan_removal(records, exports=exports, force=force, all_released=all_released))
        failures = _carry_out(backend, plan) if yes else {}
        left = [each for each in records if each.mem_id in failures or not _removed(plan, each.mem_id)]
        released = give_back(str(backend), left, really=yes)
    unreleased = sum(bool(each.problem) for each in released)
    if as_json:
        rows = [
            as_dict(step.record)
            | {"verdict": step.verdict, "reason": step.reason, "error": failures.get(step.record.mem_id)}
            for step in plan
        ]
        leases = [
            {
                "lease": each.lease.id[:4].hex(),
                "region": each.lease.region,
                "server": each.lease.server,
                "error": each.problem,
            }
            for each in released
        ]
        click.echo(json.dumps({"backend": str(backend), "removed": yes, "regions": rows, "leases": leases}, indent=2))
    else:
        count = sum(step.verdict == "remove" for step in plan)
        if not yes:
            click.echo("nothing is changed without --yes; this is what would be:")
        for step in plan:
            _show(step, yes, failures.get(step.record.mem_id))
        click.echo(
            f"{count - len(failures) if yes else count} of {len(plan)} regions {'removed' if yes else 'would be removed'} on {backend}"
        )
        for each in released:
            what = "failed: " + shown(each.problem) if each.problem else "released" if yes else "would be released"
            where = "" if each.lease.device else ", never imported"
            click.echo(
                f"  lease {each.lease.id[:4].hex()} of {shown(each.lease.region)} at {shown(each.lease.server)}{where}: {what}"
            )
    raise SystemExit(1 if failures or unreleased else 0)


def _removed(plan: list[Removal], mem_id: int) -> bool:
    """It is gone, or would be."""
    return any(step.record.mem_id == mem_id and step.verdict == "remove" for step in plan)


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
    click.echo(f"  {record.kind} {record.mem_id} {shown(label)!r}: {what} ({shown(failure or step.reason)})")
