# SPDX-License-Identifier: Apache-2.0
"""What a workload is: cases, and how to time one on a memory."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from obmm.bench.arms.arm import Memory
from obmm.bench.footprint import HOT_BYTES, Footprint
from obmm.bench.presets import Preset
from obmm.bench.timing import Series

WHOLE = "whole cycle"
"""How the label of a case begins that also times its steps; of a step, the step's name stands in its place."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the results before it is measured.  `rows` and `nbytes` are per operation."""

    label: str
    row_bytes: int
    tables: int = 1
    count: int = 1
    threads: int = 1
    working_set: int = 0

    @property
    def rows(self) -> int:
        return self.tables * self.count

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


class Workload(abc.ABC):
    """One thing to measure."""

    name: str
    title: str
    plane: Literal["data", "control"] = "data"

    @abc.abstractmethod
    def cases(self, preset: Preset, memory: Memory, footprint: Footprint) -> Iterator[Case]:
        """In order."""

    @abc.abstractmethod
    def run(self, case: Case, memory: Memory, preset: Preset, series: Series) -> int:
        """Time it -> bytes compared with what they must be.  Unavailable: not on this arm, and why."""


def working_sets(preset: Preset, memory: Memory) -> tuple[int, ...]:
    """The whole table, and a part that stays in the caches."""
    return (memory.nbytes, HOT_BYTES) if preset.hot and memory.nbytes > HOT_BYTES else (memory.nbytes,)


def threads_of(preset: Preset, memory: Memory) -> tuple[int, ...]:
    """The thread counts of the preset that this memory has."""
    return tuple(n for n in preset.threads if n <= memory.most_threads) or (1,)
