# SPDX-License-Identifier: Apache-2.0
"""The SDK path: an object of the ubs-mem SDK, gathered by the same engine; listed with its reason without a library."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm import sdk
from obmm.bench import content
from obmm.bench.arms.arm import Arm, Kind, Memory, Objects, Progress, StoreMemory, Unavailable
from obmm.errors import ObmmError
from obmm.rows import GatherEngine

TITLES = {"cacheable": "SDK, cacheable", "nc": "SDK, non-cacheable", "pmd": "SDK, PMD (non-cacheable at importers)"}
PMD_FLAGS = 0x28
"""MMAP_HUGETLB_PMD is valid only together with ONLY_IMPORT_NONCACHE (SDK specification 4.2)."""
FLAGS = {"cacheable": int(sdk.Flag.CACHE), "nc": int(sdk.Flag.NONCACHE), "pmd": PMD_FLAGS}
TRACER = "UBSM_SDK_TRACE_ENABLE"
_UNIT = 128 << 20


class SdkMemory(StoreMemory):
    """The units of an object as one range."""

    def __init__(
        self, units: sdk.ObjectMemory, engine: GatherEngine, pmd: bool, objects: Objects, facts: dict[str, str]
    ) -> None:
        super().__init__(units.rows_memory, engine, "2M" if pmd else "4K")
        self.backend, self.facts = f"{facts['kind']} {facts['library']}", facts
        self._units, self._objects = units, objects

    def objects(self) -> Objects:
        return self._objects

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
        if os.environ.get(TRACER):
            raise Unavailable(f"{TRACER} is set: with the SDK's tracer on, results are void; fix: unset it")
        nbytes = -(-nbytes // _UNIT) * _UNIT
        with ExitStack() as stack:
            engine = GatherEngine()
            stack.callback(engine.close)
            try:
                session = stack.enter_context(sdk.connect())  # silences the SDK's log, before anything else
                self.kind = "stand-in" if session.kind == "stand-in" else "hardware"
                here = session.local_host().name
                others = [host.name for host in session.hosts() if host.name != here]
                provider = others[0] if others else None

                def create(size: int) -> sdk.SharedObject:
                    name = f"obmm-bench-{os.getpid()}-{secrets.token_hex(4)}"
                    return sdk.SharedObject.create(session, name, size, provider=provider, flags=FLAGS[self._mode])

                table = create(nbytes)
                stack.callback(table.delete)
                device = stack.enter_context(obmm.open(self._device))
                units = stack.enter_context(table.regions("rw", device=device))
                unit = table.units().unit
            except ObmmError as error:
                raise Unavailable(error.strerror or str(error)) from error
            content.fill(nbytes, units.write, progress)
            facts = {
                "library": str(session.library.path),
                "kind": session.kind,
                "mode": f"daemon, flags {FLAGS[self._mode]:#x}",
                "unit": f"{unit} bytes",
                "role": f"importer, the provider is {provider}" if provider else "exporter: no other host is there",
                "map": "every timed map is the first of its object on this node",
                "log level": "4 (critical: silent)",
                "tracer": "off",
                "NUMA binding": _numa_binding(),
            }
            yield SdkMemory(units, engine, self._mode == "pmd", Objects(create, unit, session.calls.counters), facts)


def _numa_binding() -> str:
    """The CPUs and memory nodes that this process may use."""
    allowed = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if "_allowed_list" in line
    )
    return f"CPUs {allowed['Cpus_allowed_list'].strip()}, memory nodes {allowed['Mems_allowed_list'].strip()}"
