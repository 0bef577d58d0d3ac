# SPDX-License-Identifier: Apache-2.0
"""What `obmm emulate status` prints for people: tables of nodes, regions and decoder entries, and armed faults."""

from __future__ import annotations

from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from obmm.cli.output import console


def print_status(result: dict[str, Any]) -> None:
    """`result` is the answer of the control request ``status``."""
    click.echo(
        f"fabric {result['name']!r} on {result['socket']}: pid {result['pid']}, up {result['uptime_s']:.0f} s, "
        f"{result['clients']} clients, {result['open_files']} open files"
    )
    if result.get("modelled"):  # a server that was started by an older obmm has no such key
        click.echo(f"MODELLED: imports wait as {result['modelled']} is calculated to (docs/fabric.md)")
    if result["internal_errors"]:
        click.echo(f"{result['internal_errors']} calls failed inside the emulator itself: see its log", err=True)
    out = console()
    nodes = result["nodes"]
    _print(out, "", _NODES, [_node(name, node) for name, node in nodes.items()])
    regions = [(name, region) for name, node in nodes.items() for region in node["regions"]]
    _print(out, "regions", _REGIONS, [_region(name, region) for name, region in regions])
    entries = [(name, entry) for name, node in nodes.items() for entry in node["decoder"]]
    _print(out, "decoder entries", _ENTRIES, [_entry(name, entry) for name, entry in entries])
    faults = [(name, fault, value) for name, node in nodes.items() for fault, value in node["faults"].items()]
    _print(out, "armed faults", _FAULTS, [[name, fault, _value(value)] for name, fault, value in faults])


_NODES = ("node", "controllers (cna)", "module", "regions", "bytes", "mapped", "windows", "processes")
_REGIONS = ("node", "mem_id", "kind", "bytes", "open files", "mappings", "mapped by (pid)")
_ENTRIES = ("node", "local address", "bytes", "owner (cna)", "tokenid", "uba")
_FAULTS = ("node", "fault", "value")


def _node(name: str, node: dict[str, Any]) -> list[str]:
    regions = node["regions"]
    return [
        name,
        " ".join(hex(c["cna"]) for c in node["controllers"]),
        "loaded" if node["loaded"] else "absent",
        str(len(regions)),
        str(sum(r["size"] for r in regions)),
        str(sum(r["mappings"] for r in regions)),
        str(node["windows"]),
        " ".join(map(str, node["processes"])),
    ]


def _region(name: str, region: dict[str, Any]) -> list[str]:
    users = " ".join(map(str, region["users"]))
    return [
        name,
        str(region["mem_id"]),
        region["kind"],
        str(region["size"]),
        str(region["opens"]),
        str(region["mappings"]),
        users,
    ]


def _entry(name: str, entry: dict[str, int]) -> list[str]:
    return [
        name,
        hex(entry["pa"]),
        str(entry["length"]),
        hex(entry["owner_cna"]),
        hex(entry["tokenid"]),
        hex(entry["uba"]),
    ]


def _value(value: Any) -> str:
    return "" if value is True else str(value)


def _print(out: Console, title: str, columns: tuple[str, ...], rows: list[list[str]]) -> None:
    """One table; none without rows."""
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)
