# SPDX-License-Identifier: Apache-2.0
"""Direct OBMM: a region imported by this package, cacheable (CC), non-cacheable (NC), or cacheable in 2 MiB blocks (PMD)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.bench import content
from obmm.bench.arms.arm import Arm, Kind, Memory, Progress, StoreMemory, Unavailable
from obmm.errors import ObmmError
from obmm.rows import GatherEngine
from obmm.rows.mapped import MappedMemory
from obmm.window import Cache

TITLES = {"cc": "direct OBMM, CC", "nc": "direct OBMM, NC", "pmd": "direct OBMM, PMD"}


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where regions are exported and imported: device texts of `obmm.open`, the same twice for loopback.

    `peer` is a connection to ``obmm bench serve``: regions are then imported from there.
    """

    exporter: str
    importer: str
    peer: obmm.Peer | None = None

    @property
    def emulated(self) -> bool:
        return obmm.Backend.parse(self.importer).is_emulator


class RegionMemory(StoreMemory):
    """An imported region."""

    def __init__(
        self, mapping: obmm.Mapping, engine: GatherEngine, ends: tuple[obmm.Device, obmm.Device] | None, pmd: bool
    ) -> None:
        super().__init__(MappedMemory([mapping], owned=False), engine, "2M" if pmd else "4K")
        self._mapping, self._ends, self._pmd = mapping, ends, pmd

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        self._mapping.read_into(out, offset)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        if not self._mapping.writable:
            raise Unavailable("the serving node publishes its table read only")
        self._mapping.write(offset, data)

    def nodes(self) -> tuple[obmm.Device, obmm.Device, Cache, bool]:
        if self._ends is None:
            raise Unavailable("needs both nodes in one process; the exporter runs elsewhere")
        return (*self._ends, self._mapping.cache, self._pmd)


class DirectArm(Arm):
    """`mode` is "cc", "nc" or "pmd"."""

    def __init__(self, mode: str, nodes: Nodes) -> None:
        self.name, self.title = f"obmm-{mode}", TITLES[mode]
        self.kind: Kind = "emulated" if nodes.emulated else "hardware"
        self._nodes, self._pmd = nodes, mode == "pmd"
        self._cache: Cache = "nc" if mode == "nc" else "cc"
        self.backend = "emulator" if nodes.emulated else nodes.importer

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        with ExitStack() as stack:
            engine = GatherEngine()
            stack.callback(engine.close)
            try:
                mapping, ends = self._mapped(stack, nbytes, progress)
            except ObmmError as error:
                raise Unavailable(str(error)) from error
            yield RegionMemory(mapping, engine, ends, self._pmd)

    def _mapped(
        self, stack: ExitStack, nbytes: int, progress: Progress
    ) -> tuple[obmm.Mapping, tuple[obmm.Device, obmm.Device] | None]:
        nodes = self._nodes
        importer = stack.enter_context(obmm.open(nodes.importer))
        if nodes.peer:
            name = "bench-pmd" if self._pmd else "bench"
            lease = nodes.peer.fetch(name)
            region = stack.enter_context(importer.import_region(lease, cache=self._cache, pmd=self._pmd))
            return stack.enter_context(region.map("r")), None
        exporter = stack.enter_context(obmm.open(nodes.exporter))
        region = stack.enter_context(exporter.export_region(nbytes, header=False, pmd=self._pmd, label="bench"))
        with region.map("rw") as mapping:
            content.fill(nbytes, mapping.write, progress)
        imported = stack.enter_context(
            importer.import_region(region.handle(), cache=self._cache, pmd=self._pmd, label="bench")
        )
        return stack.enter_context(imported.map("rw")), (exporter, importer)
