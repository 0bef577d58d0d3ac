# SPDX-License-Identifier: Apache-2.0
"""Tables on one node, measured from another: ``obmm bench serve`` and ``obmm bench run HOST:PORT``."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm import urma
from obmm.bench import content, mortal
from obmm.bench.arms.row_server import Partner, RowServer
from obmm.bench.compiled import ffi, library
from obmm.bench.far import Far
from obmm.bench.footprint import GRANULE
from obmm.bench.partners import FlagEcho, HandOver
from obmm.bench.row_protocol import SECRET_BYTES, bound, new_secret
from obmm.driver.process import boot_id
from obmm.errors import ObmmError
from obmm.exchange import Refusal, RequestRefusedError
from obmm.exchange.calls import Caller
from obmm.exchange.keys import load_keys
from obmm.exchange.net import split_address

FORMAT, VERSION = "obmm-bench-table", 3
TABLE, SMALL, OWNED, FLAGS = "bench", "bench-small", "bench-owned", "bench-flags"
PMD = "-pmd"
"""The same again in 2 MiB blocks; flags are only there in pages."""


@dataclass(frozen=True, slots=True)
class Served:
    """A served table of `nbytes`; `rows` is where rows are answered over TCP.

    Close the server before the regions go: on hardware, removing one under an importer is a machine-level error.
    """

    nbytes: int
    server: obmm.Server
    rows: tuple[str, int]


def serving(
    stack: ExitStack,
    nbytes: int,
    host: str | None,
    port: int,
    device: str | None,
    how: dict[str, Any],
    progress: Callable[[str, float], None],
) -> Served:
    """Export tables in pages and in 2 MiB blocks, publish them, answer rows over TCP; `stack` ends it.

    The row server admits only clients that have the secret of the table's manifest, and in key mode the key as well.
    """
    node = stack.enter_context(obmm.open(device))
    # bound first, and the keys are read: what is unfit is found before minutes of filling
    journal = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="obmm-bench-"))) / "leases.journal"
    server = obmm.serve({}, host=host, port=port, journal=journal, **how)
    stack.callback(server.close, timeout=0, force=True)
    keys = load_keys(how["key"], 2) if how.get("key") else (None,)
    regions: dict[str, obmm.ExportedRegion] = {}
    for number, suffix in enumerate(("", PMD)):
        for name, size in ((TABLE, nbytes), (SMALL, GRANULE), (OWNED, GRANULE)):

            def show(share: float, name: str = name + suffix, number: int = number) -> None:
                progress(f"fill {name}", (number + share) / 2)

            regions[name + suffix] = _filled(stack, node, name + suffix, size, suffix == PMD, show)
    # never mapped cacheable: the driver would then refuse it non-cacheable
    regions[FLAGS] = stack.enter_context(node.export_region(GRANULE, header=False, label=FLAGS))

    @contextmanager
    def table() -> Iterator[NDArray[np.uint8]]:
        mapping = regions[TABLE].map("r")
        try:
            library().bench_touch(ffi.cast("uint8_t *", mapping.address), mapping.nbytes)
            yield mapping.as_numpy()
        finally:
            mapping.close(force=True)

    partners: dict[bytes, Partner] = {
        b"flag": FlagEcho(regions[FLAGS]),
        b"hand": HandOver(regions[FLAGS], regions[OWNED]),
        b"hpmd": HandOver(regions[FLAGS], regions[OWNED + PMD]),
    }
    secret = new_secret()
    rows = RowServer(table, tuple(bound(secret, key) for key in keys), rows_host(host, how), partners)
    stack.callback(rows.close)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "nbytes": nbytes,
        "rows_port": rows.port,
        "secret": secret.hex(),
        "boot": boot_id().hex(),
    }
    for name, region in regions.items():
        server.publish(name, region, manifest)
    stack.callback(server.close, timeout=5.0, force=True)  # before the regions go
    _register(stack, server, nbytes, progress)
    return Served(nbytes, server, (rows.address, rows.port))


def _register(stack: ExitStack, server: obmm.Server, nbytes: int, progress: Callable[[str, float], None]) -> None:
    """The table once more, in registered memory, where there is a library for it: an obmm mapping cannot be registered."""
    try:
        context = stack.enter_context(urma.Context())
    except ObmmError as error:
        server.answer_calls(urma.CALLS, _NoUrma(error.strerror or str(error)))
        return
    table = context.buffer(nbytes, "r")
    content.fill_array(table, lambda share: progress(f"fill {TABLE} for URMA", share))
    urma.publish(server).add(TABLE, context.segment_of(table)[0], context.queue())
    server.answer_calls(mortal.CALLS, mortal.Mortals(stack))


class _NoUrma:
    """Says why there is no segment."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def call(self, caller: Caller, body: bytes) -> bytes:
        raise RequestRefusedError(Refusal.NO_REGION, f"the far node has no URMA: {self._reason}"[:500])


def rows_host(host: str | None, how: dict[str, Any]) -> str:
    """Where the exchange listens."""
    if host:
        return host
    return "127.0.0.1" if how.get("plain") else "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _filled(
    stack: ExitStack, node: obmm.Device, name: str, nbytes: int, pmd: bool, progress: Callable[[float], None]
) -> obmm.ExportedRegion:
    region = stack.enter_context(node.export_region(nbytes, header=False, pmd=pmd, label=name))
    with region.map("rw") as mapping:
        content.fill(nbytes, mapping.write, progress)
    return region


def connected(stack: ExitStack, address: str, how: dict[str, Any]) -> Far:
    """The node that serves tables at `address`."""
    key = None
    if how.get("key"):
        key = load_keys(how["key"], 2)[0]
        how = {**how, "key": key}
    peer = stack.enter_context(obmm.connect(address, **how))
    with peer.fetch(TABLE) as lease:
        manifest, length = lease.manifest, lease.handle.length
    try:
        nbytes, port, secret, boot = _understood(manifest, length)
    except (KeyError, TypeError, ValueError) as error:
        raise obmm.ObmmArgumentError(
            22, f"{address} serves no benchmark table ({error}); fix: run this `obmm bench serve` there"
        ) from error
    return Far(peer, nbytes, (split_address(address)[0], port), bound(secret, key), boot == boot_id())


def _understood(manifest: Mapping[str, Any], length: int) -> tuple[int, int, bytes, bytes]:
    """(bytes of table, port of the row server, secret, boot of the host) of a manifest, which is not trusted.  KeyError, TypeError, ValueError."""
    if (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
        raise ValueError("another format or version")
    nbytes, port, secret = int(manifest["nbytes"]), int(manifest["rows_port"]), bytes.fromhex(manifest["secret"])
    boot = bytes.fromhex(manifest["boot"])
    if not GRANULE <= nbytes <= length or not 0 < port < 1 << 16 or len(secret) != SECRET_BYTES:
        raise ValueError(
            f"{nbytes} bytes in a region of {length}, rows at port {port}, a secret of {len(secret)} bytes"
        )
    return nbytes, port, secret, boot
