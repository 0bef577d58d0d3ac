# SPDX-License-Identifier: Apache-2.0
"""``obmm fetch``: import a served table, read rows of it, write what was read."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import IO, Any

import click
import numpy as np
import numpy.typing as npt

import obmm
from obmm.cli.command import Command
from obmm.cli.exchange_options import exchange_options, log_to_stderr, protection, revoked_option
from obmm.exchange import Peer
from obmm.exchange.array_manifest import ArrayManifest
from obmm.files import array_writer
from obmm.files.source import CHUNK
from obmm.mapping.mapping import Mapping
from obmm.region.imported import ImportedRegion

ROWS_AT_ONCE = 1 << 30
"""Bytes that --rows may hold in memory."""


def _parse_rows(ctx: click.Context, param: click.Parameter, value: str | None) -> list[range] | None:
    """``3,17,42`` and ranges: ``0:8`` is the first eight."""
    if value is None:
        return None
    rows = []
    for part in value.split(","):
        first, colon, last = part.strip().partition(":")
        try:
            start = int(first)
            stop = int(last) if colon else start + 1
        except ValueError:
            raise click.BadParameter(f"{part!r:.80} is neither a row number nor a range first:last") from None
        if not 0 <= start < stop:
            raise click.BadParameter(f"{part!r:.80}: rows are counted from 0, and a range ends behind its start")
        rows.append(range(start, stop))
    return rows


@click.command(cls=Command)
@click.argument("address")
@click.argument("name", required=False)
@click.option("--rows", callback=_parse_rows, help="3,17,42 or ranges 0:8 of the first axis")
@click.option("--all", "everything", is_flag=True, help="the whole array, its SHA-256 compared")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="write it: .npy, .npz, .safetensors or .pt, by the suffix"
)
@exchange_options
@revoked_option
def fetch(
    address: str,
    name: str | None,
    rows: list[range] | None,
    everything: bool,
    output: str | None,
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    revoked: str | None,
    plain: bool,
    device: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Import region NAME of the server at ADDRESS (host or host:port) and read from it with plain loads.

    Without NAME the server's only region, or a list of what it has.  Without --rows and --all only what it is.
    """
    if verbose:
        log_to_stderr(verbose)
    if rows is not None and everything:
        raise click.UsageError("either --rows or --all")
    how = protection(key[:1], tls, plain, revoked)
    how["key"] = how["key"][0] if how["key"] else None
    if output is not None:
        _check_output(Path(output))
    with obmm.connect(address, **how) as peer:
        chosen = name or _only_region(peer, as_json)
        if chosen is None:
            return
        with obmm.open(device) as local, peer.import_region(chosen, local) as region:
            facts = _read(region, chosen, rows, everything, output, quiet=as_json)
            facts = {"backend": str(local.backend), "emulated": local.backend.is_emulator, **facts}
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("fetch ok: " + " ".join(f"{key}={value}" for key, value in facts.items() if value is not None))


def _check_output(target: Path) -> None:
    """Found before any work: a folder that is not there, or not ours."""
    if not target.parent.is_dir():
        raise click.ClickException(f"{target}: there is no folder {target.parent}; make it, or name another")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise click.ClickException(f"{target}: the folder {target.parent} cannot be written to; name another")
    if target.exists() and not target.is_file():
        raise click.ClickException(f"{target} is not a regular file and would be replaced; name another")


def _only_region(peer: Peer, as_json: bool) -> str | None:
    """The name of the server's only region; otherwise the listing is printed."""
    regions = peer.list()
    if len(regions) == 1:
        return next(iter(regions))
    if as_json:
        click.echo(json.dumps([{"region": each.name, "bytes": each.length} for each in regions.values()]))
    elif regions:
        click.echo("the server has several regions; name one:")
        for each in regions.values():
            click.echo(f"  {each.name}  {each.length:,} bytes")
    else:
        click.echo("the server has no region")
    return None


def _read(
    region: ImportedRegion, name: str, rows: list[range] | None, everything: bool, output: str | None, *, quiet: bool
) -> dict[str, Any]:
    lease = region.lease
    manifest = ArrayManifest.parse(lease.manifest if isinstance(lease, obmm.Lease) else {})
    if manifest.nbytes > region.nbytes:
        raise click.ClickException(
            f"the manifest describes {manifest.nbytes} bytes, and the region has {region.nbytes}: not the same table"
        )
    facts: dict[str, Any] = {
        "region": name,
        "dtype": str(manifest.dtype),
        "shape": list(manifest.shape),
        "bytes": manifest.nbytes,
        "output": output,
    }
    if everything or (rows is None and output):
        with region.map("r") as mapping:
            return facts | _read_everything(mapping, name, manifest, output)
    if rows is not None:
        with region.map("r") as mapping:
            return facts | _read_rows(mapping, name, manifest, rows, output, quiet=quiet)
    return facts


def _read_everything(mapping: Mapping, name: str, manifest: ArrayManifest, output: str | None) -> dict[str, Any]:
    digest = hashlib.sha256()

    def copy(out: IO[bytes] | None) -> None:
        buffer = bytearray(min(CHUNK, manifest.nbytes))
        for offset in range(0, manifest.nbytes, CHUNK):
            piece = memoryview(buffer)[: min(CHUNK, manifest.nbytes - offset)]
            mapping.read_into(piece, offset)
            digest.update(piece)
            if out is not None:
                out.write(piece)
        if manifest.sha256 is not None and digest.hexdigest() != manifest.sha256:
            raise click.ClickException("what was read is not what was published: SHA-256 differs")

    began = time.perf_counter()
    if output is None:
        copy(None)
    else:
        with array_writer(output, manifest, name) as file:
            copy(file)
    seconds = time.perf_counter() - began
    verified = "sha256" if manifest.sha256 is not None else None
    return {"rows": manifest.rows, "bytes_read": manifest.nbytes, "verified": verified, "seconds": round(seconds, 4)}


def _in_words(rows: npt.NDArray[Any]) -> str:
    """As NumPy prints them; texts of characters that do not exist, which it cannot print, as bytes."""
    try:
        return str(rows)
    except (ValueError, SystemError, OverflowError):
        return str(rows.view(np.dtype((np.void, rows.dtype.itemsize))))


def _read_rows(
    mapping: Mapping, name: str, manifest: ArrayManifest, rows: list[range], output: str | None, *, quiet: bool
) -> dict[str, Any]:
    wrong = next((part for part in rows if part.stop > manifest.rows), None)
    if wrong is not None:
        first = max(wrong.start, manifest.rows)
        raise click.ClickException(f"row {first} does not exist: the array has rows 0..{manifest.rows - 1}")
    count = sum(len(part) for part in rows)
    width = manifest.row_bytes
    if count * width > ROWS_AT_ONCE:
        raise click.ClickException(
            f"{count} rows are {count * width:,} bytes; read more than {ROWS_AT_ONCE:,} with --all -o FILE"
        )
    data = bytearray(width * count)
    view = memoryview(data)
    began = time.perf_counter()
    place = 0
    for part in rows if width else ():
        size = len(part) * width
        mapping.read_into(view[place : place + size], part.start * width)
        place += size
    seconds = time.perf_counter() - began
    if output is not None:
        with array_writer(output, manifest, name, count) as file:
            file.write(data)
    elif not quiet:
        click.echo(_in_words(manifest.array(data, count)))
    return {"rows": count, "bytes_read": len(data), "seconds": round(seconds, 6)}
