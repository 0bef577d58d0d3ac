# SPDX-License-Identifier: Apache-2.0
"""``obmm serve``: export a NumPy file and hand its handle out over TCP."""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Collection
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

import obmm
from obmm.cli.command import Command
from obmm.cli.elsewhere import other_node, printed, reachable
from obmm.cli.exchange_options import SECONDS, exchange_options, log_to_stderr, protection, revoked_option
from obmm.cli.logs import audit_to, tell
from obmm.cli.observing import check_metrics, observed
from obmm.cli.output import bars
from obmm.cli.serve_status import show_status
from obmm.cli.serving import (
    allow_many_clients,
    close_or_tell,
    tell_of_the_dead,
    until_interrupted,
    until_ready_no_reload,
)
from obmm.cli.text import shown
from obmm.errors import ObmmError
from obmm.exchange import DEFAULT_PORT, Access, Server
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.call_messages import REGION_NAME
from obmm.files import ArraySource, export_for, fill, open_arrays
from obmm.region.device import Device
from obmm.region.exported import ExportedRegion


@click.command(cls=Command)
@click.argument("tables", type=click.Path(), nargs=-1, metavar="FILE...")
@click.option("--tensor", "tensors", multiple=True, help="of a file with several: this one (repeatable; default: all)")
@click.option(
    "--name", help="the region's name, for one array (default: the tensor's, or the file's without its suffix)"
)
@click.option(
    "--host", multiple=True, help="address to bind to, also several times (default: all; loopback with --plain)"
)
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="0 picks a free one")
@click.option("--numa", default=0, show_default=True, help="NUMA node of the memory")
@click.option("--pmd", is_flag=True, help="map in 2 MiB blocks")
@click.option("--term", default=60.0, show_default=True, help="lease term in seconds")
@click.option(
    "--journal", type=click.Path(), help="lease journal (default: ~/.local/state/obmm/leases-HOST-PORT.journal)"
)
@click.option(
    "--access", type=click.Path(), help="TOML: named keys, and who may fetch which region (docs/operators.md)"
)
@click.option("--audit", type=click.Path(path_type=Path), help="append a line of JSON per grant, release and refusal")
@click.option("--metrics", metavar="HOST:PORT", help="/metrics and /healthz there (default: nowhere)")
@click.option(
    "--grace", type=SECONDS, default=30.0, show_default=True, help="seconds that importers have to let go at the end"
)
@click.option("--status", "status_of", metavar="HOST:PORT", help="show the state of a running server instead")
@exchange_options
@revoked_option
def serve(
    tables: tuple[str, ...],
    tensors: tuple[str, ...],
    name: str | None,
    host: tuple[str, ...],
    port: int,
    numa: int,
    pmd: bool,
    term: float,
    journal: str | None,
    access: str | None,
    audit: Path | None,
    metrics: str | None,
    grace: float,
    status_of: str | None,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    revoked: str | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Export the arrays of FILE... and serve their handles until interrupted.

    A FILE is a .safetensors file, a checkpoint's folder or *.safetensors.index.json, a .npy, .npz or .pt (weights only):
    any type and shape but Python objects.  Each array is a region with its own name.

    The first interrupt asks every importer to let go and waits for that; the second one gives up on those that did
    not, which on hardware is a machine-level error for them.  SIGHUP reads keys, certificates and rules again.
    """
    log_to_stderr(verbose)
    if status_of is not None:
        _show_status(status_of, protection(key[:1], tls, plain, revoked), as_json)
        return
    if not tables:
        raise click.UsageError("name a FILE to serve (.safetensors, .npy, .npz, .pt), or --status HOST:PORT")
    until_ready_no_reload()
    # Everything that can be wrong is found before any work: names, keys, files, the port, the journal.
    how = protection(key, tls, plain, revoked, access=access)
    check_metrics(metrics)
    arrays = _chosen(tables, tensors, name)
    audit_to(audit)
    allow_many_clients()
    with obmm.open(device) as local, ExitStack() as regions:
        tell_of_the_dead(local)
        exported: dict[str, ExportedRegion] = {}
        forced = False
        server = obmm.serve({}, host=host, port=port, term_s=term, journal=journal, **how)
        try:
            with observed(server, metrics):
                for label, array in arrays.items():
                    exported[label] = export_for(local, array, label, numa=numa, pmd=pmd)
                manifests = _fill(exported, arrays)
                for label, region in exported.items():
                    server.publish(label, region, manifests[label].to_json())
                _tell_of_idle_rules(access, exported)
                announce = partial(_announce, server, local, manifests, how, as_json)
                forced = until_interrupted(server, how, grace, announce)
        finally:
            for region in exported.values():
                regions.callback(region.close, force=forced)
            if not server.closed:  # cut short: who has a lease already is asked to let go
                close_or_tell(server, grace)


def _tell_of_idle_rules(access: str | None, names: Collection[str]) -> None:
    """A rule for a region that is not served here may be a slip of the pen."""
    if access is None:
        return
    with suppress(ObmmError):  # it was read when the server began; it may have changed since
        for pattern in dict.fromkeys(each for rule in Access.load(access).rules or () for each in rule.regions):
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                tell(f"{access}: a rule is for {shown(pattern)}, and no region here is called so: {', '.join(names)}")


def _chosen(paths: tuple[str, ...], tensors: tuple[str, ...], name: str | None) -> dict[str, ArraySource]:
    """The arrays to serve by the names of their regions; two of one name are refused, and what no manifest can say."""
    arrays = [array for path in paths for array in open_arrays(path, tensors)]
    if name is not None and len(arrays) != 1:
        raise click.UsageError(f"--name is for one array, and these are {len(arrays)}; choose one with --tensor")
    chosen: dict[str, ArraySource] = {}
    for array in arrays:
        label = name or array.name
        if label in chosen:
            raise click.UsageError(
                f"two arrays are called {label!r} ({chosen[label].path}, {array.path}); serve them apart"
            )
        if not REGION_NAME.fullmatch(label):
            raise click.UsageError(
                f"{label!r} is not a name for a region: 1..128 of A-Z a-z 0-9 . _ : / @ + -; use --name"
            )
        chosen[label] = array
    return chosen


def _fill(regions: dict[str, ExportedRegion], arrays: dict[str, ArraySource]) -> dict[str, ArrayManifest]:
    """Copy every array into its region; the manifests by name."""
    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    manifests = {}
    with bars(*columns, transient=True) as progress:
        for name, array in arrays.items():
            task = progress.add_task(escape(name), total=array.manifest.nbytes)
            manifests[name] = fill(regions[name], array, lambda done, task=task: progress.update(task, completed=done))  # type: ignore[misc]
    return manifests


def _announce(
    server: Server, local: Device, manifests: dict[str, ArrayManifest], how: dict[str, Any], as_json: bool
) -> None:
    first = next((name for name, manifest in manifests.items() if manifest.rows), next(iter(manifests)))
    rows = " --rows 0" if manifests[first].rows else ""  # an array without rows has no row 0
    elsewhere = f"{other_node(local)}obmm fetch {reachable(server)} {first}{rows} {printed(how, first)}"
    facts = {
        "backend": str(local.backend),
        "emulated": local.backend.is_emulator,
        "addresses": list(server.addresses),
        "port": server.port,
        "mode": server.mode.name.lower(),
        "region": first,
        "bytes": sum(manifest.nbytes for manifest in manifests.values()),
        "regions": {
            name: {"dtype": str(manifest.dtype), "shape": list(manifest.shape), "bytes": manifest.nbytes}
            for name, manifest in manifests.items()
        },
        "journal": str(server.journal),
        "fetch": elsewhere,
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        for name, manifest in manifests.items():
            click.echo(f"serving {name!r}: {manifest.dtype} {list(manifest.shape)}, {manifest.nbytes} bytes")
        click.echo(f"  on {', '.join(server.addresses)} in {facts['mode']} mode, backend={facts['backend']}")
        click.echo(f"  elsewhere: {elsewhere}")
    sys.stdout.flush()


def _show_status(address: str, how: dict[str, Any], as_json: bool) -> None:
    how["key"] = how["key"][0] if how["key"] else None
    with obmm.connect(address, **how) as peer:
        status = peer.status()
    if as_json:
        click.echo(json.dumps(status, indent=2))
    else:
        show_status(address, status)
