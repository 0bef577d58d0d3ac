# SPDX-License-Identifier: Apache-2.0
"""One mebibyte after the other through the whole table: what bandwidth is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from obmm.bench import content
from obmm.bench.arms.arm import Memory
from obmm.bench.footprint import Footprint
from obmm.bench.presets import Preset
from obmm.bench.timing import Series
from obmm.bench.workloads.workload import Case, Workload

PIECE = 1 << 20


class _Sequential(Workload):
    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        yield Case(f"{PIECE >> 20} MiB pieces", PIECE, working_set=memory.nbytes)


class SequentialRead(_Sequential):
    """Copies into a buffer of this process."""

    name, title = "read", "sequential read"

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        out: NDArray[np.uint8] = np.empty(PIECE, np.uint8)
        offsets = itertools.cycle(range(0, memory.nbytes - PIECE + 1, PIECE))
        at = verified = 0

        def draw() -> None:
            nonlocal at
            at = next(offsets)

        def check() -> None:
            nonlocal verified
            verified += content.check_words(out.view(np.uint64), at)

        series.loop(draw, lambda: memory.read(at, out), check, preset.iterations, preset.seconds)
        return verified


class SequentialWrite(_Sequential):
    """Writes other bytes than are there, reads them back, and puts the content right again, the clock being stopped."""

    name, title = "write", "sequential write"

    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        offsets = itertools.cycle(range(0, memory.nbytes - PIECE + 1, PIECE))
        at = verified = 0
        right, data, back = (np.empty(PIECE, np.uint8) for _ in range(3))

        def draw() -> None:
            nonlocal at
            at = next(offsets)
            content.put(right.view(np.uint64), at)
            np.invert(right, out=data)

        def check() -> None:
            nonlocal verified
            memory.read(at, back)
            memory.write(at, right)
            verified += content.check_words(back.view(np.uint64), at, flipped=True)

        series.loop(draw, lambda: memory.write(at, data), check, preset.iterations, preset.seconds)
        return verified
