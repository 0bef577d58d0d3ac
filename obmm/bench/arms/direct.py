# SPDX-License-Identifier: Apache-2.0
"""Direct OBMM: a region imported by this package, cacheable (CC), non-cacheable (NC), or cacheable in 2 MiB blocks (PMD)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.bench import twonodes
from obmm.bench.arms.arm import Arm, Control, Kind, Memory, Progress, StoreMemory, Unavailable
from obmm.bench.far import Far
from obmm.bench.own_far import NoFarNode
from obmm.driver.abi import Cache
from obmm.driver.modelled import fabric_of
from obmm.errors import ObmmError
from obmm.rows import GatherEngine
from obmm.rows.mapped import MappedMemory

TITLES = {"cc": "direct OBMM, CC", "nc": "direct OBMM, NC", "pmd": "direct OBMM, PMD"}
FarNode = Callable[[Progress], Far]
"""Connects to the node that holds the tables, or starts it.  NoFarNode with the reason when there is none."""


class RegionMemory(StoreMemory):
    """An imported region of another process."""

    def __init__(self, mapping: obmm.Mapping, engine: GatherEngine, control: Control) -> None:
        super().__init__(MappedMemory(mapping, owned=False), engine, "2M" if control.pmd else "4K")
        self._mapping, self._control = mapping, control

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        self._mapping.read_into(out, offset)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._mapping.write(offset, data)

    def control(self) -> Control:
        return self._control


class DirectArm(Arm):
    """`mode` is "cc", "nc" or "pmd"; `device` is the measuring node, `far` the node that exports."""

    def __init__(self, mode: str, device: str, far: FarNode) -> None:
        self.name, self.title = f"obmm-{mode}", TITLES[mode]
        parsed = obmm.Backend.parse(device)
        emulated, fabric = parsed.is_emulator, fabric_of(parsed.socket)
        self.kind: Kind = "hardware" if not emulated else "emulated" if fabric is None else "modelled"
        self._fabric = "" if fabric is None else fabric.name
        self.backend = "emulator" if emulated else device
        self._device, self._far, self._pmd = device, far, mode == "pmd"
        self._cache: Cache = "nc" if mode == "nc" else "cc"

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        with ExitStack() as stack:
            engine = GatherEngine()
            stack.callback(engine.close)
            try:
                far = self._far(progress)
                device = stack.enter_context(obmm.open(self._device))
                lease = far.peer.fetch(twonodes.TABLE + (twonodes.PMD if self._pmd else ""))
                region = stack.enter_context(
                    device.import_region(lease, cache=self._cache, pmd=self._pmd, label="bench")
                )
                mapping = stack.enter_context(region.map("rw"))
            except NoFarNode as reason:
                raise Unavailable(str(reason)) from reason
            except ObmmError as error:
                raise Unavailable(error.strerror or str(error)) from error
            memory = RegionMemory(mapping, engine, Control(device, self._cache, self._pmd, far))
            if self._fabric:
                memory.facts = {"fabric": self._fabric}
            yield memory
