# SPDX-License-Identifier: Apache-2.0
"""The SDK path: an object of the ubs-mem SDK, gathered by the same engine; listed with its reason without a library."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.bench import content
from obmm.bench.arms.arm import Arm, Kind, Memory, Progress, StoreMemory, Unavailable
from obmm.errors import ObmmError
from obmm.rows import GatherEngine

TITLES = {"cacheable": "SDK, cacheable", "nc": "SDK, non-cacheable", "pmd": "SDK, PMD (non-cacheable at importers)"}
PMD_FLAGS = 0x28
"""MMAP_HUGETLB_PMD is valid only together with ONLY_IMPORT_NONCACHE (SDK specification 4.2)."""
_UNIT = 128 << 20


class SdkMemory(StoreMemory):
    """The units of an object as one range."""

    def __init__(
        self, units: obmm.sdk.ObjectMemory, engine: GatherEngine, backend: str, pmd: bool, create: Any
    ) -> None:
        super().__init__(units.rows_memory, engine, "2M" if pmd else "4K")
        self.backend = backend
        self._units, self._create = units, create

    def new_object(self) -> Any:
        return self._create(_UNIT)

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        out[:] = np.frombuffer(self._units.read(offset, len(out)), np.uint8)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._units.write(offset, data)


class SdkArm(Arm):
    """`mode` is "cacheable", "nc" or "pmd".  The library is the one that `obmm.sdk.load` finds; a stand-in is marked."""

    kind: Kind = "hardware"

    def __init__(self, mode: str, device: str) -> None:
        self.name, self.title = f"sdk-{mode}", TITLES[mode]
        self._mode, self._device = mode, device

    @contextmanager
    def open(self, nbytes: int, progress: Progress) -> Iterator[Memory]:
        from obmm import sdk

        flags = {"cacheable": sdk.Flag.CACHE, "nc": sdk.Flag.NONCACHE, "pmd": PMD_FLAGS}
        nbytes = -(-nbytes // _UNIT) * _UNIT
        with ExitStack() as stack:
            engine = GatherEngine()
            stack.callback(engine.close)
            try:
                session = stack.enter_context(sdk.connect())
                self.kind = "stand-in" if session.kind == "stand-in" else "hardware"
                here = session.local_host().name
                others = [host.name for host in session.hosts() if host.name != here]
                provider = others[0] if others else None

                def create(size: int) -> sdk.SharedObject:
                    name = f"obmm-bench-{os.getpid()}-{secrets.token_hex(4)}"
                    return sdk.SharedObject.create(session, name, size, provider=provider, flags=flags[self._mode])

                table = create(nbytes)
                stack.callback(table.delete)
                device = stack.enter_context(obmm.open(self._device))
                units = stack.enter_context(table.regions("rw", device=device))
            except ObmmError as error:
                raise Unavailable(str(error)) from error
            content.fill(nbytes, units.write, progress)
            yield SdkMemory(units, engine, f"{session.kind} {session.library}", self._mode == "pmd", create)
