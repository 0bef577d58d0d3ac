# SPDX-License-Identifier: Apache-2.0
"""``obmm serve``: export a NumPy file and hand its handle to whoever asks over TCP."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import resource
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

import obmm
from obmm.cli.exchange_options import exchange_options, log_to_stderr, protection
from obmm.device import Device
from obmm.errors import ObmmError
from obmm.exchange import DEFAULT_PORT, LeasesOutstandingError, Server
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.npy import NpyFile
from obmm.exported import ExportedRegion
from obmm.header import RegionHeader

log = logging.getLogger("obmm.exchange.server")


@click.command()
@click.argument("table", type=click.Path(), required=False)
@click.option("--name", help="the region's name (default: the file's, without .npy)")
@click.option("--host", help="address to bind to (default: all; loopback with --plain)")
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="0 picks a free one")
@click.option("--numa", default=0, show_default=True, help="NUMA node of the memory")
@click.option("--pmd", is_flag=True, help="map in 2 MiB blocks")
@click.option("--term", default=60.0, show_default=True, help="lease term in seconds")
@click.option("--journal", type=click.Path(), help="lease journal (default: ~/.local/state/obmm/leases-PORT.journal)")
@click.option("--grace", default=30.0, show_default=True, help="seconds that importers have to let go at the end")
@click.option("--status", "status_of", metavar="HOST:PORT", help="show the state of a running server instead")
@exchange_options
def serve(
    table: str | None,
    name: str | None,
    host: str | None,
    port: int,
    numa: int,
    pmd: bool,
    term: float,
    journal: str | None,
    grace: float,
    status_of: str | None,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Export TABLE.npy (any dtype and shape but objects), and serve its handle until interrupted.

    The first interrupt asks every importer to let go and waits for that; the second one gives up on those that did
    not, which on hardware is a machine-level error for them.  SIGHUP reads the key files again.
    """
    log_to_stderr(verbose)
    try:
        if status_of is not None:
            _show_status(status_of, protection(key[:1], tls, plain), as_json)
            return
        if table is None:
            raise click.UsageError("name a TABLE.npy to serve, or --status HOST:PORT")
        how = protection(key, tls, plain)
        file = NpyFile(table)
        _allow_many_clients()
        with obmm.open(device) as local:
            region = _export(local, file, name or file.path.stem, numa, pmd)
            forced = False
            try:
                manifest = _fill(region, file)
                published = {region.label: (region, manifest.to_json())}
                with obmm.serve(published, host=host, port=port, term_s=term, journal=journal, **how) as server:
                    _announce(server, local, region.label, manifest, as_json)
                    forced = until_interrupted(server, how["key"], grace)
            finally:
                region.close(force=forced)
    except ObmmError as error:
        raise click.ClickException(error.strerror or str(error)) from error


def _export(local: Device, file: NpyFile, name: str, numa: int, pmd: bool) -> ExportedRegion:
    manifest = file.manifest
    if manifest.nbytes + RegionHeader.SIZE > 1 << 62:
        raise click.ClickException(f"{file.path}: {manifest.nbytes} bytes are more than any node has")
    try:
        return local.export_region(max(1, manifest.nbytes), numa=numa, pmd=pmd, label=name)
    except ObmmError as error:
        if error.errno not in (errno.ENOMEM, errno.ENOSPC):
            raise
        raise click.ClickException(
            f"{file.path} has {manifest.nbytes} bytes, and NUMA node {numa} of {local.backend} has not that much memory "
            f"to export. Choose another node with --numa, enlarge the pool, or split the table.\n{error.strerror}"
        ) from error


def _fill(region: ExportedRegion, file: NpyFile) -> ArrayManifest:
    """Copy the file into the region and publish it; the manifest with the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with region.map("rw") as mapping, Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(file.path.name, total=file.manifest.nbytes)
        offset = 0
        with mapping.writing():
            for chunk in file.chunks():
                mapping.write(offset, chunk)
                digest.update(chunk)
                offset += len(chunk)
                progress.update(task, completed=offset)
        mapping.publish()
    return replace(file.manifest, sha256=digest.hexdigest())


def _announce(server: Server, local: Device, name: str, manifest: ArrayManifest, as_json: bool) -> None:
    facts = {
        "backend": str(local.backend),
        "emulated": local.backend.is_emulator,
        "addresses": list(server.addresses),
        "port": server.port,
        "mode": server.mode.name.lower(),
        "region": name,
        "bytes": manifest.nbytes,
        "journal": str(server.journal),
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(
            f"serving {name!r}: {manifest.dtype} {list(manifest.shape)}, {manifest.nbytes} bytes, backend={facts['backend']}\n"
            f"  on {', '.join(server.addresses)} in {facts['mode']} mode\n"
            f"  elsewhere: obmm fetch HOST:{server.port} {name} --rows 0"
        )
    sys.stdout.flush()


def until_interrupted(server: Server, keys: list[Path] | None, grace: float) -> bool:
    """Serve until SIGINT or SIGTERM, then close; True when a second one gave leases up."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if keys:
        signal.signal(signal.SIGHUP, lambda *_: _reload(server, keys))
    stop.wait()
    stop.clear()
    closing = threading.Thread(target=_attempt, args=(server, grace), daemon=True)
    closing.start()
    while closing.is_alive() and not stop.is_set():
        closing.join(0.1)
    if not server.closed and not stop.is_set():
        click.echo("some importers have not let go; interrupt once more to give them up", err=True)
    while not server.closed and not stop.wait(0.2):
        with suppress(LeasesOutstandingError):
            server.close(timeout=0.5)
    return bool(server.close(timeout=0, force=True))


def _reload(server: Server, keys: list[Path]) -> None:
    try:
        server.rekey(keys)
    except ObmmError as error:
        log.error("the keys stay as they were: %s", error.strerror)
    else:
        log.info("keys read again")


def _attempt(server: Server, grace: float) -> None:
    try:
        server.close(timeout=grace)
    except LeasesOutstandingError as error:
        click.echo(error.strerror, err=True)


def _allow_many_clients() -> None:
    """One descriptor per client: take what the hard limit gives."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _show_status(address: str, how: dict[str, Any], as_json: bool) -> None:
    how["key"] = how["key"][0] if how["key"] else None
    with obmm.connect(address, **how) as peer:
        status = peer.status()
    if as_json:
        click.echo(json.dumps(status, indent=2))
        return
    server = status["server"]
    click.echo(
        f"{address}: {server['mode']} mode, up {server['uptime_s']:.0f} s, {server['connections']} connection(s), "
        f"{server['leases']} lease(s), refused: {server['refused'] or 'nothing'}{', closing' if server['closing'] else ''}"
    )
    regions = Table("region", "bytes", "state", "leases")
    leases = Table("lease", "region", "holder", "certificate", "state", "connected", "expires")
    for item in status["items"]:
        if item["kind"] == "region":
            counts = ", ".join(f"{count} {state}" for state, count in item["leases"].items()) or "none"
            regions.add_row(item["region"], f"{item['bytes']:,}", item["state"], counts)
        else:
            expires = "-" if item["expires_in_s"] is None else f"in {item['expires_in_s']:.0f} s"
            holder = f"{item['client'] or 'unnamed'}@{item['address']}"
            connected = "yes" if item["connected"] else "no"
            leases.add_row(
                item["lease"], item["region"], holder, item["identity"] or "-", item["state"], connected, expires
            )
    console = Console()
    console.print(regions)
    if leases.row_count:
        console.print(leases)
