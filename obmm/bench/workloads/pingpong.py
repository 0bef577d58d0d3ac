# SPDX-License-Identifier: Apache-2.0
"""From one node's store to the other node's load; the far side is another process (`obmm.bench.partners`)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

import obmm
from obmm.bench import content, twonodes
from obmm.bench.arms.arm import Control, Memory, Unavailable
from obmm.bench.compiled import library, pointer
from obmm.bench.footprint import GRANULE, Footprint
from obmm.bench.partners import PATIENCE_NS, flags, give, take
from obmm.bench.presets import Preset
from obmm.bench.row_protocol import READY, REQUEST, received
from obmm.bench.timing import Series
from obmm.bench.workloads.workload import Case, Workload
from obmm.driver.abi import Cache


@contextmanager
def _imported(control: Control, name: str, cache: Cache, pmd: bool) -> Iterator[obmm.ImportedRegion]:
    with control.device.import_region(control.far.peer.fetch(name), cache=cache, pmd=pmd, label="bench") as region:
        yield region


def _ask(far: socket.socket, partner: bytes, rounds: int) -> None:
    """Start the far side."""
    far.sendall(REQUEST.pack(partner, 0, 0, rounds, 0))
    _expect_ready(far)


def _expect_ready(far: socket.socket) -> None:
    if received(far, 1) != READY:
        raise content.VerificationError("the other node did not load what this one stored")


class OwnershipPingPong(Workload):
    """CC: store under the right to write, give it back (written back), tell by an NC flag, acquire on the other node, load.

    A round goes there and back; a sample is half of it: one hand-over.
    """

    name, title = "pingpong-cc", "store to load, CC ownership"
    plane = "control"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case("one hand-over", 8, working_set=GRANULE)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        control = memory.control()
        if control.cache == "nc":
            raise Unavailable("NC has no ownership: see pingpong-nc")
        rounds, pmd = preset.cycles, control.pmd
        name = twonodes.OWNED + (twonodes.PMD if pmd else "")
        clock, tell, wait = time.perf_counter_ns, library().bench_tell, library().bench_await
        with ExitStack() as stack:
            ping, pong = stack.enter_context(
                flags(stack.enter_context(_imported(control, twonodes.FLAGS, "nc", False)))
            )
            region = stack.enter_context(_imported(control, name, "cc", pmd))
            mapping = stack.enter_context(region.map("none", cache="cc"))
            far = stack.enter_context(control.far.connection())
            _ask(far, b"hpmd" if pmd else b"hand", rounds)
            for number in range(1, rounds + 1):
                began = clock()
                give(mapping, number)
                tell(ping, number)
                late = wait(pong, number, PATIENCE_NS)
                seen = take(mapping)
                took = clock() - began
                if late or seen != ~number & 0xFFFFFFFF:
                    raise content.VerificationError(f"this node loaded {seen} after the answer to {number}")
                if number > 1:  # the first one faults pages in
                    series.add(took / 2)
            _expect_ready(far)
        return 16 * rounds


class FlagPingPong(Workload):
    """NC: both nodes spin on a flag of the other; half of a round trip."""

    name, title = "pingpong-nc", "store to load, NC flags"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case("one way", 8, working_set=GRANULE)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        control = memory.control()
        if control.cache != "nc":
            raise Unavailable("flags need NC on both sides: CC hands over by ownership")
        rounds = preset.loads // 4
        times = np.zeros(rounds, np.uint64)
        with ExitStack() as stack:
            region = stack.enter_context(_imported(control, twonodes.FLAGS, "nc", False))
            ping, pong = stack.enter_context(flags(region))
            far = stack.enter_context(control.far.connection())
            _ask(far, b"flag", rounds)
            if library().bench_ping(ping, pong, rounds, PATIENCE_NS, pointer("uint64_t[]", times)):
                raise content.VerificationError("a flag that one node stored never arrived on the other")
            _expect_ready(far)
        series.add_c(times, parts=2)
        return 16 * rounds
