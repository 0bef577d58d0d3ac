# SPDX-License-Identifier: Apache-2.0
"""The control plane: what making and removing a region costs, and how soon a fetched handle can be loaded through.

Each times every step on its own and the whole cycle.  The first cycle is not timed; its round trips and system calls
are counted.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import obmm
from obmm.bench import content, twonodes
from obmm.bench.arms.arm import Control, Memory, Objects
from obmm.bench.footprint import GRANULE, Footprint
from obmm.bench.presets import Preset
from obmm.bench.system_calls import SystemCalls, counting
from obmm.bench.timing import Counts, Series
from obmm.bench.workloads.workload import WHOLE, Case, Workload
from obmm.driver.abi import Cache
from obmm.errors import ObmmError

SDK_UNIT = 128 << 20


class ExportCycle(Workload):
    """export..map..unmap..unexport of a raw region: of one granule, and of the SDK's unit to compare with it."""

    name, title = "control", "export..map..unmap..unexport"
    plane = "control"
    steps = ("export", "map", "unmap", "unexport")

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        for nbytes in (GRANULE, SDK_UNIT):
            yield Case(f"{WHOLE}, {nbytes >> 20} MiB", nbytes, working_set=nbytes)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        control = memory.control()
        device, cache, pmd = control.device, control.cache, control.pmd
        with counting(device) as calls:
            _, verified = _exported(device, case.row_bytes, cache, pmd, 1, made := _Made(calls))
        made.tell(series, self.steps)
        for number in range(2, preset.cycles + 2):
            try:
                took, checked = _exported(device, case.row_bytes, cache, pmd, number)
            except ObmmError as error:
                series.failed(error)
                continue
            verified += checked
            _add(series, self.steps, took)
        return verified


class _Made:
    """System calls of each step of a cycle."""

    def __init__(self, calls: SystemCalls) -> None:
        self._calls, self._before = calls, 0
        self.steps: list[int] = []

    def mark(self) -> None:
        """A step has ended."""
        self.steps.append(self._calls.total - self._before)
        self._before = self._calls.total

    def tell(self, series: Series, steps: tuple[str, ...]) -> None:
        for step, made in zip(steps, self.steps, strict=True):
            series.step(step).counts = Counts(0, made)
        series.counts = Counts(0, sum(self.steps))


def _exported(
    device: obmm.Device, nbytes: int, cache: Cache, pmd: bool, number: int, made: _Made | None = None
) -> tuple[tuple[int, ...], int]:
    """One cycle -> (ns of each step, bytes compared)."""
    clock = time.perf_counter_ns
    mark = made.mark if made else _nothing
    marks = [clock()]
    region = device.export_region(nbytes, header=False, pmd=pmd, label="bench")
    marks.append(clock())
    mark()
    try:
        mapping = region.map("rw", cache=cache)
        marks.append(clock())
        mark()
        mapping.store("<u8", 0, number)
        if mapping.load("<u8", 0) != number or mapping.load("<u8", nbytes - 8) != 0:
            raise content.VerificationError("a new region does not hold what was stored, or was not zero")
        unmapping = clock()
        mapping.close()
        marks.append(clock())
        mark()
    except BaseException:
        region.close(force=True)
        raise
    removing = clock()
    region.close()
    marks.append(clock())
    mark()
    return (marks[1] - marks[0], marks[2] - marks[1], marks[3] - unmapping, marks[4] - removing), 16


def _nothing() -> None:
    """Nothing is counted in timed cycles."""


def _add(series: Series, steps: tuple[str, ...], took: tuple[int, ...]) -> None:
    series.add(sum(took))
    for step, ns in zip(steps, took, strict=True):
        series.step(step).add(ns)


class AllocateCycle(Workload):
    """allocate..map..unmap..deallocate of an SDK object of one unit."""

    name, title = "control-sdk", "allocate..map..unmap..deallocate"
    plane = "control"
    steps = ("allocate", "map", "unmap", "deallocate")

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case(f"{WHOLE}, {SDK_UNIT >> 20} MiB", SDK_UNIT, working_set=SDK_UNIT)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        objects = memory.objects()
        counts: list[Counts] = []
        self._cycle(objects, counts)
        if counts:
            for step, count in zip(self.steps, counts, strict=True):
                series.step(step).counts = count
            series.counts = Counts(sum(c.round_trips for c in counts), sum(c.system_calls for c in counts))
        for _ in range(preset.cycles):
            try:
                _add(series, self.steps, self._cycle(objects))
            except ObmmError as error:
                series.failed(error)
        return 0

    def _cycle(self, objects: Objects, counts: list[Counts] | None = None) -> tuple[int, ...]:
        """One cycle -> ns of each step; what the library counted of each goes to `counts`."""
        clock, took = time.perf_counter_ns, []
        before = objects.counts()

        def mark(began: int) -> None:
            nonlocal before
            took.append(clock() - began)
            after = objects.counts() if counts is not None else None
            if counts is not None and before is not None and after is not None:
                trips, calls = after.round_trips - before.round_trips, after.system_calls - before.system_calls
                counts.append(Counts(trips, calls))
                before = after

        began = clock()
        shared = objects.create(SDK_UNIT)
        mark(began)
        try:
            began = clock()
            shared.map("none")
            mark(began)
            if shared.nbytes != SDK_UNIT or not shared.address:
                raise content.VerificationError(f"{shared!r} is not what was asked for")
            began = clock()
            shared.unmap()
            mark(began)
        except BaseException:
            shared.delete()
            raise
        began = clock()
        shared.delete()
        mark(began)
        return tuple(took)


class FetchToLoad(Workload):
    """From asking another process for a handle to the first loaded word: fetch, import, map, load."""

    name, title = "fetch", "handle fetch to first load"
    plane = "control"
    steps = ("fetch", "import", "map", "load")

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case(WHOLE, 8, working_set=GRANULE)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        control = memory.control()
        with counting(control.device) as calls:
            self._cycle(control, made := _Made(calls))
        # the exchange's round trip is not a daemon's, and its system calls are made by a thread of its own
        for step, count in list(zip(self.steps, made.steps, strict=True))[1:]:
            series.step(step).counts = Counts(0, count)
        for _ in range(preset.cycles):
            try:
                _add(series, self.steps, self._cycle(control))
            except ObmmError as error:
                series.failed(error)
        return 8 * preset.cycles

    def _cycle(self, control: Control, made: _Made | None = None) -> tuple[int, ...]:
        """One cycle -> ns of each step."""
        clock, mark = time.perf_counter_ns, made.mark if made else _nothing
        name = twonodes.SMALL + (twonodes.PMD if control.pmd else "")
        marks = [clock()]
        lease = control.far.peer.fetch(name)
        marks.append(clock())
        mark()
        with control.device.import_region(lease, cache=control.cache, pmd=control.pmd) as imported:
            marks.append(clock())
            mark()
            with imported.map("r") as mapping:
                marks.append(clock())
                mark()
                seen = int(mapping.load("<u8", 8))
                marks.append(clock())
                mark()
        if seen != int(content.FACTOR):
            raise content.VerificationError(f"the first load through a fetched handle gave {seen:#x}")
        return tuple(after - before for before, after in itertools.pairwise(marks))
