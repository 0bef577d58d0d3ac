# SPDX-License-Identifier: Apache-2.0
"""From one node's store to the other node's load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import obmm
from obmm.bench import content
from obmm.bench.arms.arm import Memory, Unavailable
from obmm.bench.compiled import ffi, library
from obmm.bench.footprint import GRANULE, Footprint
from obmm.bench.presets import Preset
from obmm.bench.timing import Series
from obmm.bench.workloads.workload import Case, Workload

PATIENCE_NS = 10_000_000_000


@contextmanager
def both_ends(memory: Memory) -> Iterator[tuple[obmm.Mapping, obmm.Mapping]]:
    """A small region, mapped where it is exported and where it is imported."""
    exporter, importer, cache, pmd = memory.nodes()
    with exporter.export_region(GRANULE, header=False, pmd=pmd, label="bench") as region:
        with importer.import_region(region.handle(), cache=cache, pmd=pmd) as imported:
            access = "rw" if cache == "nc" else "none"
            # loopback on one node: both mappings of the region take turns with their rights
            with region.map(access, cache=cache) as near:
                if cache != "nc":
                    near.acquire("w")
                    near.write(0, bytes(64))
                    near.release()
                with imported.map("rw" if cache == "nc" else "none") as far:
                    yield near, far


class OwnershipPingPong(Workload):
    """CC: store under the right to write, release (written back), acquire on the other node, load: one hand-over."""

    name, title = "pingpong-cc", "store to load, CC ownership"
    plane = "control"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case("one hand-over", 8, working_set=GRANULE)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        if memory.nodes()[2] == "nc":
            raise Unavailable("NC has no ownership: see pingpong-nc")
        with both_ends(memory) as (near, far):
            ends = [near, far]
            unit, seen, number = near.granularity, 0, 0

            def hand_over() -> None:
                nonlocal seen
                writer, reader = ends
                writer.acquire("w", 0, unit)
                writer.store("<u8", 0, number)
                writer.release(0, unit)
                reader.acquire("r", 0, unit)
                seen = int(reader.load("<u8", 0))
                reader.release(0, unit)

            def draw() -> None:
                nonlocal number
                number += 1
                ends.reverse()

            def check() -> None:
                if seen != number:
                    raise content.VerificationError(f"the other node loaded {seen} after {number} was handed over")

            series.loop(draw, hand_over, check, preset.cycles * 5, preset.seconds)
        return 8 * number


class FlagPingPong(Workload):
    """NC: both nodes spin on a flag of the other; half of a round trip."""

    name, title = "pingpong-nc", "store to load, NC flags"

    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case("one way", 8, threads=2, working_set=128)

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        if memory.nodes()[2] != "nc":
            raise Unavailable("flags need NC on both sides: CC hands over by ownership")
        count, answer = preset.loads // 4, []
        with both_ends(memory) as (near, far):
            near.write(0, bytes(4096))

            def echo() -> None:
                ping, pong = (ffi.cast("uint64_t *", near.address + at) for at in (0, 64))
                answer.append(library().bench_echo(ping, pong, count, PATIENCE_NS))

            other = threading.Thread(target=echo)
            other.start()
            times = np.zeros(count, np.uint64)
            ping, pong = (ffi.cast("uint64_t *", far.address + at) for at in (0, 64))
            result = library().bench_ping(ping, pong, count, PATIENCE_NS, ffi.from_buffer("uint64_t[]", times))
            other.join()
            if result or answer != [0]:
                raise content.VerificationError("a flag that one node stored never arrived on the other")
        series.add_c(times, parts=2)
        return 16 * count
