# SPDX-License-Identifier: Apache-2.0
"""``obmm engram``: the n-gram tables of a checkpoint, published once for every machine that serves the model."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.progress import DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

import obmm
from obmm.cli.elsewhere import printed, reachable
from obmm.cli.exchange_options import SECONDS, exchange_options, log_to_stderr, protection
from obmm.cli.observing import observed
from obmm.cli.output import bars, console
from obmm.cli.serving import (
    allow_many_clients,
    close_or_tell,
    tell_of_the_dead,
    until_interrupted,
    until_ready_no_reload,
)
from obmm.engram import FAMILIES, Checkpoint, Family, Plan, compare, families_of, find_tables, plan, publish
from obmm.errors import ObmmError
from obmm.exchange import DEFAULT_PORT
from obmm.exchange.call_messages import REGION_NAME
from obmm.integrations.link import TableAddress, TableLink
from obmm.rows import Manifest

_MAP = click.option(
    "--map", "map_file", type=click.Path(exists=True, dir_okay=False), help="TOML with the tensor names of a model"
)


@click.group()
def engram() -> None:
    """Publish the n-gram tables of a checkpoint, look at them, compare them."""


@engram.command("publish")
@click.argument("checkpoint", type=click.Path(exists=True))
@click.option("--name", help="the region's name (default: the checkpoint's folder)")
@click.option("--host", help="address to bind to (default: all; loopback with --plain)")
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="0 picks a free one")
@click.option("--numa", default="0", show_default=True, help="NUMA nodes of the memory, in equal shares: 0,1")
@click.option("--pmd", is_flag=True, help="map in 2 MiB blocks")
@click.option("--term", default=60.0, show_default=True, help="lease term in seconds")
@click.option(
    "--journal", type=click.Path(), help="lease journal (default: ~/.local/state/obmm/leases-HOST-PORT.journal)"
)
@click.option(
    "--grace", type=SECONDS, default=30.0, show_default=True, help="seconds that importers have to let go at the end"
)
@_MAP
@exchange_options
def publish_command(
    checkpoint: str,
    name: str | None,
    host: str | None,
    port: int,
    numa: str,
    pmd: bool,
    term: float,
    journal: str | None,
    grace: float,
    map_file: str | None,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Stream the tables of CHECKPOINT into this node's memory, and serve them until interrupted.

    CHECKPOINT is a folder with safetensors files, one such file, or its index.  Memory is taken only when all shards are
    there and whole.
    """
    log_to_stderr(verbose)
    until_ready_no_reload()
    try:
        nodes = _nodes(numa)
        how = protection(key, tls, plain)
        with Checkpoint(checkpoint) as opened:
            planned = plan(opened, find_tables(opened, _families(map_file)), model=name or "")
            allow_many_clients()
            label = name or str(planned.model["model"])
            if not REGION_NAME.fullmatch(label):
                raise click.UsageError(
                    f"{label!r} is not a name for a region: 1..128 of A-Z a-z 0-9 . _ : / @ + -; use --name"
                )
            with obmm.open(device) as local, ExitStack() as regions:
                tell_of_the_dead(local)
                forced = False
                # bound first: a port that is taken is found before minutes of copying
                server = obmm.serve({}, host=host, port=port, term_s=term, journal=journal, **how)
                try:
                    region, manifest, seconds = _fill(local, opened, planned, label, nodes, pmd)
                    regions.callback(lambda: region.close(force=forced))
                    server.publish(label, region, manifest.to_dict())
                    facts = {
                        "backend": str(local.backend),
                        "emulated": local.backend.is_emulator,
                        "addresses": list(server.addresses),
                        "port": server.port,
                        "mode": server.mode.name.lower(),
                        "region": label,
                        "bytes": manifest.nbytes,
                        "seconds": round(seconds, 3),
                        "fingerprint": manifest.model["engram"]["fingerprint"],
                        "inspect": f"obmm engram inspect {reachable(server)}/{label} {printed(how)}",
                    }
                    with observed(server, None):
                        forced = until_interrupted(server, how, grace, partial(_announce, facts, planned, as_json))
                finally:
                    if not server.closed:  # cut short: who has a lease already is asked to let go
                        close_or_tell(server, grace)
    except ObmmError as error:
        raise click.ClickException(error.strerror or str(error)) from error


@engram.command("inspect")
@click.argument("source")
@_MAP
@exchange_options
def inspect_command(
    source: str,
    map_file: str | None,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Say which tables SOURCE has: a checkpoint, or a published table as HOST:PORT/NAME.  Nothing is allocated."""
    try:
        if Path(source).exists():
            with Checkpoint(source) as opened:
                planned = plan(opened, find_tables(opened, _families(map_file)))
            facts = _described(Manifest(planned.specs, model=planned.model))
            facts["tensors"] = sum(len(part.tensors) for table in planned.sources for part in table.parts)
        else:
            address = TableAddress.parse(source)
            with obmm.connect(address.server, **_one_key(key, tls, plain)) as peer, peer.fetch(address.name) as lease:
                facts = _described(Manifest.from_dict(lease.manifest))
    except ObmmError as error:
        raise click.ClickException(error.strerror or str(error)) from error
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _print_tables(facts)


@engram.command("verify")
@click.argument("source")
@click.argument("checkpoint", type=click.Path(exists=True))
@click.option("--samples", default=10_000, show_default=True, help="rows of each table to compare")
@click.option("--all", "everything", is_flag=True, help="every row")
@_MAP
@exchange_options
def verify_command(
    source: str,
    checkpoint: str,
    samples: int,
    everything: bool,
    map_file: str | None,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Import the table SOURCE (HOST:PORT/NAME) and compare rows with CHECKPOINT; status 1 when one differs."""
    if verbose:
        log_to_stderr(verbose)
    differences: list[dict[str, Any]] = []
    compared = 0
    try:
        with Checkpoint(checkpoint) as opened:
            tables = find_tables(opened, _families(map_file))
            how = _one_key(key, tls, plain)
            with TableLink(TableAddress.parse(source, device=device, **how)) as link:
                store = link.store
                _same_shape(store.manifest, plan(opened, tables))
                with _progress(MofNCompleteColumn(), quiet=as_json) as progress:
                    for table in tables:
                        count = None if everything else max(2, samples)
                        task = progress.add_task(
                            table.name, total=table.rows if count is None else min(count, table.rows)
                        )

                        def advance(rows: int, task: Any = task) -> None:
                            nonlocal compared
                            compared += rows
                            progress.advance(task, rows)

                        for each in compare(opened, table, store.gather, samples=count, progress=advance):
                            differences.append({"table": each.table, "row": each.row, "rows": each.rows})
                facts = {
                    "source": source,
                    "rows": compared,
                    "bytes_equal": not differences,
                    "differences": differences[:20],
                }
    except ObmmError as error:
        raise click.ClickException(error.strerror or str(error)) from error
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    elif not differences:
        click.echo(f"verify ok: {compared:,} rows are the checkpoint's")
    else:
        first = differences[0]
        click.echo(
            f"verify: {sum(each['rows'] for each in differences):,} of {compared:,} rows differ, the first one is row "
            f"{first['row']:,} of {first['table']}: another checkpoint was published, or one of the two is damaged",
            err=True,
        )
    sys.exit(1 if differences else 0)


def _families(map_file: str | None) -> tuple[Family, ...]:
    return FAMILIES if map_file is None else families_of(Path(map_file))


def _nodes(text: str) -> tuple[int, ...]:
    try:
        nodes = tuple(int(part) for part in text.split(","))
    except ValueError:
        nodes = ()
    if not nodes or min(nodes) < 0 or len(set(nodes)) != len(nodes):
        raise click.BadParameter(f"{text!r} is not a list of NUMA nodes: 0,1", param_hint="--numa")
    return nodes


def _one_key(key: tuple[str, ...], tls: tuple[str, str, str] | None, plain: bool) -> dict[str, Any]:
    how = protection(key[:1], tls, plain)
    return {**how, "key": how["key"][0] if how["key"] else None}


def _progress(*columns: Any, quiet: bool = False) -> Progress:
    return bars(
        *Progress.get_default_columns()[:2],
        *columns,
        TimeRemainingColumn(),
        transient=True,
        quiet=quiet,
    )


def _fill(
    local: obmm.Device, opened: Checkpoint, planned: Plan, label: str, nodes: tuple[int, ...], pmd: bool
) -> tuple[obmm.ExportedRegion, Manifest, float]:
    with _progress(DownloadColumn(), TransferSpeedColumn()) as progress:
        tasks = {source.name: progress.add_task(source.name, total=source.nbytes) for source in planned.sources}
        began = time.perf_counter()
        region, manifest = publish(
            local,
            opened,
            planned,
            label=label,
            numa=nodes,
            pmd=pmd,
            progress=lambda table, nbytes: progress.advance(tasks[table], nbytes),
        )
        return region, manifest, time.perf_counter() - began


def _announce(facts: dict[str, Any], planned: Plan, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts))
    else:
        rate = facts["bytes"] / max(facts["seconds"], 1e-9) / 1e9
        click.echo(
            f"serving {facts['region']!r}: {len(planned.specs)} table(s), {facts['bytes']:,} bytes in {facts['seconds']:.1f} s "
            f"({rate:.2f} GB/s), backend={facts['backend']}\n"
            f"  on {', '.join(facts['addresses'])} in {facts['mode']} mode, fingerprint {facts['fingerprint'][:16]}\n"
            f"  elsewhere: {facts['inspect']}"
        )
    sys.stdout.flush()


def _described(manifest: Manifest) -> dict[str, Any]:
    about = manifest.model.get("engram", {})
    return {
        "model": manifest.model.get("model"),
        "family": about.get("family"),
        "fingerprint": about.get("fingerprint"),
        "bytes": manifest.nbytes,
        "tables": [
            {
                "table": spec.table_id,
                "layer": spec.layer_id,
                "rows": spec.n_rows,
                "row_bytes": spec.row_bytes,
                "dtype": spec.dtype,
                "values": spec.values,
                "scale": spec.scale_layout,
                "columns": len(spec.head_offsets) or None,
                "bytes": spec.nbytes,
            }
            for spec in manifest.tables
        ],
    }


def _print_tables(facts: dict[str, Any]) -> None:
    table = Table("table", "layer", "rows", "row bytes", "values", "scale", "columns", "GiB")
    for each in facts["tables"]:
        table.add_row(
            str(each["table"]),
            str(each["layer"]),
            f"{each['rows']:,}",
            str(each["row_bytes"]),
            f"{each['values']} {each['dtype']}",
            each["scale"] or "-",
            str(each["columns"] or "?"),
            f"{each['bytes'] / 2**30:.2f}",
        )
    console().print(table)
    mark = f", fingerprint {facts['fingerprint'][:16]}" if facts["fingerprint"] else ""
    click.echo(f"model {facts['model']}, family {facts['family']}, {facts['bytes']:,} bytes{mark}")


def _same_shape(manifest: Manifest, planned: Plan) -> None:
    served = {spec.table_id: (spec.n_rows, spec.row_bytes) for spec in manifest.tables}
    wanted: dict[Any, tuple[int, int]] = {spec.table_id: (spec.n_rows, spec.row_bytes) for spec in planned.specs}
    if served != wanted:
        raise click.ClickException(
            f"another model's tables: {served} are served, the checkpoint has {wanted} (rows, bytes of a row)"
        )
