# SPDX-License-Identifier: Apache-2.0
"""A run: every arm with every workload, one after the other -> the result document."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Protocol

import obmm
from obmm.bench import environment
from obmm.bench.arms.arm import Arm, Memory, Unavailable
from obmm.bench.arms.direct import DirectArm, Nodes
from obmm.bench.arms.local import LocalArm
from obmm.bench.arms.sdk import SdkArm
from obmm.bench.arms.shared import SharedMemoryArm
from obmm.bench.arms.tcp import TcpArm
from obmm.bench.footprint import Footprint
from obmm.bench.presets import Preset
from obmm.bench.timing import Series, Timer
from obmm.bench.workloads.control import AllocateCycle, ExportCycle, FetchToLoad
from obmm.bench.workloads.loads import DependentLoads
from obmm.bench.workloads.pingpong import FlagPingPong, OwnershipPingPong
from obmm.bench.workloads.rows import Batches, OneRow, RowSizes, TableTokens
from obmm.bench.workloads.sequential import SequentialRead, SequentialWrite
from obmm.bench.workloads.workload import Case, Workload

FORMAT, VERSION = "obmm-bench", 1
MARKS = {
    "emulated": "EMULATED: local memory of this host answers; says nothing about hardware",
    "stand-in": "STAND-IN: a local library answers; says nothing about UB hardware, the engine or the cluster",
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


def arms(nodes: Nodes, tcp: tuple[str, int, int] | None = None, tcp_why_not: str = "") -> tuple[Arm, ...]:
    """All arms, in the order of the reports."""
    direct = tuple(DirectArm(mode, nodes) for mode in MODES)
    sdk = tuple(SdkArm(mode, nodes.importer) for mode in ("cacheable", "nc", "pmd"))
    return (LocalArm(), SharedMemoryArm(), TcpArm(tcp, tcp_why_not), *direct, *sdk)


class Run:
    """Collects results; a verification error ends it, and then there is no document."""

    def __init__(self, preset: Preset, arms: Sequence[Arm], workloads: Sequence[Workload], backend: str) -> None:
        self._preset, self._arms, self._workloads = preset, arms, workloads
        self._backend = backend
        self._timer = Timer.measure()
        self._footprint = Footprint.choose(preset.footprint)
        self._results: list[dict[str, Any]] = []
        self._skipped: list[dict[str, str]] = []
        self._opened: list[dict[str, Any]] = []
        self._unavailable: list[dict[str, str]] = []
        self._verified = 0
        self._busy_ns = 0.0

    def document(self, watcher: Watcher) -> dict[str, Any]:
        """Measure everything -> the document of `results.schema.json`.  VerificationError: nothing is worth keeping."""
        began, created = time.monotonic(), datetime.datetime.now(datetime.UTC)
        where = environment.describe(self._backend)  # the load is the one before ours
        for number, arm in enumerate(self._arms):
            self._measure(arm, watcher, number / len(self._arms), 1 / len(self._arms))
        watcher.step("done", 1.0)
        wall = time.monotonic() - began
        return {
            "format": FORMAT,
            "version": VERSION,
            "created": created.isoformat(timespec="seconds"),
            "preset": {**asdict(self._preset), "footprint": self._footprint.nbytes},
            "environment": where,
            "timer": {"c_overhead_ns": self._timer.c_ns, "python_overhead_ns": self._timer.python_ns},
            "harness": {
                "wall_s": wall,
                "measured_s": self._busy_ns / 1e9,
                "harness_share": max(0.0, 1 - self._busy_ns / 1e9 / wall),
            },
            "verification": {"bytes": self._verified, "wrong": 0},
            "control_plane_caveat": CONTROL_CAVEAT,
            "arms": self._opened,
            "unavailable": self._unavailable,
            "skipped": self._skipped,
            "results": self._results,
        }

    def _measure(self, arm: Arm, watcher: Watcher, start: float, share: float) -> None:
        def preparing(done: float) -> None:
            watcher.step(f"{arm.name}: fill", start + share * 0.2 * done)

        with ExitStack() as stack:
            try:
                preparing(0)
                memory = stack.enter_context(arm.open(self._footprint.nbytes, preparing))
            except Unavailable as reason:
                self._unavailable.append({"arm": arm.name, "title": arm.title, "reason": str(reason)})
                return
            for number, workload in enumerate(self._workloads):
                watcher.step(
                    f"{arm.name}: {workload.title}", start + share * (0.2 + 0.8 * number / len(self._workloads))
                )
                self._workload(arm, memory, workload)
            self._opened.append(
                {
                    "name": arm.name,
                    "title": arm.title,
                    "kind": arm.kind,
                    "mark": MARKS.get(arm.kind, ""),
                    "backend": memory.backend,
                    "pages": memory.pages,
                    "footprint": memory.nbytes,
                    "plan": memory.plan,
                }
            )

    def _workload(self, arm: Arm, memory: Memory, workload: Workload) -> None:
        for case in workload.cases(self._preset, memory, self._footprint):
            series = Series(self._timer)
            began = time.monotonic()
            try:
                self._verified += workload.run(case, memory, self._preset, series)
            except Unavailable as reason:
                self._skipped.append({"arm": arm.name, "workload": workload.name, "reason": str(reason)})
                return
            self._busy_ns += series.busy_ns / case.threads
            self._results.append(self._result(arm, memory, workload, case, series, time.monotonic() - began))

    def _result(
        self, arm: Arm, memory: Memory, workload: Workload, case: Case, series: Series, wall: float
    ) -> dict[str, Any]:
        times = series.summary()
        p50 = float(times["p50"]) / 1e9  # type: ignore[arg-type]
        control = workload.plane == "control"
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
            "caveat": CONTROL_CAVEAT if control and arm.kind in MARKS else "",
            "wall_s": wall,
        }


def nodes_for_direct(stack: ExitStack, device: str | None = None) -> Nodes:
    """The device named here or by OBMM_DEVICE, twice (loopback), or two nodes of an emulated fabric that lives as long as
    `stack`; the document says which it was."""
    named = device or os.environ.get("OBMM_DEVICE")
    if named:
        return Nodes(named, named)
    fabric = stack.enter_context(obmm.emulator.start(nodes=2))
    return Nodes(fabric.device(0), fabric.device(1))


def backend_of(arms: Sequence[Arm]) -> str:
    """Which kernel answers the OBMM arms."""
    return next((arm.backend for arm in arms if isinstance(arm, DirectArm)), "none")
