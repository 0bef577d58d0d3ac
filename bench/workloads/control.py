# SPDX-License-Identifier: Apache-2.0
"""The control plane: what making and removing a region costs, and how soon a fetched handle can be loaded through."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import obmm
from obmm.bench import content
from obmm.bench.arms.arm import Memory
from obmm.bench.footprint import GRANULE, Footprint
from obmm.bench.presets import Preset
from obmm.bench.timing import Series
from obmm.bench.workloads.workload import Case, Workload

SDK_UNIT = 128 << 20
STEPS = ("export", "map", "unmap", "unexport", "whole cycle")


class ExportCycle(Workload):
    """export..map..unmap..unexport of a raw region; each step on its own, then all of them."""

    name, title = "control", "export..map..unmap..unexport"
    plane = "control"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for step in STEPS:
            yield Case(step, GRANULE, working_set=GRANULE)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        exporter, _, cache, pmd = memory.nodes()
        clock, verified, step = time.perf_counter_ns, 0, STEPS.index(case.label)
        for number in range(preset.cycles + 1):
            marks = [clock()]
            region = exporter.export_region(GRANULE, header=False, pmd=pmd, label="bench")
            marks.append(clock())
            mapping = region.map("rw", cache=cache)
            marks.append(clock())
            mapping.store("<u8", 0, number)
            if mapping.load("<u8", 0) != number or mapping.load("<u8", GRANULE - 8) != 0:
                raise content.VerificationError("a new region does not hold what was stored, or was not zero")
            verified += 16
            marks.append(clock())
            mapping.close()
            marks.append(clock())
            region.close()
            marks.append(clock())
            took = (marks[1] - marks[0], marks[2] - marks[1], marks[4] - marks[3], marks[5] - marks[4])
            if number:  # one untimed cycle first
                series.add(took[step] if step < len(took) else sum(took))
        return verified


SDK_STEPS = ("allocate", "map", "unmap", "deallocate", "whole cycle")


class AllocateCycle(Workload):
    """allocate..map..unmap..deallocate of an SDK object of one unit; each step on its own, then all of them."""

    name, title = "control-sdk", "allocate..map..unmap..deallocate"
    plane = "control"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for step in SDK_STEPS:
            yield Case(step, SDK_UNIT, working_set=SDK_UNIT)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        clock, step = time.perf_counter_ns, SDK_STEPS.index(case.label)
        for number in range(preset.cycles + 1):
            marks = [clock()]
            shared = memory.new_object()
            marks.append(clock())
            shared.map("none")
            marks.append(clock())
            if shared.nbytes != SDK_UNIT or not shared.address:
                raise content.VerificationError(f"{shared!r} is not what was asked for")
            marks.append(clock())
            shared.unmap()
            marks.append(clock())
            shared.delete()
            marks.append(clock())
            took = (marks[1] - marks[0], marks[2] - marks[1], marks[4] - marks[3], marks[5] - marks[4])
            if number:  # one untimed cycle first
                series.add(took[step] if step < len(took) else sum(took))
        return 0


class FetchToLoad(Workload):
    """From asking the exchange for a handle to the first loaded word: fetch, import, map, load."""

    name, title = "fetch", "handle fetch to first load"
    plane = "control"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case("fetch, import, map, load", 8, working_set=GRANULE)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        exporter, importer, cache, pmd = memory.nodes()
        seen = 0
        with exporter.export_region(GRANULE, header=False, pmd=pmd, label="bench") as region:
            with region.map("rw") as mapping:
                mapping.store("<u8", 8, int(content.FACTOR))
            journal = Path(tempfile.mkdtemp(prefix="obmm-bench-")) / "leases.journal"
            with obmm.serve({"bench": region}, host="127.0.0.1", port=0, plain=True, journal=journal) as server:
                with obmm.connect(f"127.0.0.1:{server.port}", plain=True) as peer:
                    for number in range(preset.cycles + 1):
                        began = time.perf_counter_ns()
                        lease = peer.fetch("bench")
                        with importer.import_region(lease, cache=cache, pmd=pmd) as imported:
                            with imported.map("r") as mapping:
                                seen = int(mapping.load("<u8", 8))
                                took = time.perf_counter_ns() - began
                        if seen != int(content.FACTOR):
                            raise content.VerificationError(f"the first load through a fetched handle gave {seen:#x}")
                        if number:
                            series.add(took)
            journal.unlink(missing_ok=True)
            journal.parent.rmdir()
        return 8 * preset.cycles
