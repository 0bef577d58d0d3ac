# SPDX-License-Identifier: Apache-2.0
"""A run: every arm with every workload, one after the other -> the result document."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any, Protocol

from obmm.bench import environment, headlines
from obmm.bench.arms.arm import Arm, Memory, Unavailable
from obmm.bench.arms.direct import DirectArm, FarNode
from obmm.bench.arms.local import LocalArm
from obmm.bench.arms.sdk import SdkArm
from obmm.bench.arms.shared import SharedMemoryArm
from obmm.bench.arms.tcp import TcpArm
from obmm.bench.far import Far
from obmm.bench.footprint import Footprint
from obmm.bench.presets import Preset
from obmm.bench.results import AGAIN, CLOSE, FORMAT, VERSION
from obmm.bench.timing import Series, Timer
from obmm.bench.workloads.control import AllocateCycle, ExportCycle, FetchToLoad
from obmm.bench.workloads.loads import DependentLoads
from obmm.bench.workloads.pingpong import FlagPingPong, OwnershipPingPong
from obmm.bench.workloads.rows import Batches, OneRow, RowSizes, TableTokens
from obmm.bench.workloads.sequential import SequentialRead, SequentialWrite
from obmm.bench.workloads.workload import WHOLE, Case, Workload
from obmm.errors import ObmmError
from obmm.sdk.standin import SENTENCE

MARKS = {
    "emulated": "EMULATED: local memory of this host answers; says nothing about hardware",
    "stand-in": f"STAND-IN: {SENTENCE.removeprefix('stand-in: ')}; its memory is local memory",
}
CONTROL_CAVEAT = "control-plane times of an emulated or stand-in arm say nothing about hardware"

WORKLOADS: tuple[Workload, ...] = (
    DependentLoads(),
    OneRow(),
    Batches(),
    RowSizes(),
    TableTokens(),
    SequentialRead(),
    SequentialWrite(),
    OwnershipPingPong(),
    FlagPingPong(),
    ExportCycle(),
    AllocateCycle(),
    FetchToLoad(),
)
MODES = ("cc", "nc", "pmd")
ARM_NAMES = ("local", "numpy-shm", "tcp", *(f"obmm-{mode}" for mode in MODES), "sdk-cacheable", "sdk-nc", "sdk-pmd")


class Watcher(Protocol):
    """Whoever shows how far a run is."""

    def step(self, text: str, share: float) -> None:
        """What happens now, and how much of the run is done (0..1)."""


def arms(device: str, far: FarNode, served: Far | None = None) -> tuple[Arm, ...]:
    """All arms, in the order of the reports.  `device` is the measuring node; `served` is the far node of ``bench serve``."""
    direct = tuple(DirectArm(mode, device, far) for mode in MODES)
    sdk = tuple(SdkArm(mode, device) for mode in ("cacheable", "nc", "pmd"))
    return (LocalArm(), SharedMemoryArm(), TcpArm(served), *direct, *sdk)


class Run:
    """Collects results; a verification error ends it, and then there is no document.

    `repeat`: the headline figures are measured so many times, each time on arms opened anew.
    """

    def __init__(
        self,
        preset: Preset,
        footprint: Footprint,
        arms: Sequence[Arm],
        workloads: Sequence[Workload],
        repeat: int = 1,
    ) -> None:
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
            self._measure(arm, part, rows, first=not number)
        return rows

    def _measure(self, arm: Arm, part: _Part, rows: list[dict[str, Any]], *, first: bool) -> None:
        try:
            self._open_and_measure(arm, part, rows, first=first)
        except (ObmmError, OSError) as reason:
            # it could not be closed in order: what was measured and verified before stays true
            self._lost.add(arm.name)
            self._skipped.append({"arm": arm.name, "workload": CLOSE, "reason": _said(reason)})

    def _open_and_measure(self, arm: Arm, part: _Part, rows: list[dict[str, Any]], *, first: bool) -> None:
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
            for number, workload in enumerate(self._workloads):
                part.step(workload.title, _FILL + (1 - _FILL) * number / len(self._workloads))
                self._workload(arm, memory, workload, rows, first)
            if first:
                self._opened.append(self._described(arm, memory))

    def _described(self, arm: Arm, memory: Memory) -> dict[str, Any]:
        return {
            "name": arm.name,
            "title": arm.title,
            "kind": arm.kind,
            "mark": MARKS.get(arm.kind, ""),
            "backend": memory.backend,
            "pages": memory.pages,
            "footprint": memory.nbytes,
            "plan": memory.plan,
            "facts": memory.facts,
        }

    def _workload(self, arm: Arm, memory: Memory, workload: Workload, rows: list[dict[str, Any]], first: bool) -> None:
        for case in workload.cases(self._preset, memory, self._footprint):
            if not first and not any(headline.wants(workload.name, case) for headline in self._headlines):
                continue
            series = Series(self._timer)
            began = time.monotonic()
            try:
                self._verified += workload.run(case, memory, self._preset, series)
                if not series.samples:
                    raise Unavailable(f"all of {series.failures} failed: {series.reason}")
            except (Unavailable, ObmmError, OSError) as reason:
                if first:
                    self._skipped.append({"arm": arm.name, "workload": workload.name, "reason": _said(reason)})
                return
            self._busy_ns += series.busy_ns
            wall = time.monotonic() - began
            for step, times in series.steps.items():
                rows.append(
                    self._result(arm, workload, replace(case, label=case.label.replace(WHOLE, step)), times, wall)
                )
            rows.append(self._result(arm, workload, case, series, wall))

    def _result(self, arm: Arm, workload: Workload, case: Case, series: Series, wall: float) -> dict[str, Any]:
        times = series.summary()
        p50 = float(times["p50"]) / 1e9  # type: ignore[arg-type]
        control = workload.plane == "control"
        counts = series.counts
        return {
            "arm": arm.name,
            "kind": arm.kind,
            "mark": MARKS.get(arm.kind, ""),
            "workload": workload.name,
            "plane": workload.plane,
            "case": case.label,
            "row_bytes": case.row_bytes,
            "tables": case.tables,
            "count": case.count,
            "threads": case.threads,
            "working_set": case.working_set,
            "temperature": "control" if control else self._footprint.temperature(case.working_set),
            "unit": "ns",
            **times,
            "rows_per_s": None if control or not p50 else case.rows / p50,
            "bytes_per_s": None if control or not p50 else case.nbytes / p50,
            "round_trips": counts.round_trips if counts else None,
            "system_calls": counts.system_calls if counts else None,
            "caveat": CONTROL_CAVEAT if control and arm.kind in MARKS else "",
            "wall_s": wall,
        }


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
