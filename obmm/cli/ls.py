# SPDX-License-Identifier: Apache-2.0
"""``obmm ls``: the regions of this host."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click
from rich.table import Table

from obmm.cli.command import Command
from obmm.cli.inventory import records_of
from obmm.cli.output import console
from obmm.cli.text import cell, shown
from obmm.driver.backend import Backend
from obmm.host.inventory import RegionRecord
from obmm.sizes import format_size

_COLOURS = {"alive": "green", "dead": "red", "unknown": "yellow", "foreign": "dim"}


@click.command(cls=Command)
@click.option("--device", help="default: OBMM_DEVICE, else /dev/obmm")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def ls(device: str | None, as_json: bool) -> None:
    """Regions of this host: size, kind, owner (alive or dead), who maps them, age."""
    backend = Backend.parse(device)
    records = records_of(backend)
    if as_json:
        click.echo(json.dumps({"backend": str(backend), "regions": [as_dict(record) for record in records]}, indent=2))
        return
    out = console()
    table = Table(
        "mem_id", "kind", "size", "label", "owner", "pid", "used by", "age", title=cell(f"regions on {backend}")
    )
    for record in records:
        stamp = record.stamp
        table.add_row(
            str(record.mem_id),
            record.kind + (" (user memory)" if record.user_memory else ""),
            format_size(record.size),
            cell(stamp.label) if stamp else "",
            f"[{_COLOURS[record.owner]}]{record.owner}[/]",
            str(stamp.pid) if stamp else "",
            ", ".join(map(str, record.users or ())) or "-",
            _age(record.age_s),
        )
    if records:
        out.print(table)
    else:
        click.echo(f"no regions on {shown(backend)}")


def as_dict(record: RegionRecord) -> dict[str, Any]:
    """For ``--json``; tokens and addresses of the owner's side are not part of a record."""
    fields = dataclasses.asdict(record)
    if record.stamp is not None:
        fields["stamp"] = {"label": record.stamp.label, "pid": record.stamp.pid, "created": record.stamp.created}
    return fields | {"age_s": record.age_s}


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
