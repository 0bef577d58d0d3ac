# SPDX-License-Identifier: Apache-2.0
"""A run: every arm with every workload, one after the other -> the result document."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from obmm.bench import environment, headlines
from obmm.bench.arms.arm import Arm, Memory, Unavailable
from obmm.bench.arms.direct import DirectArm, FarNode
from obmm.bench.arms.local import LocalArm
from obmm.bench.arms.sdk import SdkArm
from obmm.bench.arms.shared import SharedMemoryArm
from obmm.bench.arms.tcp import TcpArm
from obmm.bench.arms.urma import UrmaArm
from obmm.bench.far import Far
from obmm.bench.footprint import Chase, Footprint
from obmm.bench.presets import Preset
from obmm.bench.results import AGAIN, CLOSE, FORMAT, VERSION
from obmm.bench.seeds import Seeds
from obmm.bench.surroundings import Surroundings, Watch
from obmm.bench.timing import Series, Timer
from obmm.bench.workloads.control import AllocateCycle, ExportCycle, FetchToLoad
from obmm.bench.workloads.lists import ReadLists, UrmaCycle
from obmm.bench.workloads.loads import LOADS, DependentLoads
from obmm.bench.workloads.pingpong import FlagPingPong, OwnershipPingPong
from obmm.bench.workloads.rows import Batches, OneRow, RowSizes, Step, TableTokens
from obmm.bench.workloads.sequential import SequentialRead, SequentialWrite
from obmm.bench.workloads.workload import WHOLE, Case, Workload
from obmm.errors import ObmmError

CONTROL_CAVEAT = "control-plane times of an emulated or stand-in arm say nothing about hardware"

WORKLOADS: tuple[Workload, ...] = (
    DependentLoads(),
    OneRow(),
    Batches(),
    Step(),
    RowSizes(),
    TableTokens(),
    ReadLists(),
    SequentialRead(),
    SequentialWrite(),
    OwnershipPingPong(),
    FlagPingPong(),
    ExportCycle(),
    AllocateCycle(),
    UrmaCycle(),
    FetchToLoad(),
)
MODELLED = ("row", "batch", "step", "row-size", "tables", "read")
"""What an emulated node that plays a modelled fabric waits for: gathers and guarded calls."""
NOT_MODELLED = "plain loads, ownership and the control plane do not wait as on a modelled fabric: leave out --fabric"
MODES = ("cc", "nc", "pmd")
ARM_NAMES = (
    "local",
    "numpy-shm",
    "tcp",
    *(f"obmm-{mode}" for mode in MODES),
    "sdk-cacheable",
    "sdk-nc",
    "sdk-pmd",
    "urma",
)


class Watcher(Protocol):
    """Shows how far a run is."""

    def step(self, text: str, share: float) -> None:
        """What happens now, and how much of the run is done (0..1)."""


def arms(device: str, far: FarNode, served: Far | None = None) -> tuple[Arm, ...]:
    """All arms, in the order of the reports.  `device` is the measuring node; `served` is the far node of ``bench serve``."""
    direct = tuple(DirectArm(mode, device, far) for mode in MODES)
    sdk = tuple(SdkArm(mode, device) for mode in ("cacheable", "nc", "pmd"))
    return (LocalArm(), SharedMemoryArm(), TcpArm(served), *direct, *sdk, UrmaArm(far))


class Run:
    """Collects results; a verification error ends it, and then there is no document.

    `repeat`: the headline figures are measured so many times, each time on arms opened anew.  `seeds`: what its random
    numbers follow from.  `samples`: the document keeps every time.
    """

    def __init__(
        self,
        preset: Preset,
        footprint: Footprint,
        arms: Sequence[Arm],
        workloads: Sequence[Workload],
        repeat: int = 1,
        *,
        seeds: Seeds | None = None,
        samples: bool = False,
    ) -> None:
        self._seeds, self._samples = seeds or Seeds.new(), samples
        self._chases: dict[str, Chase] = {}
        self._preset, self._arms, self._workloads = preset, arms, workloads
        self._backend, self._repeat, self._footprint = backend_of(arms), repeat, footprint
        self._timer = Timer.measure()
        self._headlines = headlines.of(preset)
        self._skipped: list[dict[str, str]] = []
        self._opened: list[dict[str, Any]] = []
        self._unavailable: list[dict[str, str]] = []
        self._lost: set[str] = set()
        """Arms that could not be opened again: each attempt may take a time-out."""
        self._verified = 0
        self._busy_ns = 0.0
        self._open_s = 0.0

    def document(self, watcher: Watcher) -> dict[str, Any]:
        """Measure everything -> the document of `results.schema.json`.  VerificationError: nothing is worth keeping."""
        began, created = time.monotonic(), datetime.datetime.now(datetime.UTC)
        where = environment.describe(self._backend)  # the load is the one before ours
        runs = [self._once(watcher, number) for number in range(self._repeat)]
        watcher.step("done", 1.0)
        wall = time.monotonic() - began
        return {
            "format": FORMAT,
            "version": VERSION,
            "created": created.isoformat(timespec="seconds"),
            "preset": {**asdict(self._preset), "footprint": self._footprint.nbytes},
            "repeat": self._repeat,
            "seed": self._seeds.run,
            "environment": where,
            "timer": {"c_overhead_ns": self._timer.c_ns, "python_overhead_ns": self._timer.python_ns},
            "harness": {
                "wall_s": wall,
                "measured_s": self._busy_ns / 1e9,
                "open_s": self._open_s,
                "harness_share": max(0.0, 1 - self._busy_ns / 1e9 / wall),
            },
            "verification": {"bytes": self._verified, "wrong": 0},
            "control_plane_caveat": CONTROL_CAVEAT,
            "arms": self._opened,
            "unavailable": self._unavailable,
            "skipped": self._skipped,
            "headlines": headlines.figures(self._headlines, runs),
            "results": runs[0],
        }

    def _once(self, watcher: Watcher, number: int) -> list[dict[str, Any]]:
        """Everything the first time, then the headline cases of what was there."""
        there = {arm["name"] for arm in self._opened} - self._lost
        arms = [arm for arm in self._arms if not number or arm.name in there]
        rows: list[dict[str, Any]] = []
        weights = [1.0] + [_AGAIN] * (self._repeat - 1)
        share = weights[number] / sum(weights) / max(len(arms), 1)
        start = sum(weights[:number]) / sum(weights)
        for place, arm in enumerate(arms):
            text = f"{arm.name} ({number + 1} of {self._repeat})" if self._repeat > 1 else arm.name
            part = _Part(watcher, text, start + share * place, share)
            self._measure(arm, part, rows, number)
        return rows

    def _measure(self, arm: Arm, part: _Part, rows: list[dict[str, Any]], number: int) -> None:
        try:
            self._open_and_measure(arm, part, rows, number)
        except (ObmmError, OSError) as reason:
            # it could not be closed in order: what was measured and verified before stays true
            self._lost.add(arm.name)
            self._skipped.append({"arm": arm.name, "workload": CLOSE, "reason": _said(reason)})

    def _open_and_measure(self, arm: Arm, part: _Part, rows: list[dict[str, Any]], number_of_run: int) -> None:
        first = not number_of_run
        with ExitStack() as stack:
            opening = time.monotonic()
            try:
                part.step("fill", 0.0)
                memory = stack.enter_context(
                    arm.open(self._footprint.nbytes, lambda done: part.step("fill", _FILL * done))
                )
            except (Unavailable, ObmmError, OSError, MemoryError) as reason:
                if first:
                    self._unavailable.append({"arm": arm.name, "title": arm.title, "reason": _said(reason)})
                else:
                    self._lost.add(arm.name)
                    self._skipped.append({"arm": arm.name, "workload": AGAIN, "reason": _said(reason)})
                return
            finally:
                self._open_s += time.monotonic() - opening
            if memory.address is not None:
                seed = self._seeds.of(number_of_run, arm.name, "chase")
                self._chases[arm.name] = Chase.over(memory.address, memory.nbytes, seed)
            for number, workload in enumerate(self._workloads):
                part.step(workload.title, _FILL + (1 - _FILL) * number / len(self._workloads))
                self._workload(arm, memory, workload, rows, number_of_run)
            if first:
                self._opened.append(self._described(arm, memory))

    def _described(self, arm: Arm, memory: Memory) -> dict[str, Any]:
        return {
            "name": arm.name,
            "title": arm.title,
            "kind": arm.kind,
            "mark": arm.mark,
            "backend": memory.backend,
            "pages": memory.pages,
            "footprint": memory.nbytes,
            "plan": memory.plan,
            "facts": memory.facts,
            "chase": asdict(self._chases[arm.name]) if arm.name in self._chases else None,
        }

    def _workload(self, arm: Arm, memory: Memory, workload: Workload, rows: list[dict[str, Any]], number: int) -> None:
        first = not number
        if arm.kind == "modelled" and workload.name not in MODELLED:
            if first:
                self._skipped.append({"arm": arm.name, "workload": workload.name, "reason": NOT_MODELLED})
            return
        for case in workload.cases(self._preset, memory, self._footprint):
            if not first and not any(headline.wants(workload.name, case) for headline in self._headlines):
                continue
            words = (case.label, case.row_bytes, case.tables, case.count, case.threads, case.working_set)
            series = Series(self._timer, self._seeds.of(number, arm.name, workload.name, *words))
            began, watch = time.monotonic(), Watch()
            try:
                verified = workload.run(case, memory, self._preset, series)
                if not series.samples:
                    raise Unavailable(f"all of {series.failures} failed: {series.reason}")
            except (Unavailable, ObmmError, OSError) as reason:
                if first:
                    self._skipped.append({"arm": arm.name, "workload": workload.name, "reason": _said(reason)})
                return
            self._busy_ns += series.busy_ns
            self._verified += verified
            where = _Where(arm, workload, watch.end(), time.monotonic() - began, verified)
            for step, times in series.steps.items():
                rows.append(self._result(replace(case, label=case.label.replace(WHOLE, step)), times, where))
            rows.append(self._result(case, series, where))

    def _result(self, case: Case, series: Series, where: _Where) -> dict[str, Any]:
        arm, workload = where.arm, where.workload
        times = series.summary()
        p50, mean = (float(times[name]) / 1e9 for name in ("p50", "mean"))  # type: ignore[arg-type]
        control = workload.plane == "control"
        counts = series.counts
        load_ns = float(times["mean"]) if workload.name == LOADS else None  # type: ignore[arg-type]
        temperature = self._footprint.temperature(case.working_set, self._chases.get(arm.name), load_ns)
        found = {
            "arm": arm.name,
            "kind": arm.kind,
            "mark": arm.mark,
            "workload": workload.name,
            "plane": workload.plane,
            "case": case.label,
            "row_bytes": case.row_bytes,
            "tables": case.tables,
            "count": case.count,
            "threads": case.threads,
            "working_set": case.working_set,
            "temperature": "control" if control else temperature,
            "unit": "ns",
            **times,
            "seed": series.seed,
            "verified": 0 if control else where.verified,
            "rows_per_s": None if control or not mean else case.rows / mean,
            "bytes_per_s": None if control or not mean else case.nbytes / mean,
            "bytes_per_s_p50": None if control or not p50 else case.nbytes / p50,
            "round_trips": counts.round_trips if counts else None,
            "system_calls": counts.system_calls if counts else None,
            "caveat": CONTROL_CAVEAT if control and arm.mark else "",
            "wall_s": where.wall_s,
            "surroundings": asdict(where.surroundings),
            "busy": where.surroundings.busy,
        }
        if self._samples:
            found["samples_ns"] = series.times
        return found


@dataclass(frozen=True, slots=True)
class _Where:
    """What all figures of one case share."""

    arm: Arm
    workload: Workload
    surroundings: Surroundings
    wall_s: float
    verified: int


def _said(reason: Exception) -> str:
    """Why, without the number that an operating system puts in front."""
    return (reason.strerror if isinstance(reason, OSError) else "") or str(reason) or type(reason).__name__


_FILL, _AGAIN = 0.2, 0.25
"""Of an arm's share of the progress bar: filling; of a whole run: another one of the headlines."""


class _Part:
    """An arm's part of a progress bar."""

    def __init__(self, watcher: Watcher, name: str, start: float, share: float) -> None:
        self._watcher, self._name, self._start, self._share = watcher, name, start, share

    def step(self, text: str, done: float) -> None:
        self._watcher.step(f"{self._name}: {text}", self._start + self._share * done)


def backend_of(arms: Sequence[Arm]) -> str:
    """Which kernel answers the OBMM arms."""
    return next((arm.backend for arm in arms if isinstance(arm, DirectArm)), "none")
