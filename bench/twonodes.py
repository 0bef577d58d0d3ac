# SPDX-License-Identifier: Apache-2.0
"""A table on one node, measured from another: ``obmm bench serve`` and ``obmm bench run HOST:PORT``."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import obmm
from obmm.abi import DEV_PATH
from obmm.bench import content
from obmm.bench.arms.arm import Arm
from obmm.bench.arms.direct import Nodes
from obmm.bench.arms.row_server import RowServer
from obmm.bench.footprint import Footprint
from obmm.bench.presets import Preset
from obmm.bench.run import Watcher, arms
from obmm.exchange.net import split_address

TABLE, PMD_TABLE = "bench", "bench-pmd"


@dataclass(frozen=True, slots=True)
class Served:
    """A served table of `nbytes`."""

    nbytes: int
    port: int
    tcp_port: int

    def wait(self) -> None:
        """Until the process is interrupted."""
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


def serving(
    stack: ExitStack,
    preset: Preset,
    host: str | None,
    port: int,
    device: str | None,
    how: dict[str, Any],
    watcher: Watcher,
) -> Served:
    """Export the table in pages and in 2 MiB blocks, publish both, answer rows over TCP; `stack` ends it.

    The row server authenticates nobody: it holds nothing but a known pattern.
    """
    nbytes = Footprint.choose(preset.footprint).nbytes
    node = stack.enter_context(obmm.open(device))
    regions = {}
    for number, name in enumerate((TABLE, PMD_TABLE)):
        pmd = name == PMD_TABLE
        region = stack.enter_context(node.export_region(nbytes, header=False, pmd=pmd, label=name))
        with region.map("rw") as mapping:

            def show(share: float, number: int = number, name: str = name) -> None:
                watcher.step(f"fill {name}", (number + share) / 2)

            content.fill(nbytes, mapping.write, show)
        regions[name] = region
    view = stack.enter_context(regions[TABLE].map("r"))
    rows = RowServer(view.as_numpy(), host or ("127.0.0.1" if how.get("plain") else "0.0.0.0"))
    stack.callback(rows.close)
    manifest = {"format": "obmm-bench-table", "version": 1, "nbytes": nbytes, "tcp_port": rows.port}
    published = {name: (region, manifest) for name, region in regions.items()}
    server = stack.enter_context(obmm.serve(published, host=host, port=port, **how))
    return Served(nbytes, server.port, rows.port)


def connected(stack: ExitStack, address: str, device: str | None, how: dict[str, Any]) -> tuple[tuple[Arm, ...], int]:
    """(arms, bytes of the table) with the OBMM and TCP arms reaching the table served at `address`."""
    if isinstance(how.get("key"), list):
        how = {**how, "key": how["key"][0]}
    peer = stack.enter_context(obmm.connect(address, **how))
    with peer.fetch(TABLE) as lease:
        manifest = lease.manifest
    if manifest.get("format") != "obmm-bench-table":
        raise obmm.ObmmArgumentError(22, f"{address} serves no benchmark table; fix: run `obmm bench serve` there")
    local = device or os.environ.get("OBMM_DEVICE") or DEV_PATH
    tcp = (split_address(address)[0], int(manifest["tcp_port"]), int(manifest["nbytes"]))
    return arms(Nodes(local, local, peer), tcp), tcp[2]
