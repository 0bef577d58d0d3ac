# SPDX-License-Identifier: Apache-2.0
"""The state of a running server, as a table: ``obmm serve --status`` and ``obmm lease ls``."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from obmm.cli.output import console
from obmm.cli.text import cell, shown

_LONGEST_S = 1e12  # what is longer, or no number, is not shown


def show_status(where: str, status: dict[str, Any]) -> None:
    """Whatever a server says is shown; what it does not say is a dash."""
    server = status["server"]
    refused = ", ".join(f"{shown(count)} {shown(why)}" for why, count in _dict(server.get("refused")).items())
    closing = ", closing" if server.get("closing") else ""
    click.echo(
        f"{shown(where)}: {shown(server.get('mode', '-'))} mode, up {seconds(server.get('uptime_s'))}, "
        f"{shown(server.get('connections', '-'))} connection(s), {shown(server.get('leases', '-'))} lease(s), "
        f"refused: {refused or 'nothing'}{closing}"
    )
    dropped = {name: count for name, count in _dict(server.get("lines_dropped")).items() if count}
    if dropped:
        click.echo(
            "lines not written: " + ", ".join(f"{shown(count)} {shown(name)}" for name, count in dropped.items())
        )
    regions = Table("region", "bytes", "state", "leases")
    leases = Table("lease", "region", "holder", "identity", "state", "connected", "expires")
    for item in status["items"]:
        if item.get("kind") == "region":
            counts = ", ".join(f"{shown(count)} {shown(state)}" for state, count in _dict(item.get("leases")).items())
            size = item.get("bytes")
            number = f"{size:,}" if isinstance(size, int) else "-"
            regions.add_row(
                cell(item.get("region", "-")), cell(number), cell(item.get("state", "-")), cell(counts or "none")
            )
        else:
            leases.add_row(
                cell(item.get("lease", "-")),
                cell(item.get("region", "-")),
                cell(f"{item.get('client') or 'unnamed'}@{item.get('address', '-')}"),
                cell(item.get("identity") or "-"),
                cell(item.get("state", "-")),
                "yes" if item.get("connected") else "no",
                "-" if item.get("expires_in_s") is None else f"in {seconds(item['expires_in_s'])}",
            )
    out = console()
    out.print(regions)
    if leases.row_count:
        out.print(leases)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def seconds(value: object) -> str:
    """Whole seconds, or a dash for what no clock says."""
    if not isinstance(value, int | float) or not abs(value) < _LONGEST_S:
        return "-"
    return f"{value:.0f} s"
