# SPDX-License-Identifier: Apache-2.0
"""The pool of pre-allocated export memory of one node (driver specification 10, 22.4).

The two kernel threads are modelled by time: `settle` does what they would have done by now.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .calls import KernelError

if TYPE_CHECKING:
    from .host import Host

REFILL_PERIOD = 1.0
"""Seconds after which the refill thread notices that the pool is below its target."""
CLEARING_RETRY = 10.0
"""Seconds that the clearing thread waits after a failure."""


class Pool:
    """Segments of `node`, counted: uncleared -> cleared -> used -> returned to the kernel."""

    def __init__(self, host: Host, node: int, target: int) -> None:
        self._host = host
        self.node = node
        self.target = target
        """Free segments that the refill thread keeps."""
        self.cleared = 0
        self.uncleared = 0
        self.used = 0
        self._refill_at: float | None = host.fabric.clock()
        self._clear_at = 0.0
        self.settle()

    def counters(self) -> dict[str, int]:
        """The four sysfs files, in bytes."""
        self.settle()
        size = self._host.dram.memseg
        return {
            "total": (self.cleared + self.uncleared + self.used) * size,
            "used": self.used * size,
            "available_cleared": self.cleared * size,
            "available_uncleared": self.uncleared * size,
        }

    def settle(self) -> float | None:
        """Let the threads work until now; the time of their next step, or None when they sleep."""
        now = self._host.fabric.clock()
        if self._refill_at is not None and self._refill_at <= now:
            fresh = min(self.target - self.cleared - self.uncleared, self._fresh())
            self.uncleared += max(0, fresh)
            short = self.cleared + self.uncleared < self.target
            self._refill_at = now + self._host.module.refill_timeout if short else None
        if self.uncleared and self._clear_at <= now:
            if self._host.faults.clearing_error:
                self._clear_at = now + CLEARING_RETRY
            else:
                self.cleared += self.uncleared
                self.uncleared = 0
        waits = [at for at in (self._refill_at, self._clear_at if self.uncleared else None) if at is not None]
        return min(waits, default=None)

    def take(self, count: int, fast: bool) -> list[tuple[int, int]]:
        """`count` zeroed segments as (pa, length), or ENOMEM (rule X12).

        FAST takes from the cleared list only. Otherwise: cleared, then uncleared ones cleared here and now
        (a failure of that is ignored, Q28), then fresh ones. After a failure everything already taken goes
        back to the kernel, not to the pool, and the refill thread pauses.
        """
        self.settle()
        from_cleared = min(count, self.cleared)
        from_uncleared = 0 if fast else min(count - from_cleared, self.uncleared)
        fresh = count - from_cleared - from_uncleared
        self.cleared -= from_cleared
        self.uncleared -= from_uncleared
        unpooled = self._host.dram.available(self.node) - self.cleared - self.uncleared
        if (fresh and fast) or count > unpooled:  # what came from the pool lies there by now
            self._failed()
            raise KernelError(errno.ENOMEM, "X12", f"node {self.node} has too little {'cleared ' * fast}memory")
        segments = self._host.dram.take(self.node, count)
        self.used += count
        for index, (pa, length) in enumerate(segments[from_cleared:]):
            is_fresh = index >= from_uncleared
            failed = is_fresh and (self._no_fresh() or self._host.faults.linear_error)
            if failed or (self._host.engine.clear(pa, length) and is_fresh):
                self.give(segments)
                self._failed()
                raise KernelError(errno.ENOMEM, "X12", f"no fresh segment on node {self.node}")
        if self.cleared + self.uncleared < self.target and self._refill_at is None:
            self._refill_at = self._host.fabric.clock() + REFILL_PERIOD
        return segments

    def give(self, segments: list[tuple[int, int]]) -> None:
        """Memory of a removed export goes back to the kernel."""
        self._host.dram.give(self.node, segments)
        self.used -= len(segments)

    def low_memory(self) -> None:
        """A reclaim event: the free part of the pool goes back, and the refill thread pauses."""
        self.settle()
        self.cleared = self.uncleared = 0
        self._failed()

    def _failed(self) -> None:
        self._refill_at = self._host.fabric.clock() + self._host.module.refill_timeout

    def _no_fresh(self) -> bool:
        faults = self._host.faults
        held = self.used + self.cleared + self.uncleared
        return faults.alloc_fails or (faults.alloc_limit is not None and held > faults.alloc_limit)

    def _fresh(self) -> int:
        """Segments that the kernel would still give."""
        faults = self._host.faults
        if faults.alloc_fails or faults.linear_error:
            return 0
        free = self._host.dram.available(self.node) - self.cleared - self.uncleared
        if faults.alloc_limit is not None:
            free = min(free, faults.alloc_limit - self.used - self.cleared - self.uncleared)
        return max(0, free)
