# SPDX-License-Identifier: Apache-2.0
"""What fabrics would make of a step, calculated from profiles: nothing here was measured on them.

Every figure has the range that the profile's assumed figures leave it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from obmm.emulator.profile import Profile

LOCAL = "local-dram"
WINDOWS_NS = (56_000.0, 784_000.0, 1_275_000.0)
"""One layer of a fast step, fourteen of them, one layer of a slow step (Engram specification 9.2)."""
MOST_ROWS = 1 << 20
MOST_DEPTH = 1024


@dataclass(frozen=True, slots=True)
class Modelled:
    """A calculated figure, with the least and the most that the profile's ranges allow."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, profile: Profile, figure: Callable[[Profile], float]) -> Modelled:
        """`figure` of the profile, of its quickest and of its slowest self."""
        found = [figure(each) for each in (profile, *profile.extremes())]
        return cls(found[0], min(found), max(found))


@dataclass(frozen=True, slots=True)
class Step:
    """`rows` random rows of `row_bytes`, gathered by `threads`; every `period_ns` one, for the load of an owner."""

    rows: int
    row_bytes: int
    threads: int = 1
    period_ns: float = 10e6

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class StepModel:
    """What one profile makes of one step.

    `hot_share`: the part of the rows that must be found in local memory before keeping hot rows pays (None: it never
    does).  `depth`: by window, how many windows ahead a prefetch must begin (None: no depth keeps up).  `readers`: how many
    readers one owner's node can feed at this period.
    """

    profile: Profile
    step: Step
    time_ns: Modelled
    hot_share: float | None
    depth: dict[float, int | None]
    readers: int


def step_model(profile: Profile, step: Step, windows: Sequence[float] = WINDOWS_NS) -> StepModel:
    """Calculates it."""
    time = Modelled.of(profile, lambda each: each.gather_ns(step.rows, step.row_bytes, step.threads))
    return StepModel(
        profile,
        step,
        time,
        hot_share(profile, step),
        {window: depth(profile, step, window) for window in windows},
        readers(profile, step),
    )


def hot_share(profile: Profile, step: Step) -> float | None:
    """The hits from which on a cache of hot rows in local memory pays: each row is looked for there first.

    A look-up and the copy of a row that is kept cost what a row of local memory costs; a row that is not there costs a
    look-up more than without a cache, half of that.
    """
    kept = Profile.named(LOCAL).row_ns(step.row_bytes)
    looked = kept / 2
    remote = profile.row_ns(step.row_bytes)
    if remote <= kept:
        return None
    # h * kept + (1 - h) * (remote + looked) <= remote
    share = looked / (remote + looked - kept)
    return share if share < 1 else None


def depth(profile: Profile, step: Step, window_ns: float) -> int | None:
    """How many windows before its use a step's gather must begin to be hidden; None where one gather in each window is more
    than the path carries: its time on the link alone exceeds the window.
    """
    whole = profile.gather_ns(step.rows, step.row_bytes, step.threads)
    # the trips of lists that follow each other overlap; loads keep their threads busy to the end
    carried = whole if profile.way == "loads" else step.rows * profile.row_ns(step.row_bytes) / step.threads
    if carried > window_ns:
        return None
    needed = math.ceil(whole / window_ns)
    return needed if needed <= MOST_DEPTH else None


def readers(profile: Profile, step: Step) -> int:
    """Readers that one owner's node bandwidth feeds when each takes this step once a period."""
    return int(profile["node_gbps"] * step.period_ns // step.nbytes) if step.nbytes else 0


@dataclass(frozen=True, slots=True)
class Crossing:
    """From how many rows on a path of lists is quicker than one of loads; None: never, 1: always.

    `start` by the profiles' own figures; `earliest` and `surely` with those ends of their ranges that speak for it and against it.
    """

    start: int | None
    earliest: int | None
    surely: int | None


def crossing(one: Profile, other: Profile, row_bytes: int, threads: int = 1) -> Crossing:
    """From how many rows of `row_bytes` on `other` is the quicker of the two, looked for up to a million."""
    (quick_one, slow_one), (quick_other, slow_other) = one.extremes(), other.extremes()
    pairs = (one, other), (slow_one, quick_other), (quick_one, slow_other)
    return Crossing(*(_crossing(loads, lists, row_bytes, threads) for loads, lists in pairs))


def _crossing(one: Profile, other: Profile, row_bytes: int, threads: int) -> int | None:
    def quicker(rows: int) -> bool:
        return other.gather_ns(rows, row_bytes, threads) < one.gather_ns(rows, row_bytes, threads)

    if not quicker(MOST_ROWS):
        return None
    low, high = 0, MOST_ROWS  # not quicker at low, quicker at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if quicker(middle) else (middle, high)
    return high
