# SPDX-License-Identifier: Apache-2.0
"""Local DRAM: what nothing that reaches further can beat by much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from obmm.bench import content
from obmm.bench.arms.arm import Arm, Kind, Memory, Progress, StoreMemory, need_memory
from obmm.bench.shared_table import AlignedPages
from obmm.rows import GatherEngine, LocalMemory
from obmm.rows.pages import is_huge


class LocalStore(StoreMemory):
    """Private memory of this process, gathered by the same engine as OBMM regions."""

    def __init__(self, array: NDArray[np.uint8], engine: GatherEngine) -> None:
        memory = LocalMemory(array, path="shm")
        super().__init__(memory, engine, "2M" if is_huge(memory.address, memory.nbytes) else "4K")
        self.backend = "local memory"
        self._array = array

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        out[:] = self._array[offset : offset + len(out)]

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._array[offset : offset + len(data)] = data


class LocalArm(Arm):
    """A table in this node's own memory."""

    name, title = "local", "local DRAM"
    kind: Kind = "local"

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        need_memory(nbytes)
        pages, engine = AlignedPages(nbytes), GatherEngine()
        try:
            array = pages.array
            content.fill_array(array, progress)
            store = LocalStore(array, engine)
            yield store
            store._memory.close()
        finally:
            engine.close()
            pages.close()
