# SPDX-License-Identifier: Apache-2.0
"""A cluster of readers and owners as a small discrete simulation: links are served first come, first served.

Every host reads; the first `owners` hosts also hold the tables.  In each step a reader asks `fanout` owners for its rows,
an equal share each; a share waits for its owner's link, then for the reader's, and takes the path's own time besides.  The
next step of a reader begins a period after the last one began, or when its rows are there.  Nothing is measured.
"""

from __future__ import annotations

import errno
import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from obmm.bench.model import Step
from obmm.emulator.profile import Profile
from obmm.errors import ObmmArgumentError

MOST_HOSTS: Final = 10_000
MOST_REQUESTS: Final = 20_000_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """`hosts` readers, `owners` of the tables among them, `fanout` owners asked in a step, `steps` of each reader.

    `link_gbps`: of a host's link to the fabric, each direction; None: as much as the profile's node_gbps.
    """

    hosts: int
    owners: int
    fanout: int = 1
    steps: int = 20
    link_gbps: float | None = None

    def check(self) -> None:
        """ObmmArgumentError for one that cannot be simulated here."""
        fits = 1 <= self.owners <= self.hosts <= MOST_HOSTS and 1 <= self.fanout <= self.owners and self.steps >= 1
        if not fits or self.hosts * self.steps * self.fanout > MOST_REQUESTS:
            raise ObmmArgumentError.because(
                "FABRIC",
                errno.EINVAL,
                f"{self.hosts} hosts, {self.owners} owners, fan-out {self.fanout}, {self.steps} steps",
                f"1 <= fan-out <= owners <= hosts <= {MOST_HOSTS}, at most {MOST_REQUESTS:,} requests",
                "docs/fabric.md",
            )
        if self.link_gbps is not None and not 0 < self.link_gbps < 1e6:
            raise ObmmArgumentError.because(
                "FABRIC", errno.EINVAL, f"links of {self.link_gbps} GB/s", "above 0", "docs/fabric.md"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Step times in nanoseconds; `late`: the part of the steps that took longer than the period; `busiest`: how much of the
    time the busiest owner's link was in use; `gbps`: bytes that all readers got, per second.
    """

    p50_ns: float
    p99_ns: float
    max_ns: float
    alone_ns: float
    late: float
    busiest: float
    gbps: float


def simulate(profile: Profile, step: Step, cluster: Cluster, seed: int = 1) -> Outcome:
    """Runs it: the same seed gives the same outcome."""
    cluster.check()
    random = np.random.default_rng(seed)
    link = cluster.link_gbps or profile["node_gbps"]
    share_rows = -(-step.rows // cluster.fanout)
    share_bytes = share_rows * step.row_bytes
    serving = share_bytes / link
    # shares are asked for at once; what one costs beyond its bytes on the link is the path's latency and its requests
    path = max(0.0, profile.gather_ns(share_rows, step.row_bytes, step.threads) - serving)
    owner_free, owner_busy = [0.0] * cluster.owners, [0.0] * cluster.owners
    reader_free = [0.0] * cluster.hosts
    taken = [0] * cluster.hosts
    times: NDArray[np.float64] = np.empty(cluster.hosts * cluster.steps)
    starts = random.uniform(0.0, step.period_ns, cluster.hosts)
    choices = _choices(random, cluster)
    waiting = [(float(start), host) for host, start in enumerate(starts)]
    heapq.heapify(waiting)
    done, end = 0, 0.0
    while waiting:
        now, host = heapq.heappop(waiting)
        finished = now
        for owner in choices[host, taken[host]]:
            served = max(now, owner_free[owner]) + serving
            owner_free[owner] = served
            owner_busy[owner] += serving
            # the reader's link takes it in while the owner's sends it, once it is free
            arrived = max(served, reader_free[host] + serving)
            reader_free[host] = arrived
            finished = max(finished, arrived + path)
        times[done] = finished - now
        done += 1
        end = max(end, finished)
        taken[host] += 1
        if taken[host] < cluster.steps:
            heapq.heappush(waiting, (max(now + step.period_ns, finished), host))
    p50, p99 = np.percentile(times, [50, 99])
    moved = cluster.hosts * cluster.steps * cluster.fanout * share_bytes
    return Outcome(
        float(p50),
        float(p99),
        float(times.max()),
        serving + path,
        float((times > step.period_ns).mean()),
        min(1.0, max(owner_busy) / end) if end else 0.0,
        moved / end if end else 0.0,
    )


def _choices(random: np.random.Generator, cluster: Cluster) -> NDArray[np.int64]:
    """[host, step] -> the different owners that are asked."""
    first = random.integers(0, cluster.owners, (cluster.hosts, cluster.steps, 1))
    # evenly apart from a random one on: different owners, and none more often than the others
    apart = np.arange(cluster.fanout) * (cluster.owners // cluster.fanout)
    found: NDArray[np.int64] = (first + apart) % cluster.owners
    return found
